"""What every agent must pass, as plain functions: run them on an agent of your own with `conform("my_algorithm")`.

A `Subject` is an algorithm's name, a `Spec` and settings; each check builds fresh agents from it and raises an
`AssertionError` that says what went wrong. `capture_safe` finds on a CPU most of what a CUDA graph would not allow.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from whorl.agents.agent import Acted, Agent, Context, Updated
from whorl.agents.component import with_components
from whorl.collect.collector import Collector
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import (
    MASK_KEY,
    Array,
    Continuous,
    Discrete,
    MultiDiscrete,
    Spec,
    empty_action,
    empty_obs,
    to_env,
)
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch
from whorl.envs.vector import Step
from whorl.nets.memory import as_on_gpu
from whorl.run.learner import Capture
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import algorithm_class
from whorl.settings.run import RunConfig
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

NUM_ENVS, ROWS = 4, 16
SMALL: dict[str, Any] = {
    "num_envs": NUM_ENVS,
    "num_steps": ROWS,
    "batch_size": 32,
    "chunk_length": 8,
    "actor_hidden_sizes": (16,),
    "critic_hidden_sizes": (16,),
    "hidden_sizes": (16,),
    "memory_size": 8,
    "memory_window": 5,
    "sequence_length": 6,
    "burn_in": 2,
    "sequence_stride": 8,
    "lookahead": 0,
    "n_epochs": 2,
    "aux_every": 2,
    "aux_epochs": 2,
    "lr_schedule": "constant",
    "buffer_size": 512,
    "learning_starts": 0,
    "random_steps": 0,
    "updates_per_step": 0.1,
    "policy_delay": 2,
}
"""Settings that keep a check short; an algorithm takes those that it has."""

WALK: dict[str, Any] = {
    "gamma": 0.9,
    "normalize_obs": False,
    "normalize_reward": False,
    "lr": 5e-3,
    "optimizer": "Adam",
    "actor_lr": 1e-3,
    "critic_lr": 5e-3,
    "max_grad_norm": 0.0,
    "tau": 0.05,
    "target_update_interval": 1,
    "ratio": 0.25,
    "alpha": 0.0,
    "tune_alpha": False,
    "renorm_warmup": 200,
}
"""Settings with which the values of `Walk` are learned soon."""

OBSERVATIONS: dict[str, Any] = {
    "vector": Array((3,)),
    "image": Array((10, 10, 2), "uint8", 0.0, 255.0),
    "dict": {
        "position": Array((2,)),
        "speed": Array((3,)),
        "image": Array((4, 4, 1), "uint8", 0.0, 255.0),
    },
}
ACTIONS: dict[str, Any] = {
    "discrete": Discrete(3),
    "multi-discrete": MultiDiscrete((2, 3)),
    "continuous": Continuous((2,), (-1.0, 0.0), (1.0, 5.0)),
    "masked": Discrete(3),
}
MEMORIES = ("none", "lstm", "gru", "attention")


# Subjects


@dataclass(frozen=True)
class Subject:
    """An algorithm on a kind of environment."""

    algorithm: str
    spec: Spec
    settings: Mapping[str, Any] = field(default_factory=dict)

    def configured(self) -> Settings:
        """Typed settings: the algorithm's preset, made small, then this subject's own."""
        known = _fields(self.algorithm) | {f.name for f in fields(RunConfig)}
        small = {key: value for key, value in SMALL.items() if key in known}
        return configure(self.algorithm, "conformance", {**small, **self.settings})

    def agent(self, seed: int = 0, device: str = "cpu") -> Agent:
        """A fresh agent with its optimizers and random streams; the same for the same seed."""
        settings, streams = self.configured(), Streams(seed, (device,))
        agent = build_agent(settings, self.spec, seed)
        agent.check(settings.run.num_envs * settings.run.num_steps)
        return agent.prepare(device, lambda name: streams.generator("learner", device, name))

    def rollouts(self, agent: Agent, count: int, world: "RandomWorld | Walk | None" = None) -> list[Batch]:
        """Rollouts by `agent`'s policy as it is, on random episodes, copied out of the collector's storage."""
        settings = self.configured()
        actor = copy_of(agent).to("cpu")
        generator = torch.Generator().manual_seed(1)
        env: Any = world or RandomWorld(self.spec)
        collector = Collector(env, actor, settings.run.num_steps, generator)
        collector.reset(0)
        found = [copied(collector.collect()) for _ in range(count)]
        return [rollout.to(agent.device) for rollout in found]


def copied(batch: Batch) -> Batch:
    """A batch that shares no memory with this one."""
    return batch.replace(**tree.clone(batch.tensors()))


def copy_of(agent: Agent) -> Agent:
    """The same networks, for acting alone."""
    components: dict[str, Any] = dict(agent.components)
    configs = {name: component.cfg for name, component in components.items()}
    twin = with_components(partial(type(agent), cfg=agent.cfg), agent.spec, configs)
    twin.load_state_dict(agent.state_dict())
    return twin


def subject(algorithm: str, observation: str, memory: str, action: str, **settings: Any) -> Subject:
    """The subject of one cell of the matrix; a memory also reads the action and the reward before."""
    observed = OBSERVATIONS[observation]
    if action == "masked":
        observed = observed if isinstance(observed, dict) else {"observation": observed}
        observed = {**observed, MASK_KEY: Array((3,), "int8", 0.0, 1.0)}
    known = _fields(algorithm)
    if "memory" not in known and memory != "none":
        raise ConfigError(f"{algorithm} has no setting memory")
    wanted: dict[str, Any] = {
        "memory": memory,
        "last_action": memory != "none",
        "last_reward": memory != "none",
    }
    if memory != "none" and "sequence" in known:
        wanted["batch_size"] = 8  # sequences
    given = {**{key: value for key, value in wanted.items() if key in known}, **settings}
    return Subject(algorithm, Spec(observed, ACTIONS[action], NUM_ENVS), given)


def _fields(algorithm: str) -> set[str]:
    config: Any = algorithm_class(algorithm)[1]
    return {f.name for f in fields(config.Config)} - {*getattr(config.Config, "unused", ())}


class Run:
    """An agent with its experience: what the loop does with rollouts, without the loop."""

    def __init__(self, subject: Subject, seed: int = 0, device: str = "cpu") -> None:
        self.agent = subject.agent(seed, device)
        self.generator = torch.Generator(self.agent.device).manual_seed(seed)
        self.experience = self.agent.experience(self.generator)

    def feed(self, rollouts: Sequence[Batch]) -> list[Updated]:
        """Learn what is due after each rollout."""
        found = []
        for rollout in rollouts:
            self.experience.add(copied(self.agent.receive(rollout)))
            for phase, batch in self.experience.due():
                updated = self.agent.learn(phase, batch)
                self.agent.updates += phase == "update"
                self.experience.settle(batch, updated)
                found.append(updated)
        return found

    def state(self) -> dict[str, Any]:
        """Everything that changes the future."""
        return {
            "agent": self.agent.state(),
            "experience": self.experience.state_dict(),
            "generators": {name: g.get_state() for name, g in self.agent.generators.items()},
            "replay": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.agent.load_state(state["agent"])
        self.experience.load_state_dict(state["experience"])
        for name, position in state["generators"].items():
            self.agent.generators[name].set_state(position)
        self.generator.set_state(state["replay"])


# Checks


def builds(subject: Subject) -> None:
    """An agent is built from `Spec` and settings alone, the same for the same seed, and draws from no other stream."""
    before = torch.random.get_rng_state()
    one, two, other = subject.agent(3), subject.agent(3), subject.agent(4)
    assert torch.equal(before, torch.random.get_rng_state()), "building an agent drew from torch's own stream"
    assert same(one.state(), two.state()), "two agents with one seed differ"
    assert not same(one.state(), other.state()), "two seeds give one agent"


def acts(subject: Subject) -> None:
    """Actions have canonical shape and range, obey masks, and greedy ones do not depend on chance."""
    agent, spec, world = subject.agent(), subject.spec, RandomWorld(subject.spec)
    obs, memory = world.reset(0), agent.initial_memory(spec.num_envs)
    generator = torch.Generator().manual_seed(0)
    wanted = empty_action(spec.action, (spec.num_envs,))
    before = torch.random.get_rng_state()
    reset = torch.ones(spec.num_envs, dtype=torch.bool)
    for _ in range(30):
        acted = agent.act(obs, memory, Context(reset, generator))
        _check_acted(acted, memory, wanted, spec)
        if spec.masked:
            allowed = obs[MASK_KEY].gather(-1, acted.action.unsqueeze(-1))
            assert allowed.all(), "an action was chosen that the mask forbids"
        greedy = [
            agent.act(obs, memory, Context(reset, torch.Generator().manual_seed(seed), greedy=True)).action
            for seed in (1, 2)
        ]
        assert same(*greedy), "greedy actions depend on the random stream"
        memory = tree.map(Tensor.detach, acted.memory)
        step = world.step(acted.action)
        obs, reset = step.obs, step.reset
    assert torch.equal(before, torch.random.get_rng_state()), "acting drew from torch's own stream"


def _check_acted(acted: Acted, memory: Tree, wanted: Tree, spec: Spec) -> None:
    def check(action: Tensor, like: Tensor, into: Tensor, leaf: Any) -> None:
        shape, dtype = tuple(action.shape), action.dtype
        assert (shape, dtype) == (tuple(like.shape), like.dtype), f"an action is {dtype} {shape}, not {like}"
        if isinstance(leaf, Continuous):
            low, high = torch.tensor(leaf.low), torch.tensor(leaf.high)
            assert torch.isfinite(action).all(), "an action is not finite"
            assert ((into >= low - 1e-6) & (into <= high + 1e-6)).all(), "an action is out of bounds"
        else:
            sizes = torch.tensor(leaf.n if isinstance(leaf, Discrete) else leaf.nvec)
            assert ((action >= 0) & (action < sizes)).all(), "an action is no choice that there is"

    tree.map(check, acted.action, wanted, to_env(spec.action, acted.action), spec.action)
    shapes = [tree.map(lambda leaf: tuple(leaf.shape), found) for found in (acted.memory, memory)]
    assert shapes[0] == shapes[1], f"memory after acting is {shapes[0]}, before it {shapes[1]}"
    for name, value in acted.extras.items():
        assert len(value) == spec.num_envs, f"extras[{name!r}] has shape {tuple(value.shape)}, not [B, ...]"


def replays_log_probs(subject: Subject) -> None:
    """Log-probabilities stored while acting come back when the rollout is learned from, memory and resets included.

    Holds for agents that return `log_prob` from `act`; by custom their policy net is `actor`, and observations go
    through `observations` where there is such a module.
    """
    agent = subject.agent()
    batch = subject.rollouts(agent, 3)[-1]  # by then memory is in full swing
    if "log_prob" not in batch.extras:
        return
    with torch.no_grad():
        again = agent.actor(prepared(agent, batch).now).log_prob(batch.action)  # type: ignore[operator]
    torch.testing.assert_close(again, batch.extras["log_prob"], atol=1e-5, rtol=1e-5)


def prepared(agent: Agent, batch: Batch) -> Batch:
    """The batch as the agent's nets read it."""
    observations = getattr(agent, "observations", None)
    return batch if observations is None else batch.replace(obs=observations(batch.obs))


def moves_what_it_trains(subject: Subject) -> None:
    """Every parameter with an optimizer moves, all others take no gradient, and all stays finite."""
    run = Run(subject)
    rollouts = subject.rollouts(run.agent, 4)
    before = {name: value.detach().clone() for name, value in run.agent.named_parameters()}
    rng = torch.random.get_rng_state()
    assert run.feed(rollouts), "no update was due after four rollouts; give the subject smaller settings"
    assert torch.equal(rng, torch.random.get_rng_state()), "learning drew from torch's own stream"
    trained = run.agent.trained()
    for name, value in run.agent.named_parameters():
        assert torch.isfinite(value).all(), f"{name} is no longer finite"
        if name in trained:
            assert not torch.equal(value, before[name]), f"{name} has an optimizer but did not move"
        else:
            assert value.grad is None, f"{name} has no optimizer but got a gradient"


def targets_move_by_their_rule_alone(subject: Subject) -> None:
    """With learning rates of zero nothing moves: a target that starts as a copy has nothing to follow."""
    run = Run(subject)
    rollouts = subject.rollouts(run.agent, 3)
    for name in run.agent._optimizers:
        getattr(run.agent, f"lr_{name}").zero_()
    run.agent.progress.fill_(1)  # where rates fall over the budget, it is spent
    before = {name: value.detach().clone() for name, value in run.agent.named_parameters()}
    run.feed(rollouts)
    for name, value in run.agent.named_parameters():
        assert torch.equal(value, before[name]), f"{name} moved although all learning rates are zero"


def masked_rows_have_no_influence(subject: Subject, garbage: float = 1e3) -> None:
    """Whatever stands in the action, reward and extras of masked rows, the same parameters come out, bit for bit."""
    clean, dirty = Run(subject), Run(subject)
    rollouts = subject.rollouts(clean.agent, 3)
    masked = sum(int((rollout.mask == 0).sum()) for rollout in rollouts)
    assert masked > 0, "the rollouts hold no masked row; the check would say nothing"
    clean.feed(rollouts)
    dirty.feed([garbled(rollout, subject.spec, garbage) for rollout in rollouts])
    one, two = clean.agent.state()["module"], dirty.agent.state()["module"]
    for name in one:
        assert torch.equal(one[name], two[name]), f"{garbage} in masked rows changed {name}"


def garbled(batch: Batch, spec: Spec, garbage: float) -> Batch:
    """The batch with `garbage` in its masked rows; discrete actions become another that there is."""
    masked, steps = batch.mask == 0, batch.shape[0]

    def spoiled(values: Tree, where: Tensor) -> Tree:
        def put(value: Tensor) -> Tensor:
            wrong = torch.full_like(value, garbage) if value.is_floating_point() else torch.zeros_like(value)
            return torch.where(tree.expand(where, value), wrong, value)

        return tree.map(put, values)

    memories = dict(batch.memories)
    if LAST in memories:  # the row before an episode's first is a masked one
        opened = batch.reset[:steps].unflatten(0, (len(tree.first(memories)), -1))[:, 0]
        memories[LAST] = spoiled(memories[LAST], opened)
    return batch.replace(
        action=spoiled(batch.action, masked),
        reward=spoiled(batch.reward, masked),
        extras=spoiled(batch.extras, masked),
        memories=memories,
        last=spoiled(batch.last, batch.reset),
    )


def tells_truncation_from_termination(subject: Subject, rounds: int = 150, tolerance: float = 0.5) -> None:
    """On `Walk` the value of the last state is 10; 2.5 if truncation counts as the end, 4.5 if it reads past it.

    Where the walk ends there it is 1; 10 if an agent bootstraps past a terminal state.
    The agent's value is read by its method `value(rows)`, or by its net `critic`; without either there is none.
    """
    _knows_values(subject, Walk.of(subject.spec), 10.0, rounds, tolerance)
    # Small values are learned sooner, and large ones by mistake too.
    _knows_values(subject, Walk.of(subject.spec, terminal=True), 1.0, rounds // 2, tolerance)


def _knows_values(subject: Subject, world: "Walk", last: float, rounds: int, tolerance: float) -> None:
    known = _fields(subject.algorithm)
    settings = {key: value for key, value in WALK.items() if key in known}
    subject = replace(subject, spec=world.spec, settings={**subject.settings, **settings})
    run = Run(subject)
    read = getattr(run.agent, "value", None) or getattr(run.agent, "critic", None)
    if read is None:
        return
    # So many rows are one round of the walk: after as many rollouts it is where it began.
    rollouts = subject.rollouts(run.agent, world.limit + 1, world)
    for number in range(rounds):
        run.feed([rollouts[number % len(rollouts)]])
    with torch.no_grad():
        value = read(walked(world.spec).now)[:, 0]
    for state, wanted in ((5, last), (0, last * 0.9**5)):
        found, name = value[state].item(), "Walk with an end" if world.terminal else "Walk"
        assert abs(found - wanted) < tolerance, f"{name}: V({state}) is {found:.2f}, not {wanted:.2g}"


def walked(spec: Spec) -> Batch:
    """All states of `Walk` in the order in which an episode shows them, without a reward so far."""
    obs = torch.eye(Walk.STATES).unsqueeze(1)  # [states, 1, states]
    none = torch.zeros(Walk.STATES, 1)
    reset = none > 0
    reset[0] = True
    last = {"action": empty_action(spec.action, (Walk.STATES, 1)), "reward": none}
    return Batch(obs, reset, {}, none, none, none, none, last=last)


def can_be_captured(subject: Subject) -> None:
    """What is marked `@captured` reads no value, has static shapes, and rebinds no tensor of the agent's state."""
    run = Run(subject)
    rollouts = subject.rollouts(run.agent, 2)
    run.agent.runner = CheckedRunner()
    places = [tensor.data_ptr() for tensor in run.agent.state_tensors()]
    with as_on_gpu():
        assert run.feed(rollouts), "no update was due after two rollouts; give the subject smaller settings"
    assert places == [t.data_ptr() for t in run.agent.state_tensors()], (
        "an update rebound a tensor of the state"
    )
    assert run.agent.runner.calls, "no method is marked @captured, so a GPU would gain nothing"


def captured_equals_eager(subject: Subject) -> None:
    """On a GPU: the same parameters come out of captured graphs and of plain calls."""
    eager, captured = Run(subject, device="cuda"), Run(subject, device="cuda")
    captured.agent.runner = Capture()
    rollouts = subject.rollouts(eager.agent, 4)
    eager.feed(rollouts)
    captured.feed(rollouts)
    one, two = eager.agent.state()["module"], captured.agent.state()["module"]
    for name in one:
        close = torch.allclose(one[name].double(), two[name].double(), rtol=1e-4, atol=1e-6)
        assert close, f"{name} differs between captured and plain updates"


def resumes_exactly(subject: Subject) -> None:
    """Half the rollouts, saved, loaded into an agent that began elsewhere, and the other half: bit for bit the same."""
    whole, first, second = Run(subject), Run(subject), Run(subject, seed=7)
    rollouts = subject.rollouts(whole.agent, 6)
    whole.feed(rollouts)
    first.feed(rollouts[:3])
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second.load(torch.load(file, weights_only=True))
    second.feed(rollouts[3:])
    assert same(whole.state(), second.state()), "a restored agent went another way"


def keeps_its_settings(subject: Subject) -> None:
    """Settings survive the way into config.yaml and back."""
    settings = subject.configured()
    plain = yaml.safe_load(yaml.safe_dump(settings.plain()))
    again = configure(settings.algorithm, settings.env, plain, presets=False)
    assert again == settings, f"settings came back changed: {again} instead of {settings}"


def metric_names(subject: Subject) -> set[str]:
    """The names of the metrics that learning yields; all must be finite scalars without a gradient."""
    run = Run(subject)
    found: set[str] = set()
    for updated in run.feed(subject.rollouts(run.agent, 3)):
        for name, value in updated.metrics.items():
            assert value.dim() == 0, f"metric {name} has shape {tuple(value.shape)}; it must be 0-dim"
            assert not value.requires_grad, f"metric {name} carries a gradient; detach it"
            assert torch.isfinite(value), f"metric {name} is {value}"
            found.add(name)
    return found


CHECKS: dict[str, Callable[[Subject], object]] = {
    check.__name__: check
    for check in (
        builds,
        acts,
        replays_log_probs,
        moves_what_it_trains,
        targets_move_by_their_rule_alone,
        masked_rows_have_no_influence,
        can_be_captured,
        resumes_exactly,
        keeps_its_settings,
        metric_names,
    )
}
"""The checks that hold for every kind of environment, by name."""


def conform(algorithm: str, **settings: Any) -> list[str]:
    """Run every check on every kind of environment that `algorithm` takes, and known values; returns those kinds.

    An agent declines a kind by raising `ConfigError` when it is built.
    """
    taken = []
    for observation, memory, action in product(OBSERVATIONS, MEMORIES, ACTIONS):
        try:
            cell = subject(algorithm, observation, memory, action, **settings)
            cell.agent()
        except ConfigError:
            continue
        for check in CHECKS.values():
            check(cell)
        if (observation, memory) == ("vector", "none") and action != "masked":
            tells_truncation_from_termination(cell)
        taken.append(f"{observation} {memory} {action}")
    assert taken, f"{algorithm} takes no kind of environment at all"
    return taken


def same(one: Any, two: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two))
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return bool(one == two)


# What a graph can't capture


READS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "cuda",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
)
"""methods of a tensor that hand its values to the host, or move it; on a CPU some of them leave no other trace"""
SYNCS = (
    *(
        "_local_scalar_dense",
        "is_nonzero",
        "equal",
        "allclose",
        "nonzero",
        "masked_select",
        "_unique",
        "_unique2",
    ),
    *("unique_dim", "unique_consecutive", "bincount", "histc", "repeat_interleave"),
)
"""operators that read a value, or whose shape depends on values"""
HOST_DATA = ("tensor", "as_tensor", "asarray", "from_numpy")
"""functions that bring host data in"""


class NotCapturable(AssertionError):
    """Something that a CUDA graph does not allow."""


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not _paused():
            raise NotCapturable(f"Tensor.{name} can't be captured: the host would have to wait for the value")
        if name in HOST_DATA and not isinstance(args[0], Tensor) and not _paused():
            raise NotCapturable(
                f"torch.{name} of host data can't be captured; use torch.full, or make it before"
            )
        if name in ("__getitem__", "__setitem__") and _has_list(args[1]):
            raise NotCapturable(
                "a list as an index can't be captured: it is host data; use slices, or a tensor"
            )
        return func(*args, **(kwargs or {}))


def _has_list(index: Any) -> bool:
    return isinstance(index, list) or (isinstance(index, tuple) and any(_has_list(part) for part in index))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not _paused():
            if name in SYNCS:
                raise NotCapturable(
                    f"{func} can't be captured: it reads values, or its shape depends on them"
                )
            indices = args[1] if name in ("index", "index_put", "index_put_", "_unsafe_index") else ()
            if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
                raise NotCapturable(
                    f"{func} with a boolean index can't be captured; use torch.where or a mask"
                )
        result = func(*args, **(kwargs or {}))
        if not _paused() and name in ("_to_copy", "copy_", "_copy_from"):
            _check_devices(func, args, result)
        return result


def _check_devices(func: Any, args: Any, result: Any) -> None:
    devices = {value.device for value in (*args, result) if isinstance(value, Tensor)}
    if len(devices) > 1:
        raise NotCapturable(f"{func} between {devices} can't be captured: keep tensors where the agent is")


# Optimizers may read their own step counters on a CPU; on a GPU they are told to be capturable.
_in_optimizer = 0


def _paused() -> bool:
    return _in_optimizer > 0


@contextmanager
def capture_safe() -> Iterator[None]:
    """Within, what a CUDA graph does not allow raises `NotCapturable`; works on any device, and in this thread only."""

    def enter(*_: Any) -> None:
        global _in_optimizer
        _in_optimizer += 1

    def leave(*_: Any) -> None:
        global _in_optimizer
        _in_optimizer -= 1

    hooks = [register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)]
    try:
        with _Methods(), _Operators():
            yield
    finally:
        global _in_optimizer
        _in_optimizer = 0
        for hook in hooks:
            hook.remove()


class CheckedRunner:
    """Runs `@captured` steps under `capture_safe`: give it to `agent.runner`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> Updated:
        self.calls += 1
        places = [tensor.data_ptr() for tensor in agent.state_tensors()]
        with capture_safe():
            updated = method(agent, batch, **static)
        if places != [tensor.data_ptr() for tensor in agent.state_tensors()]:
            raise NotCapturable(
                f"{method.__qualname__} rebound a tensor of the agent's state; write in place"
            )
        return updated


# Worlds


class RandomWorld:
    """Episodes of random length over random observations of any spec, ended by termination or truncation alike."""

    id, snapshots = "conformance", False

    def __init__(self, spec: Spec, end: float = 0.15) -> None:
        self.spec, self.end = spec, end
        self.generator = torch.Generator()
        self.over = torch.zeros(spec.num_envs, dtype=torch.bool)

    def reset(self, seed: int) -> Tree:
        self.generator.manual_seed(seed)
        self.over.zero_()
        return self._observe()

    def step(self, action: Tree) -> Step:
        reset = self.over
        chance = torch.rand(3, self.spec.num_envs, generator=self.generator)
        ended = (chance[0] < self.end) & ~reset
        terminated = ended & (chance[1] < 0.5)
        self.over = ended
        return Step(self._observe(), chance[2] * ~reset, terminated, ended & ~terminated, reset)

    def _observe(self) -> Tree:
        empty = empty_obs(self.spec.observation, (self.spec.num_envs,))
        obs = tree.map(self._fill, empty)
        if self.spec.masked:
            obs[MASK_KEY][:, 0] = 1  # something is always allowed
        return obs

    def _fill(self, leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, generator=self.generator)
        high = 256 if leaf.dtype == torch.uint8 else 2
        return torch.randint(high, leaf.shape, generator=self.generator).to(leaf.dtype)


class Walk:
    """State min(t, 5), one-hot; reward 1 for each step from state 5.

    Cut after 8 steps and never terminated; where it is `terminal`, the first step from state 5 ends it.
    """

    id, snapshots = "walk", False
    STATES = 6

    def __init__(self, spec: Spec, terminal: bool = False) -> None:
        self.spec, self.terminal = spec, terminal
        self.limit = self.STATES if terminal else 8
        self.time = torch.zeros(spec.num_envs, dtype=torch.int64)

    @staticmethod
    def of(spec: Spec, terminal: bool = False) -> "Walk":
        """With the environments and actions of `spec`; actions do nothing."""
        return Walk(replace(spec, observation=Array((Walk.STATES,))), terminal)

    def reset(self, seed: int) -> Tensor:
        # Environments start apart, so that a rollout sees every state.
        self.time.copy_(torch.arange(self.spec.num_envs) % self.limit)
        return self._observe()

    def step(self, action: Tensor) -> Step:
        reset = self.time == self.limit
        reward = ((self.time >= self.STATES - 1) & ~reset).float()
        self.time = torch.where(reset, 0, self.time + 1)
        ended = self.time == self.limit
        never = torch.zeros_like(ended)
        terminated, truncated = (ended, never) if self.terminal else (never, ended)
        return Step(self._observe(), reward, terminated, truncated, reset)

    def _observe(self) -> Tensor:
        return nn.functional.one_hot(self.time.clamp(max=self.STATES - 1), self.STATES).float()
