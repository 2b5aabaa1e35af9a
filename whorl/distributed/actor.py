"""The actor: environments, a copy of the policy, and trajectories for the learner or for replay shards.

What a trajectory holds is its payload: the rows of a rollout, rows with initial priorities (Ape-X), or gradients (A3C).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import cloudpickle
import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.collect.collector import Storage, acting
from whorl.collect.episodes import Episode
from whorl.collect.waiting import collector_for
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.initial_priorities import InitialPriorities
from whorl.data.replay import FIRST
from whorl.distributed.hang_timer import HangTimer, Report
from whorl.distributed.pool import make_vector
from whorl.distributed.remote import Slots, Weights
from whorl.distributed.tensors import Layout, layout_of
from whorl.envs.make import Source
from whorl.nets.normalize import ReturnScale
from whorl.settings.run import RunConfig

PayloadKind: TypeAlias = Literal["rows", "priorities", "gradients"]


@dataclass
class Trajectory:
    """One rollout of one actor, as the learner receives it."""

    tensors: dict[str, Tree]
    """the payload, valid until the trajectory is released; empty if replay shards read it directly"""
    actor: int
    life: int
    """how often this actor was replaced before"""
    number: int
    """counts the rollouts of this life, from 0"""
    version: int
    """of the weights that acted"""
    seen: dict[str, float]
    """steps and episodes, as `EpisodeStatistics` counts them"""
    seconds: float
    """time to collect it"""
    slot: int = 0
    """where the actor wrote it"""
    token: Any = None
    """what `Slots.read` takes to read it"""
    ended: list[Episode] = field(default_factory=list)
    """the episodes that ended in it, if the role records them"""

    @property
    def previous(self) -> tuple[int, int, int]:
        """The name of the trajectory that this one continues."""
        return self.actor, self.life, self.number - 1

    @property
    def name(self) -> tuple[int, int, int]:
        return self.actor, self.life, self.number


class Payload(Protocol):
    """Makes what is sent out of a rollout."""

    example: dict[str, Tree]
    """tensors with the shapes and dtypes of every payload"""

    def make(self, rollout: Batch) -> dict[str, Tree]:
        """The tensors to send."""


class RowsPayload:
    """The rows of the rollout."""

    def __init__(self, agent: Agent, rollout: Batch, seed: int) -> None:
        self.example = rollout.tensors()

    def make(self, rollout: Batch) -> dict[str, Tree]:
        return rollout.tensors()


class PrioritizedRowsPayload:
    """The rows, and the TD errors of the samples that they complete, by the actor's copy of the agent (Ape-X)."""

    def __init__(self, agent: Agent, rollout: Batch, seed: int) -> None:
        if agent.separate_streams:
            raise ConfigError(
                f"priority_on_add with actors computes priorities before there are intrinsic rewards, which "
                f"{type(agent).__name__} learns from separately; leave priority_on_add out"
            )
        _prepare(agent, seed)
        steps, num_envs = rollout.shape
        spec = agent.spec.with_num_envs(num_envs)
        # What components add at the learner is not there yet.
        extras = {name: array for name, array in agent.columns().items() if name in rollout.extras}
        own = (agent.errors, agent.stored(), steps, extras, agent.successors)
        self._priorities = InitialPriorities(agent.cfg, spec, agent.device, *own)
        self.example = _with_priorities(rollout, self._priorities.empty())

    def make(self, rollout: Batch) -> dict[str, Tree]:
        return _with_priorities(rollout, self._priorities.add(rollout))


class GradientsPayload:
    """The update that the rollout would give: each optimizer's clipped gradients and learning rate (A3C).

    The actor's own weights do not change: new ones come from the learner.
    """

    _remedy: ClassVar[str] = "leave actor_gradients out"

    def __init__(self, agent: Agent, rollout: Batch, seed: int) -> None:
        self.agent = agent
        _prepare(agent, seed)
        self._found: dict[str, dict[str, Tree]] = {}
        agent.export_gradients(self._keep)
        if agent.off_policy:
            raise ConfigError(
                "actor_gradients is for algorithms that learn from each rollout once, but "
                f"{type(agent).__name__} learns from replay; {self._remedy}"
            )
        listed = {id(value) for values in agent.parameters_of().values() for value in values}
        if any(id(value) not in listed for value in agent.trained().values()):
            raise ConfigError(
                f"actor_gradients sends the gradients of optimizers, but {type(agent).__name__} moves some weights "
                f"without one; {self._remedy}"
            )
        for setting in ("normalize_obs", "normalize_reward"):
            if getattr(agent.cfg, setting, False):
                raise ConfigError(
                    f"{setting} needs the rows of all actors, but with actor_gradients each actor sees only its own; "
                    f"leave {setting} out, or {self._remedy}"
                )
        if agent.components:
            raise ConfigError(
                f"actor_gradients computes updates in the actors, but components ({', '.join(agent.components)}) learn "
                f"at the learner; leave components out, or {self._remedy}"
            )
        made = self.make(rollout)
        metrics = {name: torch.zeros_like(value) for name, value in made["metrics"].items()}
        self.example = {**made, "metrics": metrics}

    def make(self, rollout: Batch) -> dict[str, Tree]:
        self._found = {}
        updated = self.agent.update(self.agent.discounting().apply(rollout))
        return {"steps": self._found, "metrics": updated.metrics}

    def _keep(self, name: str, gradients: Sequence[Tensor], rate: Tensor) -> None:
        if name in self._found:
            raise ConfigError(
                f"an update of {type(self.agent).__name__} takes several steps of its {name} optimizer, each from the "
                f"weights that the last one gave, but actors can send the gradients of one step only; {self._remedy}"
            )
        numbered = {str(number): gradient for number, gradient in enumerate(gradients)}
        self._found[name] = {"gradient": numbered, "rate": rate.clone()}


def _with_priorities(rollout: Batch, first: Tensor) -> dict[str, Tree]:
    return rollout.replace(extras={**rollout.extras, FIRST: first}).tensors()


def _prepare(agent: Agent, seed: int) -> None:
    """Give the updates of an actor their own random streams."""
    numbers = count(seed)
    agent.prepare(agent.device, lambda name: torch.Generator(agent.device).manual_seed(next(numbers)))


PAYLOADS: dict[PayloadKind, type[RowsPayload | PrioritizedRowsPayload | GradientsPayload]] = {
    "rows": RowsPayload,
    "priorities": PrioritizedRowsPayload,
    "gradients": GradientsPayload,
}


@dataclass(frozen=True)
class Role:
    """What all actors of a run have in common."""

    agent: Agent
    source: Source
    num_envs: int
    """environments of each actor"""
    steps: int
    sends: PayloadKind = "rows"
    on_gpu: bool = False
    timeout: float = 0.0
    """seconds within which each step has to return, or the actor is replaced; 0: no limit"""
    records_episodes: bool = False
    workers: int = 0
    """processes of each actor that step its environments; with two environments or more for each of them, one half is
    stepped while the policy acts for the other; 0: the actor steps them itself"""

    def weights(self, agent: Agent) -> list[Tensor]:
        """The tensors that actors need: what acting reads, or all of them if actors compute updates or TD errors."""
        return agent.acting_tensors() if self.sends == "rows" else [*agent.parameters(), *agent.buffers()]

    @cached_property
    def layout(self) -> Layout:
        """Shapes and dtypes of a payload."""
        return layout_of(self.payload().example)

    def payload(self, rollout: Batch | None = None, seed: int = 0) -> Payload:
        """Makes payloads for rollouts shaped like `rollout`; `seed` is for what an update draws."""
        if rollout is None:
            rollout = Storage.allocate(self.agent, self.num_envs, self.steps).batch()
        return PAYLOADS[self.sends](self.agent, rollout, seed)


class ActorProcess:
    """Collects one rollout after another.

    Args:
        number: of this actor, from 0.
        seeds: of its random stream and of its environments.
    """

    def __init__(self, role: Role, number: int, seeds: tuple[int, int]) -> None:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        if role.on_gpu and torch.cuda.is_available():
            device = torch.device("cuda", number % torch.cuda.device_count())
        act, env = seeds
        self.agent = role.agent.to(device)
        self.weights = role.weights(self.agent)
        generator = torch.Generator(device).manual_seed(act)
        numbers = range(number * role.num_envs, (number + 1) * role.num_envs)
        vector = make_vector(role.source, role.num_envs, device, role.workers, timeout=role.timeout)
        collector = collector_for(vector)
        self.collector = collector(vector, self.agent, role.steps, generator, numbers=numbers)
        self.collector.reset(env)
        self.collector.episode_statistics.record = role.records_episodes
        # Workers are watched by their pool.
        self._timeout = 0.0 if role.workers else role.timeout
        self._stepper = getattr(vector, "stepper", None)
        self._rolling, self._share = False, 0.0
        self.collector.watch = self._made_step
        self.payload = role.payload(self.collector.storage.batch(), act)
        self.number = 0

    def roll(self, random: bool) -> tuple[dict[str, Any], dict[str, Tree]]:
        """One rollout: the fields of its `Trajectory`, and the payload."""
        began = time.perf_counter()
        statistics = self.collector.episode_statistics
        if not self.number:
            # The weights came after the reset: components remember the first observations as these weights embed them.
            self.collector.begin(tree.index(self.collector.storage.obs, self.collector.steps))
        self._rolling = True
        with acting(self.agent.device):
            rollout = self.collector.collect(random=random)
            seen = statistics.drain()
        self._rolling = False
        ended, statistics.ended = statistics.ended, []
        tensors = self.payload.make(rollout)
        self.number += 1
        seconds = time.perf_counter() - began
        return {"number": self.number - 1, "seen": seen, "ended": ended, "seconds": seconds}, tensors

    def watch_hangs(self, report: Report) -> None:
        """Report a step that takes longer than the role allows."""
        HangTimer(self._timeout, self._under_way, self._where, report, ends=True)

    def _made_step(self, share: float) -> None:
        self._share = share

    def _under_way(self) -> Any:
        """Changes with every step of a rollout."""
        steps = None if self._stepper is None else self._stepper.under_way()
        return (self.number, self._share, steps) if self._rolling else None

    def _where(self) -> str:
        stepper = self._stepper
        return "a step" if stepper is None or stepper.under_way() is None else stepper.where()

    def close(self) -> None:
        self.collector.env.close()


class RemoteActor:
    """An actor as a remote object: it reads published weights and writes its trajectories to slots."""

    def __init__(
        self, role: bytes, number: int, seeds: tuple[int, int], slots: Slots, weights: Weights
    ) -> None:
        self.actor = ActorProcess(cloudpickle.loads(role), number, seeds)
        self.slots, self.weights = slots, weights

    def roll(self, slot: int, weights: Any, random: bool) -> tuple[dict[str, Any], Any]:
        """One rollout with the newest weights; returns the fields of its `Trajectory` and the token of its payload."""
        with torch.no_grad():
            version = self.weights.read(self.actor.weights, weights)
        fields, tensors = self.actor.roll(random)
        with torch.no_grad():
            token = self.slots.write(slot, tensors)
        return {**fields, "version": version, "slot": slot}, token

    def watch_hangs(self, report: Report) -> None:
        self.actor.watch_hangs(report)

    def close(self) -> None:
        self.actor.close()


def envs_per_batch(run: RunConfig) -> int:
    """Environments of a batch: all of them, or those of `trajectories_per_batch` actors."""
    if run.trajectories_per_batch and run.actors:
        return run.trajectories_per_batch * (run.num_envs // run.actors)
    return run.num_envs


def check_actors(run: RunConfig, agent: Agent) -> None:
    """Raise if the settings for actors contradict each other or would have no effect."""
    if not run.actors:
        if run.ray and run.learners == 1:
            raise ConfigError(
                f"ray is {run.ray!r}, but there are no actors or learners to run there; set actors or learners"
            )
        for name in ("actor_gradients", "actors_on_gpu", "max_lag", "trajectories_per_batch"):
            if getattr(run, name) != getattr(RunConfig, name):
                raise ConfigError(
                    f"{name} is {getattr(run, name)!r}, but there are no actors; set actors, or leave {name} out"
                )
        return
    share = run.num_envs // run.actors
    if run.num_envs % run.actors:
        raise ConfigError(
            f"{run.actors} actors can't share {run.num_envs} environment{'s'[: run.num_envs != 1]} evenly; use "
            f"{f'{share * run.actors} or ' if share else ''}{(share + 1) * run.actors} environments, or another number "
            "of actors"
        )
    if run.hold_policy:
        raise ConfigError("hold_policy does not work with actors; leave one of them out")
    if run.actor_gradients != "none" and run.max_lag >= 0:
        raise ConfigError(
            f"max_lag is {run.max_lag}, but actors that send gradients wait until these are applied; leave max_lag out"
        )
    if run.acting == "workers":
        raise ConfigError("acting is workers, but with actors these act; leave acting out")
    if run.workers > share:
        raise ConfigError(
            f"workers is {run.workers} for each actor, which has {share} environment{'s'[: share != 1]}; choose 0 to "
            f"{share}, or more environments"
        )
    if run.env_device.startswith("cuda"):
        raise ConfigError(
            f"env_device is {run.env_device!r}, but actors collect on their own devices; use actors_on_gpu"
        )
    if run.actors_on_gpu and not run.ray and not torch.cuda.is_available():
        raise ConfigError("actors_on_gpu is true, but torch sees no GPU here; leave it out")
    if run.actors_on_gpu and run.ray and run.learners > 1:
        raise ConfigError(
            "actors_on_gpu gives all GPUs of a Ray cluster to actors, and none is left for learners; use one of them"
        )
    if run.trajectories_per_batch:
        _check_trajectories(run, agent)


def _check_trajectories(run: RunConfig, agent: Agent) -> None:
    waits = run.max_lag == 0 or (run.max_lag < 0 and not agent.tolerates_stale_data)
    for reason, met in {
        f"there are only {run.actors} actors": run.trajectories_per_batch > run.actors,
        "a replay buffer adds rows of all environments together": agent.off_policy,
        "actors send gradients, not trajectories": run.actor_gradients != "none",
        "these actors wait for each update": waits,
        "normalize_reward needs every environment in each batch": getattr(
            agent.cfg, "normalize_reward", False
        ),
        **{
            f"normalize of the component {name} needs every environment in each batch": _follows_returns(part)
            for name, part in agent.components.items()
        },
    }.items():
        if met:
            raise ConfigError(
                f"trajectories_per_batch is {run.trajectories_per_batch}, but {reason}; leave it out"
            )


def _follows_returns(component: nn.Module) -> bool:
    """Whether it divides its reward by the deviation of a return, which is followed in each environment."""
    return any(isinstance(module, ReturnScale) and module.enabled for module in component.modules())
