"""For the tests of datasets: a small environment, and datasets written by scripted policies."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from whorl.datasets.minari import Episode, Writer

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "workers": 0,
    "num_envs": 2,
    "num_steps": 5,
    "batch_size": 8,
    "buffer_size": 400,
    "eval": False,
    "tensorboard": False,
    "quiet": True,
    "log_freq": 10,
}
NETS: dict[str, Any] = {"actor_hidden_sizes": [8], "critic_hidden_sizes": [8]}
ACTOR: dict[str, Any] = {"actor_hidden_sizes": [8]}


class Match(gymnasium.Env):
    """Answer each observation with half of it: reward -|a - s / 2|. An episode is truncated after five steps, or with
    `ends` terminated."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, ends: bool = False, choices: bool = False) -> None:
        self.time, self.seen = 0, np.zeros(2, np.float32)
        self.ends, self.choices = ends, choices
        box = spaces.Box(np.float32([-1, -0.5]), np.float32([1, 2]))
        self.action_space: spaces.Space[Any] = spaces.Discrete(2, start=3) if choices else box

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        if self.choices:
            reward = -abs(float(action - 3) - float(self.seen[0] > 0))
        else:
            reward = -float(np.abs(action - self.seen / 2).sum())
        self.time += 1
        over = self.time == 5
        return self._look(), reward, over and self.ends, over and not self.ends, {}

    def get_snapshot(self) -> dict[str, Any]:
        return {"time": self.time, "seen": self.seen, "random": self.np_random.bit_generator.state}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.time, self.seen = snapshot["time"], snapshot["seen"]
        self.np_random.bit_generator.state = snapshot["random"]

    def _look(self) -> np.ndarray:
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen


def written(
    folder: Path, observation: spaces.Space, action: spaces.Space, episodes: Sequence[Episode]
) -> Path:
    """A dataset of these episodes."""
    for name in ("h5py", "minari"):
        pytest.importorskip(name)
    writer = Writer("scripted-v0", folder, observation, action)
    for episode in episodes:
        writer.add(episode)
    return writer.finish()


def random_episode(
    observation: spaces.Space, action: spaces.Space, steps: int, terminated: bool, truncated: bool = True
) -> Episode:
    """Samples of both spaces; the reward of step t is t + 1."""
    last = [False] * (steps - 1)
    return Episode(
        observations=[observation.sample() for _ in range(steps + 1)],
        actions=[action.sample() for _ in range(steps)],
        rewards=[float(t + 1) for t in range(steps)],
        terminations=[*last, terminated],
        truncations=[*last, truncated and not terminated],
    )


def play(
    env: gymnasium.Env, act: Callable[[np.ndarray, np.random.Generator], Any], episodes: int
) -> list[Episode]:
    """Episodes of a scripted policy."""
    rng, found = np.random.default_rng(0), []
    for seed in range(episodes):
        one = Episode(seed, [env.reset(seed=seed)[0].copy()])
        over = False
        while not over:
            one.actions.append(act(one.observations[-1], rng))
            obs, reward, terminated, truncated, _ = env.step(one.actions[-1])
            one.observations.append(obs.copy())
            one.rewards.append(reward)
            one.terminations.append(terminated)
            one.truncations.append(truncated)
            over = terminated or truncated
        found.append(one)
    return found


def uniform(env: gymnasium.Env) -> Callable[[np.ndarray, np.random.Generator], Any]:
    """Random actions."""
    space: Any = env.action_space
    if isinstance(space, spaces.Discrete):
        return lambda obs, rng: int(space.start + rng.integers(space.n))
    return lambda obs, rng: rng.uniform(space.low, space.high).astype(np.float32)


def scripted(folder: Path, episodes: int = 20, act: Any = None, **options: Any) -> Path:
    """A dataset of `Match`, by default with random actions."""
    env = Match(**options)
    found = play(env, act or uniform(env), episodes)
    return written(folder, env.observation_space, env.action_space, found)
