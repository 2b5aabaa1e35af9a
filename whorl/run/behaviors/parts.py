"""The parts of a run with several behaviours: one environment, and an agent, a replay buffer and a learner for each."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whorl.collect.collector import acting
from whorl.collect.episodes import Episode
from whorl.collect.waiting import WaitingCollector
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.goals import GoalRewards
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.distributed.remote import Notify
from whorl.envs.behaviors import BehaviorEnv
from whorl.envs.make import Source, find
from whorl.envs.vector import Step, VectorEnv
from whorl.run.build import Needs, Parts, build, choose_device, reset_period
from whorl.run.checkpointing import Checkpointing
from whorl.run.loop import Counters, Loop
from whorl.settings.behaviors import BehaviorSettings
from whorl.state.streams import Streams


class BehaviorView(VectorEnv):
    """One behaviour of an environment that is stepped for all of them at once, outside of the collectors."""

    waits = True

    def __init__(self, env: BehaviorEnv, name: str) -> None:
        self.id, self.spec, self.snapshots = env.id, env.specs[name], env.snapshots
        self.obs: Tree = None
        """the newest observations"""

    def reset(self, seed: int) -> Tree:
        return self.obs

    def step(self, action: Tree) -> Step:
        raise NotImplementedError("all behaviours are stepped together")

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        return self.obs

    def close(self) -> None: ...


@dataclass
class Member:
    """One behaviour of a run."""

    name: str
    view: BehaviorView
    parts: Parts
    counters: Counters
    loop: Loop
    checkpointing: Checkpointing

    @property
    def collector(self) -> WaitingCollector:
        collector = self.parts.acting.collector
        assert isinstance(collector, WaitingCollector)
        return collector


class SharedCollector:
    """The environment that all behaviours collect from."""

    begun = True

    def __init__(self, env: BehaviorEnv, members: list[Member]) -> None:
        self.env, self.members = env, members

    def reset(self, seed: int) -> None:
        """Reset every copy; the next rollouts start there."""
        self._begin(self.env.reset(seed))
        for member in self.members:
            member.parts.send_weights()
            member.collector.reset(seed)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot of the environment; the collectors have their own state."""
        self._begin(self.env.restore(snapshot))

    def _begin(self, obs: Mapping[str, Tree]) -> None:
        for member in self.members:
            member.view.obs = obs[member.name]

    def step(self) -> None:
        """One step of all behaviours."""
        actions = {}
        for member in self.members:
            collector = member.collector
            with acting(collector.agent.device):
                actions[member.name] = collector.act()
        answers = self.env.step(actions)
        for member in self.members:
            with acting(member.collector.agent.device):
                member.collector.answer(answers[member.name])


@dataclass
class SharedActing:
    """Where rollouts are collected; the fields are those of `whorl.run.build.Acting` that a run asks for."""

    collector: SharedCollector
    env: BehaviorEnv
    dashboard: str = ""
    workers: int = 0


class Agents:
    """The interface of an agent, over the agents of all behaviours."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    @property
    def updates(self) -> int:
        return sum(member.parts.agent.updates for member in self._members)

    @property
    def goal_rewards(self) -> GoalRewards | None:
        return next((found for member in self._members if (found := member.parts.agent.goal_rewards)), None)

    def replay_bytes(self) -> int:
        return sum(member.parts.agent.replay_bytes() for member in self._members)

    def pictures(self) -> dict[str, Tensor]:
        return {
            f"{member.name}/{name}": picture
            for member in self._members
            for name, picture in member.parts.agent.pictures().items()
        }

    def __getattr__(self, name: str) -> Any:
        raise WhorlError(
            f"a run of several behaviours has no one agent with {name!r}; use trainer.behaviors[NAME].parts.agent"
        )


class Learners:
    """The interface of a learner, over the learners of all behaviours."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    def check_finite(self) -> None:
        for member in self._members:
            member.parts.learner.check_finite()

    def means(self) -> dict[str, float]:
        return {
            f"{member.name}/{name}": value
            for member in self._members
            for name, value in member.parts.learner.means().items()
        }


@dataclass
class BehaviorParts:
    """The parts of a run with several behaviours, as `whorl.run.build.Parts` are of one."""

    settings: BehaviorSettings
    device: torch.device
    streams: Streams
    """of the environment and evaluations; each behaviour has its own"""
    env: BehaviorEnv
    members: list[Member]
    map: None = None

    def __post_init__(self) -> None:
        self.agent, self.learner = Agents(self.members), Learners(self.members)
        self.acting = SharedActing(SharedCollector(self.env, self.members), self.env)

    def reset(self, number: int) -> None:
        """Reset all environments, for the time `number`."""
        self.acting.collector.reset(self.streams.seed("env", str(number)))

    @property
    def reset_period(self) -> int:
        """Iterations between resets of environments that can't be snapshotted; 0: theirs can."""
        return 0 if self.env.snapshots else reset_period(self.settings.run)

    def close(self) -> None:
        for member in self.members:
            member.parts.close()
        self.env.close()


def build_behaviors(
    source: Source,
    settings: BehaviorSettings,
    needs: Needs,
    notify: Notify,
    on_episode: Callable[[Episode], None],
    on_rollout: Callable[[Batch], None],
) -> BehaviorParts:
    """Create the environment and the parts of each behaviour."""
    assert source.adapter is not None
    env = source.adapter.behavior_env(source)
    members: list[Member] = []
    try:
        for name, own in settings.behaviors.items():
            view = BehaviorView(env, name)
            # Agents of the same kind must differ in their first weights and their exploration.
            run = replace(own.run, seed=seed_of(own.run.seed, name), workers=0)
            seeded = replace(own, run=run, buffer_chosen=True)  # behaviours share the memory
            try:
                parts = build(find(view), seeded, needs, notify)
            except ConfigError as error:
                raise ConfigError(f"behaviour {name!r}: {error.message}") from None
            counters = Counters()
            loop = Loop(parts, counters, on_episode, on_rollout)
            member = Member(name, view, parts, counters, loop, Checkpointing(parts, counters))
            member.collector.driven = True
            members.append(member)
    except BaseException:
        for member in members:
            member.parts.close()
        env.close()
        raise
    run = settings.run
    return BehaviorParts(settings, choose_device(run.device), Streams(run.seed), env, members)


def seed_of(seed: int, name: str) -> int:
    """The seed of one behaviour's weights, exploration and replay."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
