"""What an actor is, wherever it runs: lanes, a copy of the policy, and rollouts that are handed over as slabs."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from whorl.agent import Agent
from whorl.envs.gymnasium import GymnasiumVector
from whorl.envs.lanes import Lanes
from whorl.run.collector import Collector, acting


@dataclass
class Slab:
    """One rollout of one actor."""

    tensors: dict[str, Any]
    """as `Storage` has them; views that the actor's next rollouts may overwrite, so copy them before polling again"""
    actor: int
    life: int
    """how often this actor was replaced before"""
    number: int
    """of this life's rollouts, from 0"""
    version: int
    """of the weights that acted"""
    seen: dict[str, float]
    """steps and episodes, as a `Tally` counts them"""
    seconds: float
    """it took to collect"""

    @property
    def follows(self) -> tuple[int, int, int]:
        """The slab that this one goes on from."""
        return self.actor, self.life, self.number - 1

    @property
    def name(self) -> tuple[int, int, int]:
        return self.actor, self.life, self.number


@dataclass(frozen=True)
class Role:
    """What every actor of a run is told; pickled by whoever starts it."""

    agent: Agent
    id: str
    steps: int
    gamma: float


class ActorBody:
    """Collects rollout after rollout with the newest weights it has been given."""

    def __init__(self, role: Role, lanes: Lanes, numbers: list[int], seed: int) -> None:
        torch.set_num_threads(1)
        env = GymnasiumVector.over(lanes, role.id)
        generator = torch.Generator().manual_seed(seed)
        self.agent = role.agent
        self.collector = Collector(env, self.agent, role.steps, role.gamma, generator, numbers=numbers)
        self.collector.reset(seed)
        self.number = 0

    def roll(self, random: bool) -> dict[str, Any]:
        """One rollout into the collector's storage; what a slab says of it."""
        began = time.perf_counter()
        with acting(self.agent.device):
            self.collector.collect(random=random)
            seen = self.collector.tally.drain()
        self.number += 1
        return {"number": self.number - 1, "seen": seen, "seconds": time.perf_counter() - began}
