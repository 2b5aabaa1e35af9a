"""Wrappers that environments accept as options: select entries of the observation, add last action and reward, stack
frames, count an episode as a success by its rewards.

Not for batched environments; native ones have `hit_reward` alone. Imports no torch, because workers wrap their
environments.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.arrays import MASK_KEY, SUCCESS_KEYS
from whorl.core.errors import EnvError, nearest
from whorl.envs.spaces import Factory, check_stack

HIDING = ("keep", "once", "last_action", "last_reward")
HIT = "hit_reward"
OPTIONS = (*HIDING, "frame_stack", HIT)


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The environment's own options, and those of the wrappers."""
    ours = {name: options[name] for name in OPTIONS if name in options}
    return {name: value for name, value in options.items() if name not in ours}, ours


def observation_wrappers(factory: Factory, options: dict[str, Any]) -> Factory:
    """`factory` with the wrappers that `options` name."""
    return partial(_make, factory, options) if options else factory


def _make(factory: Factory, options: dict[str, Any]) -> gymnasium.Env:
    env = factory()
    if HIT in options:
        env = HitReward(env, check_hit(options[HIT]))
    hiding = {name: value for name, value in options.items() if name in HIDING}
    if hiding:
        env = SelectObservation(env, **hiding)
    return FrameStack(env, check_stack(options["frame_stack"])) if "frame_stack" in options else env


def check_hit(value: Any) -> float:
    """The option `hit_reward`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise EnvError(f"{HIT} is {value!r}; it must be a number: the reward that makes an episode a success")
    return float(value)


class HitReward(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """An episode is a success once one of its rewards was at least `hit_reward`; that is `is_success` in `info`."""

    def __init__(self, env: gymnasium.Env, hit_reward: float) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, hit_reward=hit_reward)
        super().__init__(env)
        self._least, self._hit = hit_reward, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._hit = False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._hit = self._hit or float(reward) >= self._least
        return obs, reward, terminated, truncated, {**info, SUCCESS_KEYS[0]: self._hit}


class FrameStack(gymnasium.Wrapper):
    """Declares how many frames are stacked; `EnvStepper` stacks them."""

    def __init__(self, env: gymnasium.Env, frame_stack: int) -> None:
        super().__init__(env)
        self.frame_stack = frame_stack


class SelectObservation(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Observe a part of the observation. The wrapper's state is plain attributes, so that snapshots include it.

    Args:
        keep: the entries to keep: indices of a vector, or keys of a dict. An action mask always stays.
        once: indices of a vector that only the first observation of an episode shows; afterwards they are 0.
        last_action: add the previous action, 0 at the start of an episode; discrete actions are one-hot.
        last_reward: add the previous reward, 0 at the start of an episode.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        keep: Sequence[int] | Sequence[str] | int | str | None = None,
        once: Sequence[int] | int | None = None,
        last_action: bool = False,
        last_reward: bool = False,
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, keep=keep, once=once, last_action=last_action, last_reward=last_reward
        )
        super().__init__(env)
        for name, value in (("last_action", last_action), ("last_reward", last_reward)):
            if not isinstance(value, bool):
                raise EnvError(f"{name} is {value!r}; it must be true or false")
        space = env.observation_space
        self._once = None if once is None else _indices("once", once, space)
        if self._once is not None:
            space = _with_zero(space, self._once)
        self._keep: np.ndarray | list[str] | None = None
        if keep is not None:
            self._keep = (
                _names(keep, space) if isinstance(space, spaces.Dict) else _indices("keep", keep, space)
            )
            space = _selected(space, self._keep)
        self._last: dict[str, np.ndarray] = {}
        added: dict[str, spaces.Space] = {}
        if last_action:
            added["last_action"] = _flat_action(env.action_space)
        if last_reward:
            added["last_reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self._last = {name: np.zeros(part.shape or (), np.float32) for name, part in added.items()}
        self._joined = bool(added) and _is_vector(space) and space.dtype != np.uint8
        self._nested = not isinstance(space, spaces.Dict)
        self.observation_space = _extended(space, added, self._joined) if added else space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._last = {name: np.zeros_like(value) for name, value in self._last.items()}
        return self._observe(obs), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if "last_action" in self._last:
            flat = spaces.flatten(self.env.action_space, action)
            self._last["last_action"] = np.asarray(flat, np.float32)
        if "last_reward" in self._last:
            self._last["last_reward"] = np.array([reward], np.float32)
        if self._once is not None:
            obs = np.array(obs)
            obs[self._once] = 0
        return self._observe(obs), reward, terminated, truncated, info

    def _observe(self, obs: Any) -> Any:
        if isinstance(self._keep, list):
            obs = {name: obs[name] for name in self._keep}
        elif self._keep is not None:
            obs = obs[self._keep]
        if self._joined:
            return np.concatenate([obs, *self._last.values()], dtype=self.observation_space.dtype)
        if self._last:
            return {**({"obs": obs} if self._nested else obs), **self._last}
        return obs


def _is_vector(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _indices(option: str, given: Any, space: spaces.Space) -> np.ndarray:
    if not isinstance(space, spaces.Box) or not _is_vector(space):
        what = "a vector or a dict" if option == "keep" else "a vector"
        raise EnvError(
            f"{option} selects entries of {what}, but the observation is {space}; leave {option} out"
        )
    listed, size = _listed(given), space.shape[0]
    # True is an int in Python, but not an index.
    whole = all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < size for i in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        raise EnvError(
            f"{option} is {given!r}; the observation is a vector, so it must list indices from 0 to {size - 1}, "
            f"each once"
        )
    return np.array(listed)


def _names(given: Any, space: spaces.Dict) -> list[str]:
    listed, known = _listed(given), [str(name) for name in space.spaces]
    for name in listed:
        if name not in known:
            raise EnvError(
                f"keep has {name!r}, which the observation does not have; {nearest(str(name), known)}"
            )
    if not listed or len(set(listed)) < len(listed):
        raise EnvError(f"keep is {given!r}; it must list some of {', '.join(known)}, each once")
    return listed + [MASK_KEY] * (MASK_KEY in known and MASK_KEY not in listed)


def _listed(given: Any) -> list[Any]:
    """A single entry counts as a list of one, as on the command line."""
    return list(given) if isinstance(given, list | tuple) else [given]


def _selected(space: spaces.Space, keep: np.ndarray | list[str]) -> spaces.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: space[name] for name in keep})
    assert isinstance(space, spaces.Box)
    return spaces.Box(space.low[keep], space.high[keep], dtype=space.dtype)  # type: ignore[arg-type]


def _with_zero(space: spaces.Space, entries: np.ndarray) -> spaces.Box:
    assert isinstance(space, spaces.Box)
    low, high = space.low.copy(), space.high.copy()
    low[entries], high[entries] = np.minimum(low[entries], 0), np.maximum(high[entries], 0)
    return spaces.Box(low, high, dtype=space.dtype)


def _flat_action(space: spaces.Space) -> spaces.Box:
    """Actions as one vector; bounds include 0, the value at the start of an episode."""
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    return spaces.Box(np.minimum(flat.low, 0), np.maximum(flat.high, 0), dtype=np.float32)


def _extended(space: spaces.Space, added: dict[str, spaces.Space], joined: bool) -> spaces.Space:
    """The space with `added` entries: at the end of a vector, else as entries of a dict."""
    if joined:
        parts: list[Any] = [space, *added.values()]
        dtype = space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32
        low, high = (np.concatenate([getattr(part, side) for part in parts]) for side in ("low", "high"))
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)  # type: ignore[arg-type]
    entries = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
    taken = [name for name in added if name in entries]
    if taken:
        raise EnvError(f"the observation has an entry {taken[0]!r} already; leave {taken[0]} out")
    return spaces.Dict({**entries, **added})
