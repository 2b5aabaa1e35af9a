"""Random spaces, nested to any depth, through check, train, act, save, load and export."""

import random
import sys
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym

import whorl
from whorl.core.errors import WhorlError

sys.path.append(str(Path(__file__).parent))
import cases

FLOATS, WHOLE = ("float32", "float64", "float16"), ("uint8", "int8", "int32", "int64", "uint16")
KEYS = ("a", "b", "camera", "position", "a b", "ä", "0", "obs", "goal/x", "a.b")
ALL_ACTIONS = ("ppo", "ppo", "a2c", "impala", "reinforce", "ppg", "sac", "tqc")
REPLAY = ("sac", "tqc", "td3", "dqn", "c51")
SHORT = {
    "quiet": True,
    "eval": False,
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 8,
    "max_iterations": 2,
}


def box(draw: random.Random, action: bool) -> gym.Box:
    """A Box of some dtype, shape and bounds; unbounded or half bounded where the dtype allows it."""
    dtype = np.dtype(draw.choice(FLOATS if action and draw.random() < 0.7 else FLOATS + WHOLE))
    shape = draw.choice(((), (1,), (3,), (2, 2), (1, 3), (2, 1, 2)))
    if dtype.kind != "f":
        low = 0 if dtype.kind == "u" else draw.choice((-5, 0, 3))
        return gym.Box(low, low + draw.choice((0, 1, 7, 100)), shape, dtype.type)
    low, high = draw.choice(((-1, 1), (0, 1), (-3, 0.5), (1e-3, 2e-3), (-1e4, 1e4), (2, 2)))
    lower = np.full(shape, low if draw.random() < 0.8 else -np.inf)
    upper = np.full(shape, high if draw.random() < 0.8 else np.inf)
    return gym.Box(lower.astype(dtype), upper.astype(dtype), dtype=dtype.type)


def leaf(draw: random.Random, action: bool) -> gym.Space:
    kind = draw.choice(("box", "box", "discrete", "multi_discrete", "multi_binary", "odd"))
    if kind == "box":
        return box(draw, action)
    if kind == "discrete":
        return gym.Discrete(draw.choice((1, 2, 5)), start=draw.choice((0, 0, 3, -2)))
    if kind == "multi_discrete":
        sizes = draw.choice(([2], [3, 1], [[2, 3], [4, 2]], [[1], [2]]))
        start = None if draw.random() < 0.7 else np.full_like(sizes, draw.choice((-1, 2)))
        return gym.MultiDiscrete(sizes, start=start)
    if kind == "multi_binary":
        return gym.MultiBinary(draw.choice((1, 3, [2, 2])))
    if draw.random() < 0.8:
        return gym.Discrete(3)
    return draw.choice((gym.Text(4), gym.Sequence(gym.Discrete(2)), gym.Dict(), gym.Tuple(())))


def tree(draw: random.Random, action: bool = False, depth: int = 0) -> gym.Space:
    """A leaf, or a Dict or Tuple of trees."""
    kind = draw.choice(("leaf", "leaf", "dict", "tuple")) if depth < 3 else "leaf"
    if kind == "leaf":
        return leaf(draw, action)
    parts = [tree(draw, action, depth + 1) for _ in range(draw.choice((1, 2, 2, 3)))]
    if kind == "tuple":
        return gym.Tuple(parts)
    return gym.Dict(dict(zip(draw.sample(KEYS, len(parts)), parts)))


class Tiny(gymnasium.Env):
    """An environment with the spaces of a number: random observations, short episodes, everything by its seed."""

    def __init__(self, number: int, shows: str = "any", acts: str = "any") -> None:
        draw = random.Random(number)
        self.observation_space = gym.Box(0, 255, (12, 12, 3), np.uint8) if shows == "image" else tree(draw)
        self.action_space = tree(draw, action=True) if acts == "any" else gymnasium.make(acts).action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        ends = self.np_random.random(2) < (0.15, 0.1)
        return self._observe(), float(self.np_random.normal()), bool(ends[0]), bool(ends[1]), {}

    def _observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


def algorithm_for(draw: random.Random, space: gym.Space) -> tuple[str, dict[str, Any]]:
    """An algorithm, which mostly takes these actions, and settings for a short run."""
    fits = {gym.Box: ("sac", "td3"), gym.Discrete: ("sac", "dqn", "c51")}.get(type(space), ())
    name = draw.choice((*ALL_ACTIONS, *fits, *fits, draw.choice(REPLAY)))
    settings = {**SHORT, "actors": 0, "total_timesteps": 0, "workers": int(draw.random() < 0.02)}
    settings |= {"batch_size": 4, "learning_starts": 4, "buffer_size": 500} if name in REPLAY else {}
    settings |= {"lookahead": 0} if name == "reinforce" else {}
    settings |= {"memory": "gru", "memory_size": 4} if name in ("ppo", "a2c") and draw.random() < 0.2 else {}
    return name, settings


def travel(draw: random.Random, folder: Path) -> str:
    """Where `check` finds nothing and the algorithm takes the spaces, a policy is trained, saved, loaded and acts."""
    make = partial(Tiny, draw.randrange(10**6))
    env, findings = make(), whorl.check(make)
    name, settings = algorithm_for(draw, env.action_space)
    try:
        result = whorl.train(make, name, settings, runs=str(folder))
    except WhorlError as error:
        unfit = name in REPLAY and f"{name} needs" in str(error)
        assert unfit or findings == [str(error)], f"{name}: {error}; check found {findings}"
        raise
    assert not findings, f"training works, but check found {findings}"
    seed, policy = draw.randrange(1000), whorl.restore(result.run_dir)
    acts(env, policy, whorl.restore(result.run_dir), seed)
    if find_spec("safetensors"):
        policy.export(folder / "policy.safetensors")
        acts(env, whorl.restore(result.run_dir), whorl.restore(folder / "policy.safetensors"), seed)
    if draw.random() > 0.3:  # to trace one takes a second
        return "acts"
    with suppress(WhorlError):  # what can not be traced is refused in one sentence
        policy.export(folder / "policy.ts")
        torch.jit.load(folder / "policy.ts")
    return "acts"


def acts(env: Tiny, policy: Any, again: Any, seed: int) -> None:
    """A policy gives actions of the environment's space, and so does the same one after it was saved and loaded."""
    obs, _ = env.reset(seed=seed)
    for step in range(6):
        action, other = (each.act(obs, deterministic=step % 2 == 0) for each in (policy, again))
        assert env.action_space.contains(action), f"{action!r} is not in {env.action_space}"
        assert same(action, other), f"loaded twice, it acts {action!r} and {other!r}"
        obs = env.step(action)[0]
    for key, value in policy.agent.state_dict().items():
        assert not torch.isnan(value).any(), f"{key} is not a number"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b))


if __name__ == "__main__":
    cases.main({"travel": travel})
