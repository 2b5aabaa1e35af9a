"""Libraries and published loops that `peers.py` measures, one module each.

A module offers a function per kind of case (`ppo`, `sac`, `updates`, ...) that takes a `Work` and returns a rate, and
`load`, which imports what its PPO needs. `PACKAGES` are the distributions whose versions are recorded, `WAYS` the
configurations that are tried for a kind (the fastest counts), `ABSENT` what it cannot do and why, `PIXELS` says that it
is measured on Pong, too. Libraries are imported in the functions only, because modules are also read by an interpreter
without them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any


@dataclass(frozen=True)
class Work:
    """What every contestant of a case is given."""

    kind: str
    env: str = "CartPole-v1"
    way: str = ""
    """one of the contestant's WAYS"""
    algorithm: str = ""
    """of `updates`: sac or td3"""
    num_envs: int = 8
    num_steps: int = 256
    """per environment and rollout"""
    batch_size: int = 256
    n_epochs: int = 10
    hidden: tuple[int, int] = (64, 64)
    learning_starts: int = 1000
    steps: int = 24_576
    """environment steps of the training"""
    rows: int = 10_000
    """of the replay buffer"""
    seconds: float = 3.0
    """of a repeated call"""
    enough: float = 12.0
    """seconds of training after the warm-up, where `steps` would take longer"""
    threads: int = 1
    learning_rate: float = 3e-4

    @property
    def pixels(self) -> bool:
        return "Pong" in self.env

    @property
    def rollout(self) -> int:
        return self.num_envs * self.num_steps


@dataclass
class Clock:
    """Environment steps against time; what comes before `skip` of them is warm-up."""

    work: Work
    skip: float = 0.25
    seen: list[tuple[float, int]] = field(default_factory=list)
    warm: float | None = None
    """time of the first tick after the warm-up"""

    def tick(self, steps: int) -> None:
        self.seen.append((time.perf_counter(), steps))
        if self.warm is None and steps >= self.skip * self.work.steps:
            self.warm = self.seen[-1][0]

    @property
    def over(self) -> bool:
        """Whether enough was seen after the warm-up to stop early."""
        return self.warm is not None and self.seen[-1][0] - self.warm > self.work.enough

    def rate(self) -> float:
        """Steps per second between the first tick after the warm-up and the last one."""
        later = [tick for tick in self.seen if tick[1] >= self.skip * self.work.steps]
        if len(later) < 2:
            later = self.seen[-2:]
        (t0, s0), (t1, s1) = later[0], later[-1]
        if s1 <= s0:
            raise RuntimeError(f"too few steps to measure: {self.work.steps}")
        return (s1 - s0) / (t1 - t0)


def per_second(call: Callable[[], Any], seconds: float, count: int = 1, warm_up: int = 20) -> float:
    """How often a second `call` does `count` things, after some calls that are not counted."""
    for _ in range(warm_up):
        call()
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or not done:
        call()
        done += 1
    return done * count / spent


def drawn(work: Work) -> Iterator[Any]:
    """Random actions of all environments, the same for everybody, again and again."""
    import numpy as np

    space = make_env(work.env).action_space
    space.seed(0)
    return cycle([np.stack([space.sample() for _ in range(work.num_envs)]) for _ in range(64)])


def make_env(id: str) -> Any:
    """One Gymnasium environment; Pong from four frames of 84x84 with Nature's preprocessing."""
    import gymnasium

    if "Pong" not in id:
        return gymnasium.make(id)
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(id, frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    env = gymnasium.wrappers.TransformReward(env, lambda reward: (reward > 0) - (reward < 0))
    return gymnasium.wrappers.FrameStackObservation(env, 4)
