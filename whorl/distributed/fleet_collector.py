"""The collector that reads the trajectories of a fleet of actors.

A rollout consists of one trajectory for every actor's share of the environments, first come first served: nobody waits
for a slow actor, and a fast one may have two trajectories in a batch. Each trajectory carries the version of the
weights that acted, and one that is too old is dropped. With `max_lag` 0 actors wait for every version.

With replay shards the rows do not pass through the learner: it receives counters and episode statistics, and tells the
shards which slots to read. `finish` then returns a `StoredRollout` in place of a batch. Rows still go through the
learner if something there needs them: observation normalisation, components, or a callback with `on_rollout`.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector
from whorl.collect.episodes import Episode
from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.gradients import Gradients
from whorl.data.initial_priorities import completed
from whorl.data.replay import FIRST
from whorl.data.replay_setup import view_of
from whorl.distributed.actor import PayloadKind, Role, Trajectory
from whorl.distributed.fleet import Fleet
from whorl.distributed.pool import WATCH_SECONDS
from whorl.distributed.remote import Notify, RestartPolicy, warn
from whorl.distributed.tensors import empty, env_slice
from whorl.envs.make import Source
from whorl.settings.run import RunConfig
from whorl.state.streams import Streams

MEET_TIMEOUT = 30.0
"""seconds that actors with `max_lag` 0 wait, at first, until all have started"""
SHOWN = 8
"""actors whose own speed and return are logged"""


@dataclass(frozen=True)
class StoredRollout:
    """A rollout whose rows went to replay shards directly."""

    steps: int


class TrajectoryReader(Protocol):
    """Replay shards, as the collector sees them."""

    def stage(self, place: int, trajectory: Trajectory, lost: int) -> None:
        """Let the shards copy a trajectory to a share of the environments; the first `lost` priorities are unknown."""

    def staged(self) -> set[int]:
        """Wait until all those copies are made; returns the places whose trajectories were lost on the way."""


class FleetCollector(Collector):
    """Makes rollouts of all environments out of trajectories.

    Args:
        agent: the copy of the agent whose weights are published.
        max_lag: how many versions old the weights of a trajectory may be; None: any age; 0: actors wait for each
            version, and each is in every rollout once.
        trajectories: how many make up a rollout; 0: as many as there are actors.
    """

    episode_statistics: "SummedStatistics"
    gaps: Tensor
    begun = False

    def __init__(
        self, fleet: Fleet, role: Role, agent: Agent, actors: int, max_lag: int | None, trajectories: int = 0
    ) -> None:
        self.fleet, self.role, self.agent, self.max_lag = fleet, role, agent, max_lag
        self.num_envs, self.steps = role.num_envs, role.steps
        self.episode_statistics = SummedStatistics()
        self.version, self._actors = 0, actors
        places = trajectories or actors
        self.gaps = torch.zeros(places * role.num_envs, dtype=torch.bool)
        """[B] environments whose rows do not continue those of the rollout before"""
        self.shards: TrajectoryReader | None = None
        """set if replay shards read the trajectories"""
        self._held: list[tuple[int, int, int]] = [(-1, 0, 0)] * places
        """the last trajectory of each share of the environments"""
        self._unbroken = [0] * places
        """how many trajectories before that one it continues without a gap"""
        self._ready: deque[Trajectory] = deque()
        self._staged: list[tuple[int, Trajectory]] = []
        """trajectories that replay shards are reading, with their places"""
        self._waiting: list[Trajectory] = []
        """trajectories whose actors wait for the next version"""
        self._met, self._standing_in = False, 0
        self._replaced = self._lives_before = 0
        """replacements before this run was resumed, and the sum of `lives` at that point"""
        self._values: dict[str, list[float]] = {}
        self._sent = 0
        self._allocate(places)

    def _allocate(self, places: int) -> None:
        layout = self.role.layout
        rows = [empty(layout) for _ in range(places)]
        self._rows: dict[str, Tree] = {
            name: tree.cat([one[name] for one in rows], 0 if name == "memory" else 1) for name in layout
        }
        if self.role.sends == "priorities":
            # Samples that a trajectory completes and that began in trajectories before it.
            view = view_of(self.agent.cfg, self.agent.successors)
            self._earlier, self._completed = view.span // view.stride, completed(self.agent.cfg, self.steps)

    def reset(self, seed: int) -> None:
        """Actors reset their environments themselves."""

    def start(self, random: bool = False) -> None:
        """Publish the weights; actors use them from their next rollout on."""
        self.version += 1
        self.fleet.publish(self.role.weights(self.agent), self.version, random)
        for trajectory in self._waiting:
            self.fleet.release(trajectory)
        self._waiting.clear()
        self._standing_in = 0

    def finish(self, cut: bool = False) -> Any:
        """A rollout of all environments, as soon as there are enough trajectories."""
        began = time.perf_counter()
        free, steps = set(range(len(self._held))), 0.0
        while free:
            trajectory = self._next(free)
            steps += trajectory.seen["steps"]
            self._put(trajectory, free)
            self._watched(1 - len(free) / len(self._held))
            if not free:
                self._confirm(free)
        self._log("waited", time.perf_counter() - began)
        return self.rollout() if self.shards is None else StoredRollout(int(steps))

    def rollout(self) -> Batch:
        """The rows of the last rollout; only their shapes count if replay shards read the trajectories."""
        return Batch(**self._rows)

    def _next(self, free: set[int]) -> Trajectory:
        """A trajectory that is new enough."""
        began = time.perf_counter()
        while True:
            while not self._ready:
                self._confirm(free)
                self._ready.extend(self.fleet.poll(WATCH_SECONDS if self.watch else 1.0))
                self._watched(1 - len(free) / len(self._held))
                self._stand_in(time.perf_counter() - began)
            self._log("queue", len(self._ready) - 1)
            trajectory = self._ready.popleft()
            self.begun = True
            lag = self.version - trajectory.version
            if self.max_lag is None or lag <= self.max_lag:
                self._log("lag", lag)
                self._count(trajectory)
                return trajectory
            self._log("dropped", trajectory.seen["steps"])
            self.fleet.release(trajectory)

    def _watched(self, share: float) -> None:
        if self.watch is not None:
            self.watch(share)

    def _stand_in(self, waited: float) -> None:
        """With `max_lag` 0: if some actors could not be started, let others collect their shares too."""
        missing = self._actors - self.fleet.alive()
        self._met = self._met or not missing or waited > MEET_TIMEOUT
        if self._met and not self._ready and self._waiting and self._standing_in < missing:
            self._standing_in += 1
            self.fleet.release(self._waiting.pop(0))

    def _count(self, trajectory: Trajectory) -> None:
        seen = trajectory.seen
        self.episode_statistics.add(seen, trajectory.ended)
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(trajectory.tensors))
        self._log("bytes", size)
        if trajectory.actor < SHOWN:
            name = f"actor_{trajectory.actor}"
            self._log(f"{name}/steps_per_second", seen["steps"] / trajectory.seconds)
            if seen.get("episodes"):
                self._log(f"{name}/return", seen["return"] / seen["episodes"])

    def _put(self, trajectory: Trajectory, free: set[int]) -> None:
        """Into the place whose rows it continues, if that is free, else into the actor's own, else into any."""
        own = trajectory.actor if trajectory.actor in free else min(free)
        place = next((at for at in free if self._held[at] == trajectory.previous), own)
        free.remove(place)
        envs = slice(place * self.num_envs, (place + 1) * self.num_envs)
        gap = self._held[place] != trajectory.previous
        self.gaps[envs] = gap
        self._unbroken[place] = 0 if gap else self._unbroken[place] + 1
        self._held[place] = trajectory.name
        lost = 0
        if self.role.sends == "priorities":
            # The actor computed priorities of samples that began before the gap from other rows.
            lost = max(0, self._earlier - self._unbroken[place] * self._completed)
        if self.shards is not None:
            self.shards.stage(place, trajectory, lost)
            self._staged.append((place, trajectory))
            return
        rows = env_slice(self._rows, envs)
        tree.copy_(rows, trajectory.tensors)
        if lost:
            rows["extras"][FIRST][:lost] = torch.nan
        self._done_with(trajectory)

    def _confirm(self, free: set[int]) -> None:
        """Release the trajectories that replay shards have read; places whose trajectories were lost are free again."""
        if self.shards is None or not self._staged:
            return
        lost = self.shards.staged()
        for place, trajectory in self._staged:
            if place in lost:  # its actor collects another one, even if it waits for a new version otherwise
                self._held[place] = (-1, 0, 0)
                free.add(place)
                self.fleet.release(trajectory)
            else:
                self._done_with(trajectory)
        self._staged.clear()

    def _done_with(self, trajectory: Trajectory) -> None:
        if self.max_lag == 0:
            self._waiting.append(trajectory)
        else:
            self.fleet.release(trajectory)

    def _log(self, name: str, value: float) -> None:
        self._values.setdefault(name, []).append(value)

    def metrics(self) -> dict[str, float]:
        """Metrics of the actors since the last call."""
        values, self._values = self._values, {}
        lags, queue = values.pop("lag", [0.0]), values.pop("queue", [0.0])
        sent, self._sent = self.fleet.sent - self._sent, self.fleet.sent
        found = {
            "actors/alive": float(self.fleet.alive()),
            "actors/replaced": float(self.replaced),
            "actors/lag": sum(lags) / len(lags),
            "actors/lag_max": max(lags),
            "actors/dropped_steps": sum(values.pop("dropped", [])),
            "actors/queue": sum(queue) / len(queue),
            "actors/bytes_in": float(sum(values.pop("bytes", []))),
            "actors/bytes_out": float(sent),
            "time/waited_for_actors": sum(values.pop("waited", [])),
        }
        return found | {name: sum(each) / len(each) for name, each in values.items()}

    @property
    def replaced(self) -> int:
        """How many actors were replaced, before a resume too."""
        return self._replaced + sum(self.fleet.lives) - self._lives_before

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
        """Actors begin new episodes with other seeds: the rollouts that were under way are not repeated."""
        self.version, self.fleet.lives = int(state["version"]), [int(life) for life in state["lives"]]
        self._replaced, self._lives_before = int(state["replaced"]), sum(self.fleet.lives)
        self.episode_statistics.sums = dict(state["episode_statistics"])


class GradientCollector(FleetCollector):
    """Takes gradients: those of the first actor, or of each actor once. Actors wait until theirs are applied."""

    def __init__(self, fleet: Fleet, role: Role, agent: Agent, actors: int, averaged: bool) -> None:
        self._wanted = actors if averaged else 1
        super().__init__(fleet, role, agent, actors, 0 if averaged else None)

    def _allocate(self, places: int) -> None:
        """There are no rows."""

    def finish(self, cut: bool = False) -> list[Gradients]:
        began = time.perf_counter()
        found = []
        for _ in range(self._wanted):
            trajectory = self._next(set())
            tensors = tree.clone(trajectory.tensors)
            found.append(Gradients(tensors["steps"], tensors["metrics"]))
            self._waiting.append(trajectory)
        self._log("waited", time.perf_counter() - began)
        return found


class SummedStatistics:
    """Episode statistics of all actors, added up."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.ended: list[Episode] = []

    def add(self, seen: dict[str, float], ended: Sequence[Episode] = ()) -> None:
        self.ended.extend(ended)
        for name, value in seen.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def forget(self) -> None:
        """Open episodes are counted by the actors."""

    def drain(self) -> dict[str, float]:
        """Sums since the last call."""
        found, self.sums = self.sums, {}
        return found


class RemoteEnvs:
    """Stands for environments that this process does not step: there is nothing to save or to close."""

    snapshots = True

    def __init__(self, id: str) -> None:
        self.id = id

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Actors begin new episodes."""

    def close(self) -> None:
        """Nothing was opened."""


def make_fleet(
    source: Source,
    agent: Agent,
    run: RunConfig,
    streams: Streams,
    needs_rows: bool = False,
    needs_episodes: bool = False,
    notify: Notify = warn,
) -> FleetCollector:
    """The collector over `run.actors` actors.

    Args:
        agent: the copy whose weights are published.
        needs_rows: whether the learner must see the rows even if there are replay shards.
        needs_episodes: whether actors send every episode that ended, besides the sums over all of them.
        notify: shows messages about actors that were replaced.
    """
    gradients = run.actor_gradients != "none"
    num_envs = run.num_envs // run.actors
    role = Role(
        agent,
        source,
        num_envs,
        run.num_steps,
        _payload_kind(agent, run),
        run.actors_on_gpu,
        run.env_timeout,
        needs_episodes,
        source.workers(max(run.workers, 0), num_envs),
    )
    lag = None if run.max_lag < 0 and agent.tolerates_stale_data else max(run.max_lag, 0)

    def seed(actor: int, life: int) -> tuple[int, int]:
        """The first actor begins like the loop without actors."""
        if (actor, life) == (0, 0):
            return streams.generator("act", "cpu").initial_seed(), streams.seed("env", "0")
        part = f"actor {actor} life {life}"
        return streams.seed("act", part), streams.seed("env", part)

    ahead = 1 if gradients or lag == 0 else 2  # an actor that waits for the learner needs no second slot
    direct = not needs_rows and not gradients and _only_shards_need_rows(agent)
    policy = RestartPolicy(run.actor_restarts, run.restarts_per_hour, notify)
    fleet = Fleet(role, run.actors, seed, ahead, policy, run.ray, direct)
    if gradients:
        return GradientCollector(fleet, role, agent, run.actors, run.actor_gradients == "averaged")
    return FleetCollector(fleet, role, agent, run.actors, lag, run.trajectories_per_batch)


def _payload_kind(agent: Agent, run: RunConfig) -> PayloadKind:
    if run.actor_gradients != "none":
        return "gradients"
    cfg = agent.cfg
    first = agent.off_policy and cfg.prioritized and cfg.priority_on_add
    return "priorities" if first else "rows"


def _only_shards_need_rows(agent: Agent) -> bool:
    """Whether replay is in shards and the agent never looks at rollouts itself."""
    sharded = agent.off_policy and agent.cfg.shards > 0 and not agent.cfg.normalize_obs
    own = any(getattr(type(agent), name) is not getattr(Agent, name) for name in ("receive", "observe"))
    looks = own or agent.components or agent.spec.map_shape is not None
    return sharded and not looks
