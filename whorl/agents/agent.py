"""The base class of every algorithm: acting, learning and state.

An agent's state is its parameters, buffers, optimizer state and the counter `updates`. All of it is updated in place
and no tensor is ever replaced, so an update can be captured as a CUDA graph and a checkpoint restores bit for bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from whorl.agents.experience import experience_of
from whorl.agents.optimizers import Optimized
from whorl.agents.parallel import Parallel
from whorl.agents.protocols import HasCriticLoss, MemoryNet
from whorl.core import tree
from whorl.core.goals import GoalRewards
from whorl.core.registry import Part
from whorl.core.spec import Array, Spec, empty_action
from whorl.core.tree import Tree
from whorl.data.batch import Batch, remember
from whorl.data.discounting import Discounting, Gamma, with_streams
from whorl.data.gradients import Gradients
from whorl.data.replay import MEMORIES
from whorl.nets.normalize import ReturnScale
from whorl.ops.schedules import schedule

F = TypeVar("F", bound=Callable[..., Any])
COMPONENTS = "components"
"""the part of the acting memory that belongs to components, keyed by component"""


@dataclass
class Context:
    """What an agent knows besides the observation when it acts."""

    reset: Tensor
    """[B] bool: this observation starts an episode"""
    generator: torch.Generator
    greedy: bool = False
    random: bool = False
    """warm-up: take uniformly random actions"""
    env_index: Tensor | None = None
    """[B] indices of these environments among all environments of the run, if known"""


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
    """[B] or [T, B] new priorities of the rows that were learned from"""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """columns [T, B] that the experience stores with the batch"""


def pure(method: F) -> F:
    """Mark a loss: tensors in, tensors out, randomness as an argument. Such methods may be compiled."""
    method.pure = True  # type: ignore[attr-defined]
    return method


def captured(method: F) -> F:
    """Mark a step that changes only the agent's tensors, with static shapes and no host sync: it may be a CUDA graph.

    Keyword arguments are static: each combination of their values is captured separately. Without a `runner`, which the
    learner sets, the method simply runs.
    """

    @wraps(method)
    def run(self: "Agent", batch: Batch, **static: Any) -> Updated:
        self._batch = batch if self._joined else None
        return method(self, batch, **static)

    @wraps(method)
    def call(self: "Agent", batch: Batch, **static: Any) -> Updated:
        if self.runner is None:
            return run(self, batch, **static)
        return self.runner(run, self, batch, static)

    return call  # type: ignore[return-value]


class Agent(Optimized):
    """An algorithm: a module with a frozen config, built from a `Spec` alone."""

    Config: ClassVar[type]
    acts_with: ClassVar[tuple[str, ...]] = ()
    """names of the modules that `act` reads, if not all: only their tensors are sent to actors"""
    shares_unroll: ClassVar[tuple[str, ...]] = ()
    """off-policy: names of the networks whose memory is unrolled once per update, for all passes"""
    corrects_off_policy: ClassVar[bool] = False
    """whether an on-policy agent may learn from rollouts of an older policy"""
    tracks: ClassVar[bool] = False
    """whether acting reads the memory of components, so that evaluation and saved policies need them too"""
    q_of_actions: ClassVar[bool] = True
    """whether its critic computes Q(s, a) from state and action alone, so that saved policies have `q_values`"""
    separate_streams: ClassVar[bool] = False
    """whether updates receive every reward stream separately, [T, B, 1 + S], instead of their weighted sum [T, B]"""
    collects_greedily: bool = False
    """whether rollouts are collected with greedy actions; see the setting `disable_sample`"""
    runner: Callable[..., Updated] | None = None
    goal_rewards: GoalRewards | None = None
    """rewards of the environment as a function of goals, set where samples are given other goals (`her`)"""

    def __init__(self, spec: Spec, cfg: Any) -> None:
        super().__init__()
        self.spec = spec
        self.cfg = cfg
        self.updates = 0
        self.components = nn.ModuleDict()
        self._experience = experience_of(cfg)
        self._parallel = Parallel()
        lr_schedule = Part.of(getattr(cfg, "lr_schedule", "constant"))
        if lr_schedule.name not in ("constant", "kl"):  # kl is PPO's own
            self._schedule = schedule(lr_schedule)

    # Acting

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """Actions for one row of every environment."""
        raise NotImplementedError(f"{type(self).__name__} must define act()")

    def networks(self) -> list[MemoryNet]:
        """The networks whose memory is kept while acting: `actor` and `critic`, if the agent has them."""
        found = (getattr(self, name, None) for name in ("actor", "critic"))
        return [net for net in found if isinstance(net, MemoryNet)]

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
        # Rollouts are learned from on this device; replay may be on the device of the rollout.
        rollout = rollout if self.off_policy else seen
        rewards = {name: value.to(rollout.mask.device) for name, value in rewards.items()}
        return with_streams(rollout, self.spec.streams, rewards)

    def begin(self, obs: Tree, collecting: bool = True) -> Tree:
        """Memory of the agent before the first row of every environment; while collecting, of its components too."""
        reset = torch.ones(len(tree.first(obs)), dtype=torch.bool, device=self.device)
        memory = self.initial_memory(len(reset))
        parts: dict[str, Any] = dict(self.components)
        found = {name: part.initial_memory(len(reset)) for name, part in parts.items() if part.acts}
        if not found or not (collecting or self.tracks):
            return memory
        memory = {**memory, COMPONENTS: tree.to(found, self.device)}
        action = empty_action(self.spec.action, (len(reset),), self.device)
        return self.follow(memory, obs, action, torch.zeros(len(reset), device=self.device), obs, reset)[0]

    def carry_over(self, memory: Tree, before: Tree) -> Tree:
        """A memory of `begin` with what outlives episodes taken from the memory `before`."""
        if COMPONENTS not in memory:
            return memory
        parts: dict[str, Any] = dict(self.components)
        held = {
            name: {**held, **{key: before[COMPONENTS][name][key] for key in parts[name].outlives_episodes}}
            for name, held in memory[COMPONENTS].items()
        }
        return {**memory, COMPONENTS: held}

    def act_tracked(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """`act` with a memory of `begin`; what components keep track of stays in it."""
        if COMPONENTS not in memory:
            return self.act(obs, memory, context)
        acted = self.act(obs, {key: value for key, value in memory.items() if key != COMPONENTS}, context)
        return Acted(acted.action, {**acted.memory, COMPONENTS: memory[COMPONENTS]}, acted.extras)

    def follow(
        self, memory: Tree, obs: Tree, action: Tree, reward: Tensor, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        """The memory after one row that the environments have answered, and the columns of components.

        Where `reset` [B] is true the row was no step, and `next_obs` starts an episode.
        """
        columns: dict[str, Tensor] = {}
        if COMPONENTS in memory:
            after = {}
            for name, held in memory[COMPONENTS].items():
                component: Any = self.components[name]
                after[name], found = component.track(held, obs, action, next_obs, reset)
                columns.update(found)
            memory = {**memory, COMPONENTS: after}
        return remember(memory, action, reward, columns), columns

    def kept(self, memory: Tree) -> Tree:
        """The memory with copies of what `follow` may change in place."""
        if COMPONENTS not in memory:
            return memory
        return {**memory, COMPONENTS: tree.clone(memory[COMPONENTS])}

    def initial_memory(self, num_envs: int) -> Tree:
        """Memory before the first row, keyed by network; empty for agents without memory."""
        nets = self.networks()
        return {k: v for net in nets for k, v in net.initial_memory(num_envs, self.device).items()}

    @property
    def random_steps(self) -> int:
        """Environment steps at the start of training that take random actions."""
        return getattr(self.cfg, "random_steps", 0)

    @property
    def privileged(self) -> tuple[str, ...]:
        """Keys of the observation that exist in training only, which `act` does not read."""
        return getattr(self.cfg, "privileged_obs", ())

    @property
    def device(self) -> torch.device:
        return self.progress.device

    # Learning

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
        # A captured step returns the same object each time: it must not change.
        return replace(updated, metrics={**updated.metrics, **metrics})

    @captured
    def update_component(self, batch: Batch, *, name: str) -> Updated:
        """One step of the component called `name`."""
        component: Any = self.components[name]
        return Updated(component.update(self, batch))

    def row_metrics(self) -> dict[str, float]:
        """Metrics that are read only when a row is written, besides those of updates."""
        return {}

    def prepare_batch(self, batch: Batch) -> Batch:
        """A replayed batch ready for the losses: learning rates are annealed, observations normalised and augmented,
        rewards scaled, and memories unrolled once for all passes of the update (`shares_unroll`)."""
        self.anneal()
        agent: Any = self
        batch = agent.observations.learn(batch, self.random("critic"))
        for name in self.shares_unroll:
            batch = getattr(self, name).prepare(batch)
        return batch

    def begin_update(self, rollout: Batch) -> Batch:
        """A rollout ready for the losses: learning rates are annealed, observations normalised, rewards scaled.

        Statistics of returns include the rollout; those of observations stay as they were while acting. Actions on
        masked rows are 0: whatever they hold must not reach a gradient, not even as 0 * nan.
        """
        agent: Any = self
        agent.rewards.merge_(rollout.reward, rollout.keep, rollout.mask, self.cfg.gamma)
        self.anneal()
        action = tree.where(rollout.mask > 0, rollout.action, tree.map(torch.zeros_like, rollout.action))
        return rollout.replace(
            obs=agent.observations(rollout.obs), action=action, reward=agent.rewards(rollout.reward)
        )

    def end_update(self, rollout: Batch) -> None:
        """Merge the observations of a rollout that was learned from into their statistics."""
        agent: Any = self
        agent.observations.merge_(tree.index(rollout.obs, slice(0, -1)), rollout.observed)

    def sum_streams(self, value: Tensor) -> Tensor:
        """The weighted sum [T, B] over reward streams [T, B, 1 + S]; without streams, `value` itself."""
        if not self.spec.streams:
            return value
        total, *others = value.unbind(-1)
        for stream, other in zip(self.spec.streams, others):
            total = total + stream.weight * other
        return total

    def add_optimizers(self, **rates: float) -> None:
        """Give each named network of this agent an optimizer with the settings of the config."""
        for name, rate in rates.items():
            self.add_optimizer(
                name, getattr(self, name), self.cfg.optimizer, rate, **self.optimizer_options()
            )

    def add_shared_optimizer(self, *names: str, lr: float) -> None:
        """Give several named networks of this agent one optimizer, called as the first."""
        networks = [getattr(self, name) for name in names]
        self.add_optimizer(names[0], networks, self.cfg.optimizer, lr, **self.optimizer_options())

    def optimizer_options(self, weight_decay: float | None = None) -> dict[str, float]:
        """The epsilon and weight decay of the config, if it has them; `weight_decay` overrides its own."""
        options = {"eps": "adam_eps", "weight_decay": "weight_decay"}
        found = {key: getattr(self.cfg, name) for key, name in options.items() if hasattr(self.cfg, name)}
        return found if weight_decay is None else {**found, "weight_decay": weight_decay}

    def apply_gradients(self, gradients: Gradients) -> Updated:
        """Steps from gradients that a copy of this agent exported."""
        for name, gradient, rate in gradients.steps(self.device):
            self.step_optimizer(name, gradient, rate)
        return Updated(tree.to(gradients.metrics, self.device))

    def run_parallel(self, *steps: Callable[[], Any]) -> list[Any]:
        """Run independent steps at the same time; see `Parallel`."""
        return self._parallel.run(self.device, steps)

    def use_threads(self, count: int) -> None:
        """Let `run_parallel` use `count` threads on a CPU."""
        self._parallel.use_threads(count)

    # Experience

    @property
    def gamma(self) -> Gamma:
        """Discount factor: one number, or a tensor [num_envs]; applied when a batch is made, not at collection."""
        return getattr(self.cfg, "gamma", 1.0)

    def discounting(self) -> Discounting:
        """How rewards and discounts of a batch are made from a rollout."""
        return Discounting(self.gamma, self.spec.streams, self.separate_streams)

    def columns(self) -> dict[str, Array]:
        """Columns that components store with every row."""
        components: list[Any] = list(self.components.values())
        return {name: array for component in components for name, array in component.columns.items()}

    def replay_options(self) -> dict[str, Any]:
        """What the samples of a replay buffer depend on besides the settings; arguments of `data.replay.replay_of`."""
        return {
            "gamma": self.gamma,
            "separate_streams": self.separate_streams,
            "extras": self.columns(),
            "successors": self.successors,
            "goal_rewards": self.goal_rewards,
        }

    @property
    def successors(self) -> tuple[int, ...]:
        """How many steps ahead components look, beyond the next step of a sample."""
        components: list[Any] = list(self.components.values())
        return tuple(sorted({steps for one in components for steps in one.looks_ahead}))

    def encoder(self) -> nn.Module:
        """The module that maps prepared observations to features, and that the critic's optimizer trains."""
        return self.backbone_of("critic").encoder

    def backbone_of(self, network: str) -> Any:
        """The backbone of a network of this agent, or of the other where it has only one, or the one that all share."""
        found = (getattr(self, name, None) for name in (network, "critic", "actor"))
        net: Any = next(net for net in found if net is not None)
        return net.backbone if hasattr(net, "backbone") else self.backbone

    def pictures(self) -> dict[str, Tensor]:
        """Images to look at, uint8 [height, width, 1 or 3] by name; logged to TensorBoard with each evaluation."""
        components: list[Any] = list(self.components.values())
        return {name: image for component in components for name, image in component.pictures(self).items()}

    @property
    def off_policy(self) -> bool:
        """Whether this agent learns from replay."""
        return self._experience.off_policy

    @property
    def tolerates_stale_data(self) -> bool:
        """Whether collection may continue with older weights while an update runs."""
        return self.corrects_off_policy or self._experience.tolerates_stale_data

    @property
    def stride(self) -> int:
        """Rows between stored memories in a rollout."""
        return self._experience.stride(self)

    @property
    def stores_memory(self) -> bool:
        """Whether learning starts from the memory that acting had at that row."""
        return self._experience.stores_memory

    def stored(self, num_envs: int = 1) -> Tree:
        """The memory as it is stored with rollouts and in replay; empty if it is not."""
        return self.initial_memory(num_envs) if self.stores_memory else {}

    def check(self, rows: int) -> None:
        """Raise a `ConfigError` if the settings do not fit rollouts of `rows` rows or this agent."""
        self._experience.check(self, rows)

    def experience(self, generator: torch.Generator) -> Any:
        """What turns rollouts into batches for this agent; it samples with `generator`, on the device of the data."""
        return self._experience.build(self, generator)

    def replay_bytes(self) -> int:
        """Size of the replay buffer that `experience` allocates; 0 for on-policy agents."""
        return self._experience.replay_bytes(self)

    def observe(self, rollout: Batch) -> None:
        """Called with each new rollout: off-policy agents update their statistics of observations here."""
        self._experience.observe(self, rollout)

    def observe_rewards(self, rollout: Batch) -> None:
        """Update statistics of rewards, of an agent that has some apart from its updates."""
        return

    def forget(self, where: Tensor | None = None) -> None:
        """Drop what is known about unfinished episodes, because the next rows do not continue them.

        `where` [B] selects the environments; default: all.
        """
        for module in self.modules():
            if isinstance(module, ReturnScale):
                module.forget_(where)

    @staticmethod
    def of_one_run(name: str) -> bool:
        """Whether a tensor of `state_dict` stays with its run where others take over the weights: learning rates,
        progress, and returns of running episodes."""
        return name.startswith(("progress", "lr_")) or name.endswith(".running")

    def normalizer_values(self) -> dict[str, Any]:
        """Statistics of the module `observations`, if there is one, as plain numbers per key."""
        observations: Any = getattr(self, "observations", None)
        return {} if observations is None else observations.values()

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        """Absolute TD errors [T, B] of new rows, for their first priorities; see `HasCriticLoss`."""
        agent = cast(HasCriticLoss, self)
        batch = agent.observations.learn(batch, self.random("critic"))
        return agent.critic_loss(batch, agent.draw(batch))[1]

    @torch.no_grad()
    def refreshed(self, batch: Batch) -> dict[str, Tree]:
        """What the current networks give in place of stored values: with `refresh_memory` the memory before every
        `stride`-th row of a sequence except the first [K, B, ...]."""
        if not self.cfg.refresh_memory:
            return {}
        agent: Any = self
        batch = batch.replace(obs=agent.observations(batch.obs))
        stride = self.cfg.sequence_stride
        return {MEMORIES: {k: v for net in self.networks() for k, v in net.states(batch, stride).items()}}

    def advice(self, metrics: Mapping[str, float]) -> str | None:
        """A sentence about metrics that need the user's attention, shown once in a run; None: nothing to say."""
        return None

    # State

    def state(self) -> dict[str, Any]:
        """Everything that affects later training, as tensors and plain containers."""
        return {
            "module": dict(self.state_dict()),
            "optimizers": self.optimizer_state(),
            "updates": self.updates,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore in place: captured graphs and shared views stay valid."""
        self.load_state_dict(state["module"])
        self.load_optimizer_state(state["optimizers"])
        self.updates = int(state["updates"])

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        # torch reads a vector where one number belongs: of one entry, in 2.6 of any length.
        for name, own in self.state_dict().items():
            given = state_dict.get(name)
            if isinstance(given, Tensor) and not own.dim() and given.dim():
                raise RuntimeError(
                    f"{name} is one number, but has the shape {tuple(given.shape)} in the state"
                )
        return super().load_state_dict(state_dict, *args, **kwargs)

    def acting_tensors(self) -> list[Tensor]:
        """Every tensor that acting reads, in a fixed order."""
        if not self.acts_with:
            return [*self.parameters(), *self.buffers()]
        modules = [getattr(self, name) for name in self.acts_with]
        modules += [backbone for module in modules for backbone in getattr(module, "reads", ())]
        follow: list[Any] = [net for net in self.networks() if getattr(net, "follows", False)]
        modules += [net.backbone for net in follow if net.backbone not in modules]
        components: list[Any] = list(self.components.values())
        modules += [component for component in components if component.acts]
        return [self.progress, *(t for module in modules for t in (*module.parameters(), *module.buffers()))]

    def state_tensors(self) -> list[Tensor]:
        """Every tensor that an update may change."""
        states = [state for states in self.optimizer_state().values() for state in states]
        return [*self.parameters(), *self.buffers(), *(t for state in states for t in state.values())]
