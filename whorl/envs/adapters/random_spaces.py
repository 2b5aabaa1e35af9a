"""Test-v0: random observations and rewards in any spaces, to try out networks and settings without a task.

    whorl train sac Test-v0 --env_options.observation "{camera: {shape: [64, 64, 3], dtype: uint8}, state: [6]}"

A space is written as
    [6]                                   a vector (or with more numbers an array) of numbers in [-1, 1]
    {shape: [64, 64, 3], dtype: uint8}    an image of bytes; also with low and high, for any dtype of numpy
    5                                     one of five
    {nvec: [2, 3]}                        one of two and one of three
    {name: SPACE, other: SPACE}           a dict of spaces
Neither observations nor rewards depend on actions, so there is nothing to learn. An episode is terminated at each step
with probability `end`, and truncated after `max_steps`.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.errors import EnvError
from whorl.envs.adapter import RegisteredAdapter

ID = "Test-v0"
FORMS = "write a shape as [6], a number of choices as 5, {shape: [64, 64, 3], dtype: uint8}, {nvec: [2, 3]}, or a dict"


class RandomSpaces(gymnasium.Env):
    """Random observations and rewards.

    Args:
        observation: the space of observations, in the form that the module describes.
        action: the space of actions.
        end: probability that a step terminates the episode.
        max_steps: steps after which an episode is truncated.
    """

    def __init__(
        self,
        observation: Any = (6,),
        action: Any = (3,),
        end: float = 0.01,
        max_steps: int = 100,
        render_mode: str | None = None,
    ) -> None:
        if not 0 <= end <= 1:
            raise EnvError(f"end is {end!r}; it is a probability, from 0 to 1")
        if not isinstance(max_steps, int) or max_steps < 1:
            raise EnvError(f"max_steps is {max_steps!r}; it must be a whole number of at least 1")
        self.observation_space = space_of(observation, "observation")
        self.action_space = space_of(action, "action")
        self.end, self.max_steps, self.steps = end, max_steps, 0
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise EnvError(f"the action is {action!r}, which is not in {self.action_space}")
        self.steps += 1
        reward = float(self.np_random.standard_normal())
        terminated = bool(self.np_random.random() < self.end)
        return self._observation(), reward, terminated, self.steps >= self.max_steps and not terminated, {}

    def get_snapshot(self) -> dict[str, Any]:
        return {"stream": self.np_random, "steps": self.steps}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.np_random, self.steps = snapshot["stream"], snapshot["steps"]

    def _observation(self) -> Any:
        return _drawn(self.observation_space, self.np_random)


def space_of(given: Any, where: str) -> spaces.Space[Any]:
    """The space that an option describes."""
    if isinstance(given, bool) or given is None or isinstance(given, str | float):
        raise EnvError(f"{where} is {given!r}, which is not a space; {FORMS}")
    if isinstance(given, int):
        if given < 1:
            raise EnvError(f"{where} is {given}, but there must be at least one choice")
        return spaces.Discrete(given)
    if isinstance(given, list | tuple):
        return spaces.Box(-1.0, 1.0, _shape(given, where), np.float32)
    if not isinstance(given, Mapping) or not given:
        raise EnvError(f"{where} is {given!r}, which is not a space; {FORMS}")
    if "nvec" in given:
        return spaces.MultiDiscrete(list(_shape(given["nvec"], f"{where}.nvec")))
    if "shape" in given:
        return _box(given, where)
    return spaces.Dict({str(name): space_of(part, f"{where}.{name}") for name, part in given.items()})


def _box(given: Mapping[str, Any], where: str) -> spaces.Box:
    unknown = sorted(given.keys() - {"shape", "dtype", "low", "high"})
    if unknown:
        raise EnvError(f"{where} has {unknown[0]!r} besides shape; it may have dtype, low and high")
    try:
        dtype = np.dtype(given.get("dtype", "float32"))
    except TypeError:
        raise EnvError(
            f"{where}.dtype is {given['dtype']!r}; use a dtype of numpy, as float32 or uint8"
        ) from None
    low, high = (0, 255) if dtype == np.uint8 else (-1, 1)
    low, high = given.get("low", low), given.get("high", high)
    if not low < high:
        raise EnvError(f"{where} ranges from {low} to {high}; low must be less than high")
    return spaces.Box(low, high, _shape(given["shape"], f"{where}.shape"), dtype.type)


def _shape(given: Any, where: str) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise EnvError(f"{where} is {given!r}; it must list whole numbers of at least 1")
    return sizes


def _drawn(space: spaces.Space[Any], stream: np.random.Generator) -> Any:
    """A sample of the space from the environment's own stream."""
    if isinstance(space, spaces.Dict):
        return {name: _drawn(part, stream) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(stream.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return stream.integers(space.nvec)
    assert isinstance(space, spaces.Box)
    if np.issubdtype(space.dtype, np.integer):
        return stream.integers(space.low, space.high, dtype=space.dtype.type, endpoint=True)
    return stream.uniform(space.low, space.high).astype(space.dtype)


gymnasium.register(ID, entry_point=f"{__name__}:RandomSpaces")


class RandomSpacesAdapter(RegisteredAdapter):
    """Test-v0."""

    modules = (__name__,)
    cheap = True

    def owns(self, id: str) -> bool:
        return id == ID


ADAPTERS = (RandomSpacesAdapter(),)
