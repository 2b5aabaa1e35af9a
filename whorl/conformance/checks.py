"""The checks: each builds new agents from a subject and raises an `AssertionError` that says what is wrong."""

import io
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import yaml
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context
from whorl.conformance.capture import CheckedRunner
from whorl.conformance.environments import RandomWorld, Walk, choices_taken, walk_states
from whorl.conformance.subjects import WALK, Run, Subject, copied, same, settings_of
from whorl.core import tree
from whorl.core.hardware import as_on_gpu
from whorl.core.spec import MASK_KEY, Continuous, Discrete, Spec, empty_action, to_env
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch
from whorl.run.learner import Capture
from whorl.settings.merge import configure


def builds(subject: Subject) -> None:
    """An agent is built from `Spec` and settings alone, is the same for the same seed, uses no global random state."""
    before = torch.random.get_rng_state()
    one, two, other = subject.agent(3), subject.agent(3), subject.agent(4)
    assert torch.equal(before, torch.random.get_rng_state()), (
        "building an agent used torch's global random state"
    )
    assert same(one.state(), two.state()), "two agents with the same seed differ"
    assert not same(one.state(), other.state()), "two seeds give the same agent"


def acts(subject: Subject) -> None:
    """Actions have canonical shape and range, obey masks, and greedy actions do not depend on the random stream."""
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
            taken = choices_taken(spec.action, acted.action)
            assert (obs[MASK_KEY][taken > 0] > 0).all(), "a masked action was chosen"
        greedy = [
            agent.act(obs, memory, Context(reset, torch.Generator().manual_seed(seed), greedy=True)).action
            for seed in (1, 2)
        ]
        assert same(*greedy), "greedy actions depend on the random stream"
        memory = tree.map(Tensor.detach, acted.memory)
        step = world.step(acted.action)
        obs, reset = step.obs, step.reset
    assert torch.equal(before, torch.random.get_rng_state()), "acting used torch's global random state"


def _check_acted(acted: Acted, memory: Tree, wanted: Tree, spec: Spec) -> None:
    def check(action: Tensor, like: Tensor, into: Tensor, leaf: Any) -> None:
        shape, dtype = tuple(action.shape), action.dtype
        assert (shape, dtype) == (tuple(like.shape), like.dtype), (
            f"an action is {dtype} {shape}, not {like.dtype} {tuple(like.shape)}"
        )
        if isinstance(leaf, Continuous):
            low, high = torch.tensor(leaf.low), torch.tensor(leaf.high)
            assert torch.isfinite(action).all(), "an action is not finite"
            assert ((into >= low - 1e-6) & (into <= high + 1e-6)).all(), "an action is out of bounds"
        else:
            sizes = torch.tensor(leaf.n if isinstance(leaf, Discrete) else leaf.nvec)
            assert ((action >= 0) & (action < sizes)).all(), "a discrete action is out of range"

    tree.map(check, acted.action, wanted, to_env(spec.action, acted.action), spec.action)
    shapes = [tree.map(lambda leaf: tuple(leaf.shape), found) for found in (acted.memory, memory)]
    assert shapes[0] == shapes[1], f"memory after acting is {shapes[0]}, before it {shapes[1]}"
    for name, value in acted.extras.items():
        assert len(value) == spec.num_envs, f"extras[{name!r}] has shape {tuple(value.shape)}, not [B, ...]"


def replays_log_probs(subject: Subject) -> None:
    """The log-probabilities stored while acting are computed again from the rollout, memory and resets included.

    Only for agents that return `log_prob` from `act`; their policy is `agent.actor`, and `agent.observations`, if they
    have it, prepares its input.
    """
    agent = subject.agent()
    batch = subject.rollouts(agent, 3)[
        -1
    ]  # the third, so that its memory starts from a state that is not zero
    if "log_prob" not in batch.extras:
        return
    with torch.no_grad():
        again = agent.actor(prepared(agent, batch).now).log_prob(batch.action)  # type: ignore[operator]
    torch.testing.assert_close(again, batch.extras["log_prob"], atol=1e-5, rtol=1e-5)


def prepared(agent: Agent, batch: Batch) -> Batch:
    """The batch with discounts, and with observations as the agent's networks read them."""
    batch = agent.discounting().apply(batch)
    observations = getattr(agent, "observations", None)
    return batch if observations is None else batch.replace(obs=observations(batch.obs))


def moves_what_it_trains(subject: Subject) -> None:
    """Every parameter with an optimizer moves by a gradient of its own, the others get none, and all stay finite."""
    run = Run(subject)
    _watch_gradients(run.agent)
    rollouts = subject.rollouts(run.agent, 4)
    before = {name: value.detach().clone() for name, value in run.agent.named_parameters()}
    rng = torch.random.get_rng_state()
    assert run.feed(rollouts), "no update was due after four rollouts; give the subject smaller settings"
    assert torch.equal(rng, torch.random.get_rng_state()), "learning used torch's global random state"
    trained = run.agent.trained()
    for name, value in run.agent.named_parameters():
        assert torch.isfinite(value).all(), f"{name} is no longer finite"
        if name in trained:
            assert not torch.equal(value, before[name]), f"{name} has an optimizer but did not move"
        else:
            assert value.grad is None, f"{name} has no optimizer but got a gradient"


def _watch_gradients(agent: Agent) -> None:
    """Raise where an optimizer gets two gradients that share memory: one scaled in place would be scaled twice."""
    names = {id(value): name for name, value in agent.named_parameters()}

    def watched(step: Callable[..., None], parameters: list[Any]) -> Callable[..., None]:
        def call(gradients: Any, rate: Tensor, gate: Tensor | None) -> None:
            found = [(_span(g), names[id(p)]) for g, p in zip(gradients, parameters) if g.numel()]
            found.sort(key=lambda one: one[0])  # by address: neighbours overlap if any two do
            for ((_, end), one), ((start, _), two) in pairwise(found):
                assert start >= end, f"the gradients of {one} and {two} share memory; clone one of them"
            step(gradients, rate, gate)

        return call

    for name, parameters in agent.parameters_of().items():
        agent._steppers[name] = watched(agent._steppers[name], parameters)


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first number and behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def targets_move_by_their_rule_alone(subject: Subject) -> None:
    """With learning rates of zero nothing moves, because targets start as copies of what they follow."""
    run = Run(subject)
    rollouts = subject.rollouts(run.agent, 3)
    for name in run.agent._optimizers:
        getattr(run.agent, f"lr_{name}").zero_()
    run.agent.progress.fill_(1)  # schedules that fall to zero are at their end
    before = {name: value.detach().clone() for name, value in run.agent.named_parameters()}
    run.feed(rollouts)
    stepped = {id(value) for values in run.agent.parameters_of().values() for value in values}
    for name, value in run.agent.trained().items():
        if id(value) not in stepped:  # trained without an optimizer, as TRPO's actor is
            before[name] = value.detach()
    for name, value in run.agent.named_parameters():
        assert torch.equal(value, before[name]), f"{name} moved although all learning rates are zero"


def masked_rows_have_no_influence(subject: Subject, garbage: float = 1e3) -> None:
    """The action, reward and extras of masked rows do not change the parameters after training, bit for bit."""
    clean, dirty = Run(subject), Run(subject)
    rollouts = subject.rollouts(clean.agent, 3)
    masked = sum(int((rollout.mask == 0).sum()) for rollout in rollouts)
    assert masked > 0, "the rollouts have no masked row, so the check has no effect"
    clean.feed(rollouts)
    dirty.feed([garbled(rollout, subject.spec, garbage) for rollout in rollouts])
    one, two = clean.agent.state()["module"], dirty.agent.state()["module"]
    for name in one:
        assert torch.equal(one[name], two[name]), f"{garbage} in masked rows changed {name}"


def garbled(batch: Batch, spec: Spec, garbage: float) -> Batch:
    """The batch with `garbage` in its masked rows; discrete actions become 0."""
    masked, steps = batch.mask == 0, batch.shape[0]

    def spoiled(values: Tree, where: Tensor) -> Tree:
        def put(value: Tensor) -> Tensor:
            wrong = torch.full_like(value, garbage) if value.is_floating_point() else torch.zeros_like(value)
            return torch.where(tree.expand(where, value), wrong, value)

        return tree.map(put, values)

    memories = dict(batch.memories)
    if LAST in memories:  # the row before the first of an episode is masked
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
    """On `Walk` the last state has value 5: 2.1 if truncation is treated as termination, 2.6 if returns cross it.

    If the walk terminates there, the value is 1: 5 if the agent bootstraps from a terminal state. Values come from the
    agent's method `value(rows)` or its network `critic`; agents without either are not checked, nor those whose values
    depend on what components keep track of.
    """
    taken = _knows_values(subject, Walk.of(subject.spec), 5.0, rounds, tolerance)
    # Small values are learned in fewer rounds, and a wrong, large value would show in as many.
    _knows_values(subject, Walk.of(subject.spec, terminal=True), 1.0, min(taken, rounds // 2), tolerance)


def _knows_values(subject: Subject, world: Walk, last: float, rounds: int, tolerance: float) -> int:
    """Train until the values are known or `rounds` are over; returns the number of rounds."""
    known = settings_of(subject.algorithm)
    settings = {key: value for key, value in WALK.items() if key in known}
    subject = replace(subject, spec=world.spec, settings={**subject.settings, **settings})
    run = Run(subject)
    read = getattr(run.agent, "value", None) or getattr(run.agent, "critic", None)
    if read is None or run.agent.tracks:
        return 0
    # The walk repeats after limit + 1 rows, so after that many rollouts it is where it began.
    rollouts = subject.rollouts(run.agent, world.limit + 1, world)
    wanted = {5: last, 0: last * WALK["gamma"] ** 5}
    found = dict.fromkeys(wanted, 0.0)
    for number in range(1, rounds + 1):
        run.feed([rollouts[(number - 1) % len(rollouts)]])
        if number % 5 == 0 or number == rounds:
            with torch.no_grad():
                value = read(walk_states(world.spec).now)[:, 0]
            found = {state: value[state].item() for state in wanted}
            # Wrong values of the endless walk lie below the right ones; those of the other come past them.
            if not world.terminal and all(
                abs(found[state] - wanted[state]) < tolerance / 2 for state in wanted
            ):
                return number
    name = "terminal Walk" if world.terminal else "Walk"
    for state in wanted:
        told = f"{name}: V({state}) is {found[state]:.2f}, not {wanted[state]:.2g}"
        assert abs(found[state] - wanted[state]) < tolerance, told
    return rounds


def can_be_captured(subject: Subject) -> None:
    """Methods marked `@captured` read no values, have static shapes and rebind no tensor of the agent's state.

    Memories are unrolled, gradients computed and optimizers stepped as on a GPU, and there, too, no two gradients share
    memory.
    """
    with as_on_gpu():
        run = Run(subject)
    _watch_gradients(run.agent)
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
    """On a GPU: captured graphs and plain calls give the same parameters."""
    eager, captured = Run(subject, device="cuda"), Run(subject, device="cuda")
    captured.agent.runner = Capture()
    rollouts = subject.rollouts(eager.agent, 4)
    # Sums of convolutions in varying order differ in the last bits, which Adam magnifies where gradients vanish.
    with torch.backends.cudnn.flags(benchmark=False, deterministic=True):
        eager.feed(rollouts)
        captured.feed(rollouts)
    one, two = eager.agent.state()["module"], captured.agent.state()["module"]
    for name in one:
        close = torch.allclose(one[name].double(), two[name].double(), rtol=1e-4, atol=1e-6)
        assert close, f"{name} differs between captured and eager updates"


def resumes_exactly(subject: Subject) -> None:
    """Training that is saved, loaded into an agent with another seed and continued equals training without a break."""
    whole, first, second = Run(subject), Run(subject), Run(subject, seed=7)
    rollouts = subject.rollouts(whole.agent, 5)
    whole.feed(rollouts)
    first.feed(rollouts[:3])
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second.load(torch.load(file, weights_only=True))
    second.feed(rollouts[3:])
    assert same(whole.state(), second.state()), "training after a restore differs from training without one"


def keeps_its_settings(subject: Subject) -> None:
    """Settings are the same after writing them to config.yaml and reading them back."""
    settings = subject.configured()
    plain = yaml.safe_load(yaml.safe_dump(settings.plain()))
    again = configure(settings.algorithm, settings.env, plain, presets=False)
    assert again == settings, f"settings came back changed: {again} instead of {settings}"


def metric_names(subject: Subject) -> set[str]:
    """The names of the metrics of updates; all must be finite scalars without a gradient."""
    run = Run(subject)
    found: set[str] = set()
    for updated in run.feed(subject.rollouts(run.agent, 3)):
        for name, value in updated.metrics.items():
            assert value.dim() == 0, f"metric {name} has shape {tuple(value.shape)}; it must be 0-dim"
            assert not value.requires_grad, f"metric {name} carries a gradient; detach it"
            assert torch.isfinite(value), f"metric {name} is {value}"
            found.add(name)
    return found


def gives_aligned_rewards(subject: Subject) -> None:
    """The reward streams of components: finite, 0 on masked rows, and in the columns of their environments.

    The environment's own reward stays as it is, at index 0.
    """
    agent: Any = subject.agent()
    if not agent.spec.streams:
        return
    rollout = subject.rollouts(agent, 1)[0]
    found = agent.receive(copied(rollout)).reward  # [T, B, 1 + streams]
    assert found.shape == (*rollout.shape, 1 + len(agent.spec.streams)), f"rewards are {tuple(found.shape)}"
    assert torch.equal(found[..., 0], rollout.reward), "the environment's reward changed"
    assert torch.isfinite(found).all(), "a reward is not finite"
    assert not found[rollout.mask == 0].any(), "a masked row has a reward"
    assert found[..., 1:].any(), "all rewards of the component are 0"
    # With the environments in reverse order, the same rewards in reverse order.
    columns = {key: value for key, value in rollout.tensors().items() if key != "memory"}
    other: Any = subject.agent()
    reverse = other.receive(rollout.replace(**tree.map(lambda leaf: leaf.flip(1), columns))).reward
    torch.testing.assert_close(reverse.flip(1), found, atol=1e-4, rtol=1e-4)


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
"""The checks that apply to every kind of environment, by name"""
