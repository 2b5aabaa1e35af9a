"""Rollouts from a fleet, in the order in which they come: the collector of asynchronous training.

The loop asks for a rollout of all lanes; what it gets is one slab for every actor's share of the lanes, by whoever was
first. So nobody waits for a slow actor, a fast one may have two slabs in a batch, and weights are as old as they are:
each slab says which version acted, and one that is too old is dropped.
"""

import time
from collections import deque
from typing import Any

import torch

from whorl import tree
from whorl.agent import Agent
from whorl.experience.batch import Batch
from whorl.run.actors import Slab
from whorl.run.collector import Storage
from whorl.run.fleet import Fleet

SHOWN = 8
"""actors whose own speed is told"""


class FleetCollector:
    """Fills rollouts of `actors * lanes` lanes with slabs of `lanes`.

    Args:
        agent: the policy's copy whose weights are published.
        max_lag: how many versions old the weights of a slab may be; 0: any age will do.
    """

    def __init__(
        self, fleet: Fleet, agent: Agent, actors: int, lanes: int, steps: int, gamma: float, max_lag: int
    ) -> None:
        self.fleet, self.agent, self.lanes, self.gamma, self.max_lag = fleet, agent, lanes, gamma, max_lag
        self.steps = steps
        self.storage = Storage.allocate(agent, actors * lanes, steps)
        self.tally = Sums()
        self.version = 0
        self.gaps = torch.zeros(actors * lanes, dtype=torch.bool)
        """lanes whose rows do not go on from those of the rollout before"""
        self._held: list[tuple[int, int, int]] = [(-1, 0, 0)] * actors
        """the slab that each share of the lanes held last"""
        self._ready: deque[Slab] = deque()
        self._told: dict[str, list[float]] = {}

    def reset(self, seed: int) -> None:
        """Actors start their lanes themselves."""

    def start(self, random: bool = False) -> None:
        """Send the weights out; actors go on with them at their next rollout."""
        self.version += 1
        self.fleet.publish(self.agent.acting_tensors(), self.version, random)

    def finish(self, cut: bool = False) -> Batch:
        """A rollout of all lanes, as soon as it is there."""
        began = time.perf_counter()
        free = set(range(len(self._held)))
        while free:
            slab = self._next()
            lag = self.version - slab.version
            if slab.version == 0 or not self.max_lag or lag <= self.max_lag:
                self._put(slab, free)
                self._tell("lag", lag if slab.version else 0)
            else:
                self._tell("dropped", slab.seen["steps"])
            self.fleet.release(slab)
        self._tell("waited", time.perf_counter() - began)
        return self.storage.batch(self.gamma)

    def _next(self) -> Slab:
        while not self._ready:
            self._ready.extend(self.fleet.poll(1.0))
        self._tell("queue", len(self._ready) - 1)
        return self._ready.popleft()

    def _put(self, slab: Slab, free: set[int]) -> None:
        """Into the lanes that held what it goes on from, where they are free, else into any."""
        place = next((at for at in free if self._held[at] == slab.follows), min(free))
        free.remove(place)
        lanes = slice(place * self.lanes, (place + 1) * self.lanes)
        tree.map(lambda into, value: into[:, lanes].copy_(value), self.storage.tensors, slab.tensors)
        self.gaps[lanes] = self._held[place] != slab.follows
        self._held[place] = slab.name
        self.tally.add(slab.seen)
        if slab.actor < SHOWN:
            self._tell(f"actor_{slab.actor}", slab.seen["steps"] / slab.seconds)

    def _tell(self, name: str, value: float) -> None:
        self._told.setdefault(name, []).append(value)

    def metrics(self) -> dict[str, float]:
        """What the fleet did since the last call."""
        told, self._told = self._told, {}
        lags = told.pop("lag", [0.0])
        found = {
            "actors/alive": float(self.fleet.alive()),
            "actors/replaced": float(sum(self.fleet.lives)),
            "actors/lag": sum(lags) / len(lags),
            "actors/lag_max": max(lags),
            "actors/dropped_steps": sum(told.pop("dropped", [])),
            "actors/queue": sum(told.get("queue", [0.0])) / max(len(told.pop("queue", [])), 1),
            "time/waited_for_actors": sum(told.pop("waited", [])),
        }
        return found | {f"{name}/steps_per_second": sum(each) / len(each) for name, each in told.items()}

    def close(self) -> None:
        self.fleet.stop()

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "lives": [life + 1 for life in self.fleet.lives],
            "tally": self.tally.sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Actors begin new episodes: which rollouts were under way is not repeated."""
        self.version, self.fleet.lives = int(state["version"]), [int(life) for life in state["lives"]]
        self.tally.sums = dict(state["tally"])


class Sums:
    """What actors counted, added up."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, seen: dict[str, float]) -> None:
        for name, value in seen.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def forget(self) -> None:
        """Open episodes are the actors' own."""

    def drain(self) -> dict[str, float]:
        """Sums since the last call."""
        found, self.sums = self.sums, {}
        return found


class Elsewhere:
    """In place of an environment that this process steps: there is none, and nothing of it to save."""

    snapshots = True

    def __init__(self, id: str) -> None:
        self.id = id

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Actors start anew."""

    def close(self) -> None:
        """Nothing was opened."""
