"""The base of every algorithm: plumbing only. Optimizers, `minimize`, counters, and the two marks on methods.

An agent's state is parameters, buffers, optimizer state and the counter `updates`; all of it is updated in place and no
tensor is ever rebound, so that an update can be captured as a CUDA graph and a checkpoint restores bit for bit.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from whorl.agents.optimizers import Stepper, build_optimizer, initialise_state, stepper
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.discounting import Discounting, Gamma, with_streams
from whorl.data.gradients import Gradients
from whorl.data.replay import check_replay, replay_of, view_of
from whorl.data.ring import replay_bytes
from whorl.data.rollouts import Rollouts
from whorl.nets.normalize import ReturnScale
from whorl.settings.families import ReplayConfig

F = TypeVar("F", bound=Callable[..., Any])
COMPONENTS = "components"
"""the part of the acting memory that belongs to components, keyed by component"""


@dataclass
class Context:
    """What acting may know besides the observation."""

    reset: Tensor
    """[B] bool: this observation opens an episode"""
    generator: torch.Generator
    greedy: bool = False
    random: bool = False
    """warm-up: take uniformly random actions"""
    env_index: Tensor | None = None
    """[B] the numbers of these environments among all of the run, where it is known"""


@dataclass
class Acted:
    action: Tree
    memory: Tree
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Updated:
    metrics: dict[str, Tensor]
    """0-dim tensors on the device, `group/name`"""
    priority: Tensor | None = None
    """[B] new priorities of the rows that were learned from"""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """columns [T, B] that the experience should keep beside the batch"""


def pure(method: F) -> F:
    """Mark a loss: tensors in, tensors out, randomness as an argument. The unit that may be compiled."""
    method.pure = True  # type: ignore[attr-defined]
    return method


def captured(method: F) -> F:
    """Mark a step that mutates only its own tensors, with static shapes and no host sync: it may run as a CUDA graph.

    Keyword arguments are static: each combination of them is captured apart. The learner decides; without one the
    method simply runs.
    """

    @wraps(method)
    def run(self: "Agent", batch: Batch, **static: Any) -> Updated:
        self._batch = batch  # for components that join an optimizer
        return method(self, batch, **static)

    @wraps(method)
    def call(self: "Agent", batch: Batch, **static: Any) -> Updated:
        if self.runner is None:
            return run(self, batch, **static)
        return self.runner(run, self, batch, static)

    return call  # type: ignore[return-value]


class Agent(nn.Module):
    """An algorithm: a module with a frozen config, built from a `Spec` alone."""

    Config: ClassVar[type]
    acts_with: ClassVar[tuple[str, ...]] = ()
    """the modules that `act` reads, where not all of them are: whoever acts elsewhere is sent no others"""
    corrects_off_policy: ClassVar[bool] = False
    """whether rows that an older policy collected are as good; replay's always are"""
    separate_streams: ClassVar[bool] = False
    """whether updates receive every reward stream separately, [T, B, 1 + S], instead of their weighted sum [T, B]"""
    runner: Callable[..., Updated] | None = None
    exchange: Callable[[Sequence[Tensor]], None] | None = None
    """set where several learners share a batch: puts the mean over all of them in the place of gradients"""
    progress: Tensor

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.spec = spec
        self.cfg = cfg
        self.updates = 0
        self.generators: dict[str, torch.Generator] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._parameters_of: dict[str, list[nn.Parameter]] = {}
        self._rates: dict[str, float] = {}
        self._steppers: dict[str, Stepper] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.components = nn.ModuleDict()
        self._joined: dict[str, list[Callable[[Batch], Tensor]]] = {}
        self._batch: Batch | None = None
        # Share of the budget that is spent, for schedules; the loop writes it in place before each update.
        self.register_buffer("progress", torch.zeros(()))

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """Actions for one row of every environment."""
        raise NotImplementedError(f"{type(self).__name__} must define act()")

    def update(self, batch: Batch) -> Updated:
        """Learn from one batch."""
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def learn(self, phase: str, batch: Batch) -> Updated:
        """Run one phase of learning (`update`, or another method), and after an update one step of each component."""
        updated = getattr(self, phase)(batch)
        if phase != "update" or not self.components:
            return updated
        found = [self.update_component(batch, name=name) for name in self.components]
        metrics = {key: value for one in found for key, value in one.metrics.items()}
        return replace(updated, metrics={**updated.metrics, **metrics})

    @captured
    def update_component(self, batch: Batch, *, name: str) -> Updated:
        """One step of the component called `name`."""
        component: Any = self.components[name]
        return Updated(component.update(self, batch))

    @torch.no_grad()
    def receive(self, rollout: Batch) -> Batch:
        """Process a rollout before it is added to the experience: update statistics, add the components' rewards."""
        self.observe(rollout)
        if not self.components:
            return rollout
        seen, rewards = rollout.to(self.device), {}
        components: list[Any] = list(self.components.values())
        for component in components:
            component.observe(seen)
            rewards.update(component.rewards(seen))
        rewards = {name: value.to(rollout.mask.device) for name, value in rewards.items()}
        return with_streams(rollout, self.spec.streams, rewards)

    def acting_memory(self, num_envs: int) -> Tree:
        """Memory of the agent and of its components before the first row."""
        parts: dict[str, Any] = dict(self.components)
        found = {name: part.initial_memory(num_envs) for name, part in parts.items() if part.acts}
        memory = self.initial_memory(num_envs)
        return {**memory, COMPONENTS: tree.to(found, self.device)} if found else memory

    def act_and_track(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """`act` while collecting: components update their memory of the episode and add columns to the extras."""
        if COMPONENTS not in memory:
            return self.act(obs, memory, context)
        acted = self.act(obs, {key: value for key, value in memory.items() if key != COMPONENTS}, context)
        extras, after = dict(acted.extras), {}
        for name, held in memory[COMPONENTS].items():
            component: Any = self.components[name]
            fresh = tree.to(component.initial_memory(len(context.reset)), self.device)
            held = tree.where(context.reset, fresh, held)
            after[name], columns = component.track(obs, held, acted.action)
            extras.update(columns)
        return Acted(acted.action, {**acted.memory, COMPONENTS: after}, extras)

    def initial_memory(self, num_envs: int) -> Tree:
        """Memory before the first row, keyed by net; agents without memory have none."""
        return {}

    def check(self, rows: int) -> None:
        """Raise a `ConfigError` where the settings do not fit rollouts of `rows` rows, or the agent itself."""
        if isinstance(self.cfg, ReplayConfig):
            check_replay(self.cfg, self.spec, rows)
            if self.cfg.normalize_obs:
                self._require("normalize_obs", "observe", ("observations",))
            if self.cfg.prioritized and self.cfg.priority_on_add:
                self._require("priority_on_add", "errors", ("observations", "critic_loss", "draw"))

    def _require(self, setting: str, method: str, parts: tuple[str, ...]) -> None:
        """Raise where the base's `method`, which a setting needs, would find no such parts of the agent."""
        missing = [part for part in parts if not hasattr(self, part)]
        if missing and getattr(type(self), method) is getattr(Agent, method):
            raise ConfigError(
                f"{setting} is true, but {type(self).__name__} has no {' and no '.join(missing)}, by custom what "
                f"Agent.{method} reads; define that or a method {method} of your own, or leave {setting} out"
            )

    @property
    def stride(self) -> int:
        """How often memory is stored along a rollout, in rows."""
        if isinstance(self.cfg, ReplayConfig):
            return self.cfg.sequence_stride if self.stores_memory else 1
        return getattr(self.cfg, "chunk_length", 1) if self.initial_memory(1) else 1

    @property
    def stores_memory(self) -> bool:
        """Whether what is learned from opens from the memory that acting had there."""
        if isinstance(self.cfg, ReplayConfig):
            return self.cfg.stores_memory
        return True

    @property
    def tolerates_stale_data(self) -> bool:
        """Whether those who act may go on while an update is made."""
        return self.corrects_off_policy or isinstance(self.cfg, ReplayConfig)

    @property
    def random_steps(self) -> int:
        """First environment steps that are taken at random."""
        return getattr(self.cfg, "random_steps", 0)

    def forget(self) -> None:
        """Drop what is known of episodes that are open now: their environments start anew."""
        for module in self.modules():
            if isinstance(module, ReturnScale):
                module.running.zero_()

    def normalizer_values(self) -> dict[str, Any]:
        """Statistics of `observations`, where the agent has such a module, as plain numbers per key."""
        observations: Any = getattr(self, "observations", None)
        return {} if observations is None else observations.values()

    def observe(self, rollout: Batch) -> None:
        """See a rollout before it is learned from: agents with replay follow the statistics of what comes in."""
        if isinstance(self.cfg, ReplayConfig) and self.cfg.normalize_obs:
            obs = tree.to(tree.index(rollout.obs, slice(0, rollout.shape[0])), self.device)
            self.observations.merge_(obs, torch.ones(rollout.shape, device=self.device))  # type: ignore[union-attr, operator]

    # Experience

    @property
    def gamma(self) -> Gamma:
        """Discount per step: one number, or a tensor [num_envs]; applied when a batch is made, not at collection."""
        return getattr(self.cfg, "gamma", 1.0)

    def discounting(self) -> Discounting:
        """How rewards and discounts of a batch are made from a rollout."""
        return Discounting(self.gamma, self.spec.streams, self.separate_streams)

    def mixed(self, value: Tensor) -> Tensor:
        """The weighted sum over reward streams of values [T, B, 1 + S]; without streams the values [T, B]."""
        return Discounting(streams=self.spec.streams).reward(value)

    def columns(self) -> dict[str, Array]:
        """Columns that components want stored with every row."""
        components: list[Any] = list(self.components.values())
        return {name: array for component in components for name, array in component.columns.items()}

    def encoder(self) -> nn.Module:
        """The module that maps prepared observations to features, and that the critic's optimizer trains."""
        net: Any = getattr(self, "critic", None) or getattr(self, "actor", None)
        return net.backbone.encoder

    def replay_bytes(self) -> int:
        """Size of the replay ring that `experience` will allocate; 0 where there is none."""
        if not isinstance(self.cfg, ReplayConfig):
            return 0
        stride = view_of(self.cfg).stride
        return replay_bytes(
            self.spec, self.cfg.buffer_size, extras=self.columns(), memory=self.stored(), stride=stride
        )

    def stored(self) -> Tree:
        """Memory of one environment, where replay stores it."""
        return self.initial_memory(1) if self.stores_memory else {}

    def experience(self, generator: torch.Generator) -> Any:
        """What turns rollouts into batches for this agent; `generator` is for drawing them, on the ring's device."""
        if isinstance(self.cfg, ReplayConfig):
            refresh = self.refreshed if self.cfg.refresh_memory and self.stores_memory else None
            return replay_of(
                *(self.cfg, self.spec, self.device, generator, self.errors, self.stored(), refresh),
                gamma=self.gamma,
                separate_streams=self.separate_streams,
                extras=self.columns(),
            )
        return Rollouts(self.discounting(), device=self.device)

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        """How wrong the agent is about rows it has not learned from yet [T, B]: their first priorities, by option.

        By custom `critic_loss(batch, draw(batch))` says so in second place, of rows as `observations` learns from them.
        """
        agent: Any = self
        batch = agent.observations.learn(batch, self.random("critic"))
        return agent.critic_loss(batch, agent.draw(batch))[1]

    @torch.no_grad()
    def refreshed(self, batch: Batch) -> Tree:
        """What the nets as they are now remember before every `stride`-th row of a sequence but the first: [K, B, ...].

        By custom `actor` and `critic` are the nets, and `observations` prepares what they read.
        """
        agent: Any = self
        batch = batch.replace(obs=agent.observations(batch.obs))
        nets = [getattr(self, name) for name in ("actor", "critic") if hasattr(self, name)]
        return {k: v for net in nets for k, v in net.states(batch, self.cfg.sequence_stride).items()}

    @property
    def device(self) -> torch.device:
        return self.progress.device

    # Optimizers

    def add_optimizer(
        self, name: str, modules: nn.Module | Iterable[nn.Module], part: Part, lr: float, **defaults: Any
    ) -> None:
        """Give `modules` an optimizer of their own; its rate is the buffer `lr_NAME`: schedules work in graphs."""
        modules = [modules] if isinstance(modules, nn.Module) else list(modules)
        self._parameters_of[name] = [p for module in modules for p in module.parameters()]
        self._rates[name] = lr
        self.register_buffer(f"lr_{name}", torch.tensor(lr))
        self._optimizers[name] = build_optimizer(self._parameters_of[name], part, lr, defaults)

    def join_optimizer(
        self, name: str, modules: nn.Module | Iterable[nn.Module], loss: Callable[[Batch], Tensor]
    ) -> None:
        """Let optimizer `name` train `modules` too, with `loss` (of the prepared batch) added to what it minimises."""
        modules = [modules] if isinstance(modules, nn.Module) else list(modules)
        self._parameters_of[name] += [p for module in modules for p in module.parameters()]
        self._optimizers[name].param_groups[0]["params"] = list(self._parameters_of[name])
        self._joined.setdefault(name, []).append(loss)

    def prepare(self, device: torch.device | str, seeds: Callable[[str], torch.Generator]) -> "Agent":
        """Move to `device`, and give every optimizer its state and every learner its random stream there."""
        self.to(device)
        for name, optimizer in self._optimizers.items():
            initialise_state(optimizer, getattr(self, f"lr_{name}"))
            self._steppers[name] = stepper(optimizer, self._parameters_of[name])
            self.generators[name] = seeds(name)
        return self

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that have an optimizer, by name."""
        listed = {id(p) for parameters in self._parameters_of.values() for p in parameters}
        return {name: value for name, value in self.named_parameters() if id(value) in listed}

    def random(self, name: str) -> torch.Generator:
        """The random stream of the learner called `name`."""
        return self.generators[name]

    def minimize(self, name: str, loss: Tensor, max_norm: float = 0.0, gate: Tensor | None = None) -> Tensor:
        """One optimizer step; returns the gradient norm before clipping. Where `gate` is 0 no parameter moves."""
        gradients = self._gradients(name, loss)
        norm = _norm(gradients)
        if max_norm > 0:
            _shrink_(gradients, norm, max_norm)
        rate = getattr(self, f"lr_{name}")
        # A gated step keeps its moments going but moves nothing: the rate is zero, on the device.
        self._steppers[name](gradients, rate if gate is None else rate * gate)
        return norm

    def descend(self, name: str, loss: Tensor, max_norm: float = 0.0) -> None:
        """One optimizer step whose norm nobody asks for: nets that `loss` runs through on its way take no gradient."""
        gradients = self._gradients(name, loss)
        if max_norm > 0:
            _shrink_(gradients, _norm(gradients), max_norm)
        self._steppers[name](gradients, getattr(self, f"lr_{name}"))

    def export_gradients(self, sink: Callable[[str, Sequence[Tensor], Tensor], None]) -> None:
        """From now on hand `sink` every optimizer's name, gradients and rate, instead of stepping it."""
        for name in self._optimizers:
            self._steppers[name] = partial(sink, name)

    def apply_gradients(self, gradients: Gradients) -> Updated:
        """Steps from gradients that were found elsewhere, by a diverted copy."""
        for name, gradient, rate in gradients.steps(self.device):
            getattr(self, f"lr_{name}").copy_(rate)  # what the copy's schedule made of it
            self._steppers[name](_as_they_lie(gradient, self._parameters_of[name]), rate)
        return Updated(tree.to(gradients.metrics, self.device))

    def anneal(self) -> None:
        """Let every learning rate fall linearly to zero over the budget."""
        for name, rate in self._rates.items():
            getattr(self, f"lr_{name}").copy_(rate * (1 - self.progress))

    def _gradients(self, name: str, loss: Tensor) -> tuple[Tensor, ...]:
        parameters = self._parameters_of[name]
        for joined in self._joined.get(name, ()):
            assert self._batch is not None
            agent: Any = self
            loss = loss + joined(self._batch.replace(obs=agent.observations(self._batch.obs)))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        gradients = _as_they_lie(gradients, parameters)
        if self.exchange is not None:
            self.exchange(gradients)
        return gradients

    def run_parallel(self, *steps: Callable[[], Any]) -> list[Any]:
        """Run independent learners at the same time: streams of one graph on a GPU, threads on a CPU.

        They must share no parameters, buffers they write, or random streams.
        """
        if self.device.type == "cuda":
            return self._on_streams(steps)
        if self._pool is None:
            return [step() for step in steps]
        futures = [self._pool.submit(step) for step in steps[1:]]
        first = steps[0]()
        return [first, *(future.result() for future in futures)]

    def use_threads(self, count: int) -> None:
        """Let `run_parallel` use `count` threads on a CPU; 1 runs one learner after the other."""
        if count > 1:
            # Python hands its lock over every 5 ms by default, longer than many a step: the learners would take turns.
            sys.setswitchinterval(5e-5)
        self._pool = ThreadPoolExecutor(count - 1, thread_name_prefix="learner") if count > 1 else None

    def _on_streams(self, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        here = torch.cuda.current_stream(self.device)
        results, streams = [], []
        for step in steps[1:]:
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                results.append(step())
            streams.append(stream)
        first = steps[0]()
        for stream in streams:
            here.wait_stream(stream)
        return [first, *results]

    # State

    def state(self) -> dict[str, Any]:
        """Everything that changes the future, as tensors and plain containers."""
        return {
            "module": dict(self.state_dict()),
            "optimizers": {
                name: [
                    {key: value for key, value in optimizer.state[p].items() if isinstance(value, Tensor)}
                    for p in self._parameters_of[name]
                ]
                for name, optimizer in self._optimizers.items()
            },
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore in place: captured graphs and shared views stay valid."""
        self.load_state_dict(state["module"])
        for name, optimizer in self._optimizers.items():
            for parameter, saved in zip(self._parameters_of[name], state["optimizers"][name], strict=True):
                for key, value in saved.items():
                    optimizer.state[parameter][key].copy_(value)
        self.updates = int(state["updates"])

    def acting_tensors(self) -> list[Tensor]:
        """Every tensor that acting reads, in a fixed order."""
        if not self.acts_with:
            return [*self.parameters(), *self.buffers()]
        modules = [getattr(self, name) for name in self.acts_with]
        modules += [backbone for module in modules for backbone in getattr(module, "reads", ())]
        critic: Any = getattr(self, "critic", None)
        # Where its memory is kept while acting.
        if getattr(critic, "follows", False) and critic.backbone not in modules:
            modules.append(critic.backbone)
        components: list[Any] = list(self.components.values())
        modules += [component for component in components if component.acts]
        return [self.progress, *(t for module in modules for t in (*module.parameters(), *module.buffers()))]

    def state_tensors(self) -> list[Tensor]:
        """Every tensor that an update may write."""
        tensors = [*self.parameters(), *self.buffers()]
        for name, optimizer in self._optimizers.items():
            for parameter in self._parameters_of[name]:
                tensors += [v for v in optimizer.state[parameter].values() if isinstance(v, Tensor)]
        return tensors


def _as_they_lie(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each in memory as its parameter: fused kernels walk raw storage."""
    return tuple(
        g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(gradients, parameters)
    )


def _norm(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _shrink_(gradients: tuple[Tensor, ...], norm: Tensor, most: float) -> None:
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
