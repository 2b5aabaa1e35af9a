"""Checks that an environment follows Gymnasium's interface; each finding comes with a remedy."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.spaces import describe

STEPS = 1500
"""the longest part of an episode that is checked: more than the usual limit of 1000"""
SECONDS = 5.0
"""the longest time that one episode may take"""


class _Stop(Exception):
    """A finding after which further checks would be meaningless."""


def check(env: str | gymnasium.Env | Callable[[], gymnasium.Env]) -> list[str]:
    """What is wrong with an environment, given as an id, an instance, or a function that makes one.

    An instance is stepped and reset, but stays open.
    """
    findings: list[str] = []
    made: Any = None
    try:
        made = _make(env, findings)
        _check_spaces(made, findings)
        _check_layout(made, findings)
        first = _walk(made, findings)
        _check_repeats(made, first, findings)
        _check_bounds(made, findings)
    except _Stop as stop:
        findings.append(str(stop))
    finally:
        if made is not None and made is not env:
            made.close()
    return list(dict.fromkeys(findings))


def _make(env: Any, findings: list[str]) -> Any:
    if isinstance(env, str):
        try:
            return factory_from_id(env)()
        except WhorlError as error:
            raise _Stop(str(error)) from error
    if not callable(env) or isinstance(env, gymnasium.Env):
        made = env
    else:
        try:
            cloudpickle.dumps(env)
        except Exception as error:  # pickling runs arbitrary code of the user's objects
            findings.append(
                f"the function that makes the environment can't be sent to worker processes ({_brief(error)}); "
                f"open files, viewers and sockets inside it, not outside"
            )
        made = _guard(env, "making it")
    if not isinstance(made, gymnasium.Env):
        old = type(made).__module__.partition(".")[0] == "gym" or hasattr(made, "seed")
        why = "it follows the old gym API" if old else "it is not a gymnasium.Env"
        raise _Stop(f"{type(made).__name__} can't be used because {why}; derive it from gymnasium.Env")
    return made


def _check_spaces(env: Any, findings: list[str]) -> None:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            raise _Stop(f"{name} is {space!r}; set it to a gymnasium space in __init__")
        for path, box in _boxes(space, name):
            if np.isnan(box.low).any() or np.isnan(box.high).any():
                findings.append(
                    f"{path} has NaN bounds; give numbers, or -inf and inf where there is no bound"
                )
            elif (box.low > box.high).any():
                findings.append(f"{path} has a lower bound above its upper bound; swap them")
            elif name == "action_space" and not box.is_bounded("both"):
                findings.append(f"{path} has infinite bounds, so actions can't be scaled; give finite bounds")


def _check_layout(env: Any, findings: list[str]) -> None:
    result = _guard(lambda: env.reset(seed=0), "reset(seed=0)")
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise _Stop(f"reset() returns {_shape_of(result)}; return (observation, info) with info a dict")
    try:
        describe(env)
    except EnvError as error:
        raise _Stop(str(error)) from error


def _walk(env: Any, findings: list[str]) -> list[Any]:
    """Run one episode with random actions and check all that it returns; returns the first steps, for comparison."""
    env.action_space.seed(0)
    obs, _ = env.reset(seed=123)
    _check_obs(env, obs, "reset()", findings)
    trace: list[Any] = [_copied(obs)]
    resets = _ResetCounter(env)
    try:
        _follow(env, obs, resets, trace, findings)
    finally:
        resets.undo()
    return trace


def _follow(env: Any, obs: Any, resets: "_ResetCounter", trace: list[Any], findings: list[str]) -> None:
    deadline = time.monotonic() + SECONDS
    for _ in range(STEPS):
        action = env.action_space.sample()
        before, kept = obs, _copied(obs)
        result = _guard(lambda: env.step(action), "step()")  # noqa: B023 - called at once
        obs, reward, terminated, truncated, info = _five(result)
        _check_obs(env, obs, "step()", findings)
        _check_reward(reward, findings)
        if not _same(before, kept):
            findings.append(
                "step() overwrites the observation it returned before; return a copy of the array"
            )
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                findings.append(f"step() returns {name} as {type(flag).__name__}; return a bool")
        if len(trace) < 200:
            trace.append((_copied(obs), reward, terminated, truncated))
        if resets.count or "final_obs" in info or "final_observation" in info:
            findings.append("the environment resets itself inside step(); leave that to the caller")
            break
        if terminated or truncated or findings or time.monotonic() > deadline:
            break
    else:
        if getattr(env.spec, "max_episode_steps", None) is None:
            findings.append(
                f"no episode ended within {STEPS} random steps; if that is not intended, add a limit with "
                f"gymnasium.wrappers.TimeLimit"
            )


def _check_repeats(env: Any, first: list[Any], findings: list[str]) -> None:
    """The same seed and actions must give the same episode."""
    if findings:
        return
    env.action_space.seed(0)
    obs, _ = env.reset(seed=123)
    if not _same(obs, first[0]):
        findings.append(
            "reset(seed=123) twice gives different observations; draw random numbers from self.np_random only"
        )
        return
    for index, expected in enumerate(first[1:], 1):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        found = (obs, reward, terminated, truncated)
        if not all(_same(a, b) for a, b in zip(found, expected)):
            findings.append(
                f"the same seed and actions give another episode from step {index} on; draw from self.np_random only "
                f"and set every attribute in reset()"
            )
            return


def _check_bounds(env: Any, findings: list[str]) -> None:
    """Step with the corners of the action space."""
    space = env.action_space
    if findings or not isinstance(space, spaces.Box) or not space.is_bounded("both"):
        return
    for corner in (space.low, space.high):
        env.reset(seed=1)
        for _ in range(5):
            result = _guard(lambda: env.step(corner.copy()), "step() at the action bounds")  # noqa: B023
            obs, reward, terminated, truncated, _ = _five(result)
            _check_obs(env, obs, "step() at the action bounds", findings)
            _check_reward(reward, findings)
            if terminated or truncated:
                break
    env.reset(seed=1)


def _check_obs(env: Any, obs: Any, where: str, findings: list[str]) -> None:
    space = env.observation_space
    # Box.contains accepts a list, which is slow to convert at every step.
    if space.contains(obs) and (not isinstance(space, spaces.Box) or isinstance(obs, np.ndarray)):
        return
    findings.append(_mismatch(space, obs, f"the observation of {where}"))


def _mismatch(space: spaces.Space, obs: Any, name: str) -> str:
    """Why `obs` is not in `space`."""
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        if set(obs) != set(space.spaces):
            return f"{name} has the keys {sorted(obs)} but its space {sorted(space.spaces)}; make them agree"
        for key, child in space.spaces.items():
            if not child.contains(obs[key]):
                return _mismatch(child, obs[key], f"{name}, key {key!r},")
    if isinstance(space, spaces.Box):
        if not isinstance(obs, np.ndarray):
            return f"{name} is a {type(obs).__name__}; return a numpy array"
        if obs.shape != space.shape:
            return f"{name} has shape {obs.shape} but its space {space.shape}; make them agree"
        if not np.can_cast(obs.dtype, space.dtype):
            return f"{name} is {obs.dtype} but its space {space.dtype}; cast it or change the space's dtype"
        if np.isnan(obs).any():
            return f"{name} contains NaN; find the division or root that makes it"
        outside = tuple(int(i) for i in np.argwhere((obs < space.low) | (obs > space.high))[0])
        bounds = f"[{space.low[outside]:g}, {space.high[outside]:g}]"
        return f"{name} holds {obs[outside]:g} at {list(outside)}, outside {bounds}; widen the space or clip"
    return f"{name} is {obs!r}, which is not in {space}; make them agree"


def _check_reward(reward: Any, findings: list[str]) -> None:
    if not isinstance(reward, int | float | np.integer | np.floating):
        findings.append(f"the reward is {_shape_of(reward)}; return one number")
    elif not np.isfinite(reward):
        findings.append(f"the reward is {reward}; return a finite number")


def _five(result: Any) -> Any:
    if isinstance(result, tuple) and len(result) == 4:
        raise _Stop(
            "step() returns 4 values as in the old gym API; return obs, reward, terminated, truncated, info"
        )
    if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], dict):
        raise _Stop(f"step() returns {_shape_of(result)}; return obs, reward, terminated, truncated, info")
    return result


class _ResetCounter:
    """Counts calls of reset on an environment and all that it wraps, by replacing the methods of the instances."""

    def __init__(self, env: Any) -> None:
        self.count = 0
        self._layers = [env]
        while isinstance(env, gymnasium.Wrapper):
            env = env.env
            self._layers.append(env)
        for layer in self._layers:
            layer.reset = self._counting(layer.reset)

    def _counting(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return reset(*args, **kwargs)

        return counted

    def undo(self) -> None:
        for layer in self._layers:
            del layer.reset


def _guard(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except Exception as error:  # an environment may raise anything, and it is reported
        old = "seed" in str(error) and isinstance(error, TypeError)
        remedy = "accept reset(*, seed=None, options=None)" if old else "fix it, then check again"
        raise _Stop(f"{what} raised {_brief(error)}; {remedy}") from error


def _boxes(space: Any, path: str) -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _boxes(child, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _boxes(child, f"{path}[{index}]")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_copied(inner) for inner in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return isinstance(b, tuple | list) and len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return bool(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f"))


def _shape_of(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}"


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
