"""What an actor is, wherever it runs: environments, a copy of the policy, and rollouts that are handed over as trajectories."""

import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector, Storage, acting
from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.data.config import ReplayConfig
from whorl.distributed.payload import Gradients, Payload, PrioritizedRowsPayload, Rows
from whorl.envs.make import Source
from whorl.settings.run import RunConfig

Kind: TypeAlias = Literal["rows", "priorities", "gradients"]
CARGOES: dict[Kind, type[Rows | PrioritizedRowsPayload | Gradients]] = {
    "rows": Rows,
    "priorities": PrioritizedRowsPayload,
    "gradients": Gradients,
}


@dataclass
class Trajectory:
    """One rollout of one actor."""

    tensors: dict[str, Any]
    """as the actor's `Payload` has them; its next rollouts may overwrite them, so copy them before releasing the trajectory"""
    actor: int
    life: int
    """how often this actor was replaced before"""
    number: int
    """of this life's rollouts, from 0"""
    version: int
    """of the weights that acted"""
    seen: dict[str, float]
    """steps and episodes, as a `EpisodeStatistics` counts them"""
    seconds: float
    """it took to collect"""

    @property
    def follows(self) -> tuple[int, int, int]:
        """The trajectory that this one goes on from."""
        return self.actor, self.life, self.number - 1

    @property
    def name(self) -> tuple[int, int, int]:
        return self.actor, self.life, self.number


@dataclass(frozen=True)
class Role:
    """What every actor of a run is told; pickled by whoever starts it."""

    agent: Agent
    source: Source
    num_envs: int
    """of each actor"""
    steps: int
    gamma: float
    carries: Kind = "rows"
    on_gpu: bool = False

    def weights(self, agent: Agent) -> list[Tensor]:
        """What an actor must know of the learner's agent: what acting reads, or all where it learns or appraises."""
        return agent.acting_tensors() if self.carries == "rows" else [*agent.parameters(), *agent.buffers()]

    def payload(self, storage: Storage | None = None, seed: int = 0) -> Payload:
        """What travels; without a storage one is made, to see what it looks like. `seed` is for what it draws."""
        storage = storage or Storage.allocate(self.agent, self.num_envs, self.steps)
        return CARGOES[self.carries](self.agent, storage, self.gamma, seed)


class ActorProcess:
    """Collects rollout after rollout with the newest weights it has been given.

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
        num_envs = role.source.vector(role.num_envs, device)
        self.collector = Collector(num_envs, self.agent, role.steps, role.gamma, generator, numbers=numbers)
        self.collector.reset(env)
        self.payload = role.payload(self.collector.storage, act)
        self.number = 0

    @property
    def tensors(self) -> dict[str, Tree]:
        """What travels of the last rollout."""
        return self.payload.tensors

    def roll(self, random: bool) -> dict[str, Any]:
        """One rollout, and all that is made of it here; what a trajectory says of it."""
        began = time.perf_counter()
        with acting(self.agent.device):
            rollout = self.collector.collect(random=random)
            seen = self.collector.episode_statistics.drain()
        self.payload.load(rollout)
        self.number += 1
        return {"number": self.number - 1, "seen": seen, "seconds": time.perf_counter() - began}

    def close(self) -> None:
        self.collector.env.close()


def envs_per_batch(run: RunConfig) -> int:
    """Environments of a batch: all, or those of as many rollouts of actors as make one up."""
    return (
        run.trajectories_per_batch * (run.num_envs // run.actors)
        if run.trajectories_per_batch and run.actors
        else run.num_envs
    )


def check_actors(run: RunConfig, agent: Agent) -> None:
    """Raise where settings of actors do not fit, or would have no effect: theirs without any, others' beside them."""
    if not run.actors:
        if run.ray and run.learners == 1:
            raise ConfigError(f"ray is {run.ray!r}, but nothing would run there; set actors or learners")
        for name in ("actor_gradients", "actors_on_gpu", "max_lag", "trajectories_per_batch"):
            if getattr(run, name) != getattr(RunConfig, name):
                raise ConfigError(
                    f"{name} is {getattr(run, name)!r}, but there are no actors; set actors, or leave it out"
                )
        return
    if run.num_envs % run.actors:
        raise ConfigError(
            f"{run.actors} actors can't share {run.num_envs} environments evenly; use {run.num_envs // run.actors * run.actors} "
            f"or {(run.num_envs // run.actors + 1) * run.actors} environments, or other actors"
        )
    if run.hold_policy:
        raise ConfigError("hold_policy is for environments that the loop waits for; leave it or actors out")
    if run.actor_gradients != "none" and run.max_lag >= 0:
        raise ConfigError(
            f"max_lag is {run.max_lag}, but actors whose gradients travel wait until theirs are applied; leave it out"
        )
    if run.workers > 0:
        raise ConfigError(
            f"workers is {run.workers}, but actors step their environments themselves; leave it out"
        )
    if run.env_device.startswith("cuda"):
        raise ConfigError(f"env_device is {run.env_device!r}, but actors act; use actors_on_gpu")
    if run.actors_on_gpu and not run.ray and not torch.cuda.is_available():
        raise ConfigError("actors_on_gpu is true, but torch sees no GPU here; leave it out")
    if run.actors_on_gpu and run.ray and run.learners > 1:
        raise ConfigError(
            "actors_on_gpu shares all GPUs of a Ray cluster out, and none is left for several learners; leave one of "
            "them out"
        )
    if run.trajectories_per_batch:
        _check_slabs(run, agent)


def _check_slabs(run: RunConfig, agent: Agent) -> None:
    waits = run.max_lag == 0 or (run.max_lag < 0 and not agent.tolerates_stale_data)
    for reason, met in {
        f"{run.trajectories_per_batch} are more than the {run.actors} actors": run.trajectories_per_batch
        > run.actors,
        "replay takes rows of all environments in": isinstance(agent.cfg, ReplayConfig),
        "gradients travel by themselves": run.actor_gradients != "none",
        "these actors wait for each update": waits,
        "normalize_reward follows each environment": getattr(agent.cfg, "normalize_reward", False),
    }.items():
        if met:
            raise ConfigError(
                f"trajectories make up a batch of some of the actors, but {reason}; leave trajectories out"
            )
