"""Rollouts from a fleet, in the order in which they come: the collector of asynchronous training.

The loop asks for a rollout of all environments; what it gets is one trajectory for every actor's share of the environments, by whoever was
first. So nobody waits for a slow actor, a fast one may have two trajectories in a batch, and weights are as old as they are:
each trajectory says which version acted, and one that is too old is dropped. For algorithms that can't bear lag actors wait
for every version instead.
"""

import time
from collections import deque
from typing import Any

import torch

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector, Storage
from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.gradients import Gradients
from whorl.data.initial_priorities import completed
from whorl.data.replay import FIRST, view_of
from whorl.distributed.actor import Role, Trajectory
from whorl.distributed.fleet import Fleet

SHOWN = 8
"""actors whose own speed is told"""
PATIENCE = 30.0
"""seconds that those who wait for each other wait, at first, until all have started"""


class FleetCollector(Collector):
    """Fills rollouts of all environments with trajectories of each actor's share.

    Args:
        agent: the policy's copy whose weights are published.
        max_lag: how many versions old the weights of a trajectory may be; None: any age will do; 0: actors wait for each
            version, and each is in every rollout once.
        trajectories: that make up a rollout; 0: as many as there are actors.
    """

    episode_statistics: "Sums"
    gaps: torch.Tensor

    def __init__(
        self, fleet: Fleet, role: Role, agent: Agent, actors: int, max_lag: int | None, trajectories: int = 0
    ) -> None:
        self.fleet, self.role, self.agent, self.max_lag = fleet, role, agent, max_lag
        self.num_envs, self.steps = role.num_envs, role.steps
        self.episode_statistics = Sums()
        self.version, self._actors = 0, actors
        shares = trajectories or actors
        self.gaps = torch.zeros(shares * role.num_envs, dtype=torch.bool)
        """environments whose rows do not go on from those of the rollout before"""
        self._held: list[tuple[int, int, int]] = [(-1, 0, 0)] * shares
        """the trajectory that each share of the environments held last"""
        self._unbroken = [0] * shares
        """trajectories before that one which it and others go on from"""
        self._ready: deque[Trajectory] = deque()
        self._taken: list[Trajectory] = []
        """trajectories whose actors wait for the next version"""
        self._met, self._standing_in = False, 0
        self._replaced = self._lived = 0
        """replacements before this sitting, and lives that were over by then"""
        self._told: dict[str, list[float]] = {}
        self._sent = 0
        self._allocate(shares * role.num_envs)

    def _allocate(self, num_envs: int) -> None:
        self.storage = Storage.allocate(self.agent, num_envs, self.steps)
        self._tensors: dict[str, Tree] = dict(self.storage.tensors)
        if self.role.carries == "priorities":
            # How many of a trajectory's samples began in trajectories before.
            self._earlier = view_of(self.agent.cfg).span // view_of(self.agent.cfg).stride
            self._completed = completed(self.agent.cfg, self.steps)
            self._tensors[FIRST] = torch.full((self._completed, num_envs), torch.nan)

    def reset(self, seed: int) -> None:
        """Actors start their environments themselves."""

    def start(self, random: bool = False) -> None:
        """Send the weights out; actors go on with them at their next rollout."""
        self.version += 1
        self.fleet.publish(self.role.weights(self.agent), self.version, random)
        for trajectory in self._taken:
            self.fleet.release(trajectory)
        self._taken.clear()
        self._standing_in = 0

    def finish(self, cut: bool = False) -> Any:
        """A rollout of all environments, as soon as it is there."""
        began = time.perf_counter()
        free = set(range(len(self._held)))
        while free:
            self._put(self._next(), free)
        self._tell("waited", time.perf_counter() - began)
        return self.rollout()

    def rollout(self) -> Batch:
        """What the environments hold now."""
        batch = self.storage.batch()
        if FIRST in self._tensors:
            batch = batch.replace(extras={**batch.extras, FIRST: self._tensors[FIRST]})
        return batch

    def _next(self) -> Trajectory:
        """A trajectory that is young enough; what is wanted of it must be copied at once."""
        began = time.perf_counter()
        while True:
            while not self._ready:
                self._ready.extend(self.fleet.poll(1.0))
                self._stand_in(time.perf_counter() - began)
            self._tell("queue", len(self._ready) - 1)
            trajectory = self._ready.popleft()
            lag = self.version - trajectory.version if trajectory.version else 0
            if self.max_lag is None or lag <= self.max_lag:
                self._tell("lag", lag)
                self._count(trajectory)
                return trajectory
            self._tell("dropped", trajectory.seen["steps"])
            self.fleet.release(trajectory)

    def _stand_in(self, waited: float) -> None:
        """Where actors wait for each other, and some have no place to run: others collect their shares too."""
        missing = self._actors - self.fleet.alive()
        self._met = self._met or not missing or waited > PATIENCE
        if self._met and not self._ready and self._taken and self._standing_in < missing:
            self._standing_in += 1
            self.fleet.release(self._taken.pop(0))

    def _count(self, trajectory: Trajectory) -> None:
        self.episode_statistics.add(trajectory.seen)
        self._tell(
            "bytes", sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(trajectory.tensors))
        )
        if trajectory.actor < SHOWN:
            self._tell(
                f"actor_{trajectory.actor}/steps_per_second", trajectory.seen["steps"] / trajectory.seconds
            )
            if trajectory.seen.get("episodes"):
                self._tell(
                    f"actor_{trajectory.actor}/return",
                    trajectory.seen["return"] / trajectory.seen["episodes"],
                )

    def _done_with(self, trajectory: Trajectory) -> None:
        if self.max_lag == 0:
            self._taken.append(trajectory)
        else:
            self.fleet.release(trajectory)

    def _put(self, trajectory: Trajectory, free: set[int]) -> None:
        """Into the environments that held what it goes on from, where they are free, else into its own, else into any."""
        own = trajectory.actor if trajectory.actor in free else min(free)
        place = next((at for at in free if self._held[at] == trajectory.follows), own)
        free.remove(place)
        num_envs = slice(place * self.num_envs, (place + 1) * self.num_envs)
        tree.map(lambda into, value: into[:, num_envs].copy_(value), self._tensors, trajectory.tensors)
        gap = self._held[place] != trajectory.follows
        self.gaps[num_envs] = gap
        self._unbroken[place] = 0 if gap else self._unbroken[place] + 1
        if FIRST in self._tensors:
            # Of samples that began before a gap the actor saw other rows.
            lost = max(0, self._earlier - self._unbroken[place] * self._completed)
            self._tensors[FIRST][:lost, num_envs] = torch.nan
        self._held[place] = trajectory.name
        self._done_with(trajectory)

    def _tell(self, name: str, value: float) -> None:
        self._told.setdefault(name, []).append(value)

    def metrics(self) -> dict[str, float]:
        """What the fleet did since the last call."""
        told, self._told = self._told, {}
        lags, queue = told.pop("lag", [0.0]), told.pop("queue", [0.0])
        sent, self._sent = self.fleet.sent - self._sent, self.fleet.sent
        found = {
            "actors/alive": float(self.fleet.alive()),
            "actors/replaced": float(self.replaced),
            "actors/lag": sum(lags) / len(lags),
            "actors/lag_max": max(lags),
            "actors/dropped_steps": sum(told.pop("dropped", [])),
            "actors/queue": sum(queue) / len(queue),
            "actors/bytes_in": float(sum(told.pop("bytes", []))),
            "actors/bytes_out": float(sent),
            "time/waited_for_actors": sum(told.pop("waited", [])),
        }
        return found | {name: sum(each) / len(each) for name, each in told.items()}

    @property
    def replaced(self) -> int:
        """How many actors were, earlier sittings of a resumed run included."""
        return self._replaced + sum(self.fleet.lives) - self._lived

    def close(self) -> None:
        self.fleet.stop()

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "lives": [life + 1 for life in self.fleet.lives],
            "replaced": self.replaced,
            "episode_statistics": self.episode_statistics.sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Actors begin new episodes: which rollouts were under way is not repeated."""
        self.version, self.fleet.lives = int(state["version"]), [int(life) for life in state["lives"]]
        self._replaced, self._lived = int(state["replaced"]), sum(self.fleet.lives)
        self.episode_statistics.sums = dict(state["episode_statistics"])


class GradientCollector(FleetCollector):
    """Takes gradients: those of whoever is first, or of each actor once. Actors wait until theirs are applied."""

    def __init__(self, fleet: Fleet, role: Role, agent: Agent, actors: int, averaged: bool) -> None:
        self._wanted = actors if averaged else 1
        super().__init__(fleet, role, agent, actors, 0 if averaged else None)

    def _allocate(self, num_envs: int) -> None:
        """There are no rows."""

    def finish(self, cut: bool = False) -> list[Gradients]:
        """As soon as they are there."""
        began = time.perf_counter()
        found = []
        for _ in range(self._wanted):
            trajectory = self._next()
            tensors = tree.clone(trajectory.tensors)
            found.append(Gradients(tensors["steps"], tensors["metrics"]))
            self._taken.append(trajectory)
        self._tell("waited", time.perf_counter() - began)
        return found


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


class RemoteEnvs:
    """In place of an environment that this process steps: there is none, and nothing of it to save."""

    snapshots = True
    capturable = False

    def __init__(self, id: str) -> None:
        self.id = id

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Actors start anew."""

    def close(self) -> None:
        """Nothing was opened."""
