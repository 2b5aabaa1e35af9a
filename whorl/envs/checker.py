"""Checks that an environment follows Gymnasium's interface; each finding comes with a remedy."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.arrays import MASK_KEY
from whorl.core.errors import EnvError, WhorlError
from whorl.core.spec import empty_action
from whorl.envs.adapter import factory_from_id
from whorl.envs.make import Batch, is_batch
from whorl.envs.mistakes import (
    MAKING,
    not_sendable,
    raised,
    wrong_flag,
    wrong_kind,
    wrong_observation,
    wrong_reset,
    wrong_reward,
    wrong_spaces,
    wrong_step,
)
from whorl.envs.spaces import Layout, describe, mask_reader, sample_allowed

STEPS = 1500
"""the longest part of an episode that is checked: more than the usual limit of 1000"""
SECONDS = 5.0
"""the longest time that one episode may take"""


BATCH_STEPS = 200
"""steps of a batched environment that are checked"""


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
        if is_batch(made):
            _check_batch(made)
            return findings
        _check_spaces(made, findings)
        player = _Player(made, _layout(made))
        first = _walk(player, findings)
        _check_repeats(player, first, findings)
        _check_bounds(made, findings)
    except _Stop as stop:
        findings.append(str(stop))
    finally:
        if made is not None and made is not env:
            made.close()
    return list(dict.fromkeys(findings))


def _check_batch(env: Any) -> None:
    """Raise for what training would refuse of an environment that steps many copies at once."""
    vector = _guard(lambda: Batch(env).vector(), MAKING)
    action = empty_action(vector.spec.action, (vector.spec.num_envs,))
    _guard(lambda: vector.reset(0), "reset(seed=0)")
    for _ in range(BATCH_STEPS):
        _guard(lambda: vector.step(action), "step()")


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
            findings.append(not_sendable(error))
        made = _guard(env, MAKING)
    if not is_batch(made):
        _stop_at(wrong_kind(made))
    return made


def _check_spaces(env: Any, findings: list[str]) -> None:
    _stop_at(wrong_spaces(env))
    for name in ("observation_space", "action_space"):
        for path, box in _boxes(getattr(env, name), name):
            if np.isnan(box.low).any() or np.isnan(box.high).any():
                findings.append(
                    f"{path} has NaN bounds; give numbers, or -inf and inf where there is no bound"
                )
            elif (box.low > box.high).any():
                findings.append(f"{path} has a lower bound above its upper bound; swap them")


def _layout(env: Any) -> Layout:
    _stop_at(wrong_reset(_guard(lambda: env.reset(seed=0), "reset(seed=0)")))
    try:
        return describe(env)
    except EnvError as error:
        raise _Stop(str(error)) from error


class _Player:
    """Plays random actions that the environment allows, the same ones after each `reset`."""

    def __init__(self, env: Any, layout: Layout) -> None:
        self.env, self._source = env, layout.mask
        self._read = mask_reader(layout, env)
        self._mask: np.ndarray | None = None

    def reset(self) -> Any:
        self.env.action_space.seed(0)
        obs, info = _guard(lambda: self.env.reset(seed=123), "reset(seed=123)")
        self._note(obs, info)
        return obs

    def step(self) -> Any:
        """What step() returns for a random action."""
        action = sample_allowed(self.env.action_space, self._mask)
        result = _guard(lambda: self.env.step(action), "step()")
        _stop_at(wrong_step(result))
        self._note(result[0], result[4])
        return result

    def _note(self, obs: Any, info: dict[str, Any]) -> None:
        if self._source != "none":
            given = obs if self._source == "observation" else info
            self._mask = _guard(lambda: self._read(given), f"reading {MASK_KEY}")


def _walk(player: _Player, findings: list[str]) -> list[Any]:
    """Run one episode with random actions and check all that it returns; returns the first steps, for comparison."""
    obs = player.reset()
    _check_obs(player.env, obs, "reset()", findings)
    trace: list[Any] = [_copied(obs)]
    resets = _ResetCounter(player.env)
    try:
        _follow(player, obs, resets, trace, findings)
    finally:
        resets.undo()
    return trace


def _follow(
    player: _Player, obs: Any, resets: "_ResetCounter", trace: list[Any], findings: list[str]
) -> None:
    deadline = time.monotonic() + SECONDS
    for _ in range(STEPS):
        before, kept = obs, _copied(obs)
        obs, reward, terminated, truncated, info = player.step()
        _check_obs(player.env, obs, "step()", findings)
        _add(findings, wrong_reward(reward))
        if not _same(before, kept):
            findings.append(
                "step() overwrites the observation it returned before; return a copy of the array"
            )
        _add(findings, wrong_flag("terminated", terminated))
        _add(findings, wrong_flag("truncated", truncated))
        if len(trace) < 200:
            trace.append((_copied(obs), reward, terminated, truncated))
        if resets.count or "final_obs" in info or "final_observation" in info:
            findings.append("the environment resets itself inside step(); leave that to the caller")
            break
        if findings or terminated or truncated or time.monotonic() > deadline:
            break
    else:
        if getattr(player.env.spec, "max_episode_steps", None) is None:
            findings.append(
                f"no episode ended within {STEPS} random steps; if that is not intended, add a limit with "
                f"gymnasium.wrappers.TimeLimit"
            )


def _check_repeats(player: _Player, first: list[Any], findings: list[str]) -> None:
    """The same seed and actions must give the same episode."""
    if findings:
        return
    if not _same(player.reset(), first[0]):
        findings.append(
            "reset(seed=123) twice gives different observations; draw from self.np_random only and set every "
            "attribute in reset(); a wrapper that keeps statistics, such as NormalizeObservation, is normalize_obs here"
        )
        return
    for index, expected in enumerate(first[1:], 1):
        if not all(_same(a, b) for a, b in zip(player.step()[:4], expected)):
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
            _stop_at(wrong_step(result))
            obs, reward, terminated, truncated, _ = result
            _check_obs(env, obs, "step() at the action bounds", findings)
            _add(findings, wrong_reward(reward))
            if terminated or truncated:
                break
    env.reset(seed=1)


def _check_obs(env: Any, obs: Any, where: str, findings: list[str]) -> None:
    _add(findings, wrong_observation(env.observation_space, obs, f"the observation of {where}"))


def _add(findings: list[str], found: str | None) -> None:
    if found is not None:
        findings.append(found)


def _stop_at(found: str | None) -> None:
    if found is not None:
        raise _Stop(found)


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
        text = error.message if isinstance(error, WhorlError) else raised(what, error)
        raise _Stop(text if ";" in text else f"{text}; fix it, then check again") from error


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
