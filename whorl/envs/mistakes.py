"""Mistakes of environments, a sentence each, for `whorl check` and the errors of training.

Each function returns the sentence, or None where nothing is wrong. Imports no torch, because workers use it.
"""

import os
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.errors import EnvError, EnvFailure, WhorlError
from whorl.core.hardware import has_display

MAKING = "making the environment"


def wrong_kind(made: Any) -> str | None:
    """An object that is not a `gymnasium.Env`."""
    if isinstance(made, gymnasium.Env):
        return None
    old = type(made).__module__.partition(".")[0] == "gym" or hasattr(made, "seed")
    why = "it follows the old gym API" if old else "it is not a gymnasium.Env"
    return f"{type(made).__name__} can't be used because {why}; derive it from gymnasium.Env"


def wrong_spaces(env: Any) -> str | None:
    """A missing space."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            return f"{name} is {space!r}; set it to a gymnasium space in __init__"
    return None


def wrong_reset(result: Any) -> str | None:
    """What `reset` returned, if that is not (observation, info)."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    return f"reset() returns {form_of(result)}; return (observation, info) with info a dict"


def wrong_step(result: Any) -> str | None:
    """What `step` returned, if that is not (obs, reward, terminated, truncated, info)."""
    if isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict):
        return None
    remedy = "return obs, reward, terminated, truncated, info"
    if isinstance(result, tuple) and len(result) == 4:
        return f"step() returns 4 values as in the old gym API; {remedy}"
    if isinstance(result, tuple) and len(result) == 5:
        return f"step() returns {form_of(result[4])} as info; {remedy} with info a dict"
    return f"step() returns {form_of(result)}; {remedy}"


def wrong_reward(reward: Any) -> str | None:
    """A reward that is not one finite number."""
    if not isinstance(reward, int | float | np.integer | np.floating):
        return f"the reward is {form_of(reward)}; return one number"
    return None if np.isfinite(reward) else f"the reward is {reward}; return a finite number"


def wrong_flag(name: str, flag: Any) -> str | None:
    """`terminated` or `truncated`, if that is not a bool."""
    if isinstance(flag, bool | np.bool_):
        return None
    return f"step() returns {name} as {type(flag).__name__}; return a bool"


def wrong_observation(space: spaces.Space, obs: Any, name: str) -> str | None:
    """Why `obs` is not in `space`."""
    # Box.contains accepts a list, which is slow to convert at every step. A Box without axes samples numpy's scalars.
    array = isinstance(obs, np.ndarray | np.generic)
    if (array or not isinstance(space, spaces.Box)) and space.contains(obs):
        return None
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        if set(obs) != set(space.spaces):
            return f"{name} has the keys {sorted(obs, key=str)} but its space {sorted(space.spaces)}; make them agree"
        for key, child in space.spaces.items():
            if not child.contains(obs[key]):
                return wrong_observation(child, obs[key], f"{name}, key {key!r},")
    if isinstance(space, spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space.spaces):
        for number, (child, part) in enumerate(zip(space.spaces, obs)):
            if not child.contains(part):
                return wrong_observation(child, part, f"{name}, entry {number},")
    if isinstance(space, spaces.Box):
        return _wrong_array(space, obs, name)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        kind = "a Dict" if isinstance(space, spaces.Dict) else f"a Tuple of {len(space.spaces)}"
        return f"{name} is {form_of(obs)} but its space {kind}; make them agree"
    return f"{name} is {obs!r}, which is not in {space}; make them agree"


def _wrong_array(space: spaces.Box, obs: Any, name: str) -> str:
    if obs is None or isinstance(obs, dict | str | bytes):
        return f"{name} is {form_of(obs)} but its space an array of shape {space.shape}; make them agree"
    shape = _shape(obs)
    if shape is not None and shape != space.shape:
        return f"{name} has shape {shape} but its space {space.shape}; make them agree"
    if not isinstance(obs, np.ndarray | np.generic):
        return f"{name} is a {type(obs).__name__}; return a numpy array"
    obs = np.asarray(obs)
    if not np.can_cast(obs.dtype, space.dtype):
        return f"{name} is {obs.dtype} but its space {space.dtype}; cast it or change the space's dtype"
    if np.isnan(obs).any():
        return f"{name} contains NaN; find the division or root that makes it"
    outside = tuple(int(i) for i in np.argwhere((obs < space.low) | (obs > space.high))[0])
    bounds = f"[{space.low[outside]:g}, {space.high[outside]:g}]"
    return f"{name} holds {obs[outside]:g} at {list(outside)}, outside {bounds}; widen the space or clip"


def _shape(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(np.shape(value))
    except ValueError:  # a list whose entries have different lengths
        return None


def raised(what: str, error: Exception) -> str:
    """An exception of the environment in `what`, such as step(), with a remedy where one is known."""
    lines = str(error).strip().splitlines()
    brief = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{what} raised {brief}{_remedy(what, error)}"


def _remedy(what: str, error: Exception) -> str:
    text = str(error)
    if what.startswith("reset") and "NoneType" in text:
        return "; reset is called without options, so that its argument `options` is None"
    if not isinstance(error, TypeError):
        return ""
    if what.startswith("reset") and ("seed" in text or "options" in text):
        return "; accept reset(*, seed=None, options=None)"
    if what == MAKING and "missing" in text and "argument" in text:
        name = (re.findall(r"'(\w+)'", text) or ["NAME"])[0]
        return f"; give it in env_options (on the command line --env_options.{name} VALUE)"
    return ""


def not_sendable(error: Exception) -> str:
    """The sentence for a function that can't be pickled."""
    return (
        f"the function that makes the environment can't be sent to worker processes "
        f"({raised('pickling it', error)}); open files, viewers and sockets inside it, not outside"
    )


def make_env(factory: Callable[[], Any]) -> Any:
    """What a factory makes; its own exceptions become an `EnvError`."""
    _silence_pygame()
    try:
        return factory()
    except (WhorlError, ImportError):  # ImportError: the caller knows which package to install
        raise
    except Exception as error:  # an environment may raise anything
        raise failure(raised(MAKING, error), error) from theirs(error)


def _silence_pygame() -> None:
    """Environments that draw with pygame import it, and it greets; SDL complains where there is no display."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def failure(sentence: str, error: Exception) -> EnvError:
    """The error for an exception of an environment; a mistake in how it was called needs no traceback."""
    if isinstance(error, WhorlError):
        return EnvError(sentence, error.details)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else str(at.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    called_wrongly = isinstance(error, TypeError) and module in ("whorl", "gymnasium")
    return EnvError(sentence) if called_wrongly else EnvFailure(sentence)


def theirs(error: Exception) -> Exception:
    """The error without the frame that caught it, so that its traceback begins in the environment's code."""
    inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return error if inner is None else error.with_traceback(inner)


def form_of(value: Any) -> str:
    """What a value is, for messages."""
    if value is None:
        return "None"
    if isinstance(value, dict):
        return f"a dict with the keys {sorted(value, key=str)}" if value else "an empty dict"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}"
