"""The exact state of one Gymnasium environment as plain data, including wrappers and the random stream.

Plain data are containers, numbers, strings and numpy arrays: nothing is unpickled, so restoring runs no foreign code.
Supported are Gymnasium's environments with their state in plain attributes (classic control, toy text), its MuJoCo
environments, and environments and wrappers with `get_snapshot()` and `set_snapshot(snapshot)`. Others have none.
"""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.mistakes import failure, raised, theirs

PLAIN_FAMILIES = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")
MUJOCO_FAMILY = "gymnasium.envs.mujoco."
SKIPPED = {
    *("env", "spec", "metadata", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"),
    *("model", "data", "mujoco_renderer", "P", "desc"),
    *("screen", "clock", "surf", "window_surface", "isopen"),
}
"""attributes that a new environment already has, that are saved in another way, or that are only used to render"""


class _Unknown(Exception):
    """A value that can't be expressed as plain data."""


def snapshot_env(env: gymnasium.Env) -> dict[str, Any] | None:
    """The state from which `restore_env` continues exactly, or None where that can't be guaranteed."""
    layers: list[dict[str, Any]] = []
    try:
        for layer in _stack(env):
            if hasattr(layer, "get_snapshot") and hasattr(layer, "set_snapshot"):
                # Includes what the layer wraps.
                own = _own_snapshot(layer)
                layers.append({"own": encode(own)})
                return None if own is None else {"layers": layers}
            state: dict[str, Any] = {"attributes": _attributes(layer)}
            if not isinstance(layer, gymnasium.Wrapper):
                family = type(layer).__module__ + "."
                if family.startswith(MUJOCO_FAMILY) and hasattr(layer, "data"):
                    state["data"] = mujoco_state(layer.model, layer.data)
                elif not family.startswith(PLAIN_FAMILIES):
                    return None
            layers.append(state)
    except _Unknown:
        return None
    return {"layers": layers}


def restore_env(env: gymnasium.Env, snapshot: dict[str, Any]) -> None:
    """Continue from a snapshot of an environment made in the same way; `env` need not have been reset."""
    layers = snapshot["layers"]
    stack = list(_stack(env))
    covered = bool(layers) and "own" in layers[-1]
    if len(layers) > len(stack) or (len(layers) < len(stack) and not covered):
        raise EnvError(
            f"the snapshot has {len(layers)} layers but {env} has {len(stack)}; use the same wrappers"
        )
    for layer, state in zip(stack, layers):
        if "own" in state:
            layer.set_snapshot(decode(state["own"], None))
            continue
        for name, value in state["attributes"].items():
            setattr(layer, name, decode(value, layer.__dict__.get(name)))
        if "data" in state:
            restore_mujoco(layer.data, state["data"])


def _own_snapshot(layer: Any) -> Any:
    try:
        return layer.get_snapshot()
    except (WhorlError, _Unknown):
        raise
    except Exception as error:  # an environment may raise anything
        raise failure(raised("get_snapshot()", error), error) from theirs(error)


def _stack(env: Any) -> Any:
    """The layers from the outermost wrapper to the environment itself."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def _attributes(layer: Any) -> dict[str, Any]:
    ours = type(layer).__module__.startswith("gymnasium.")
    found = {}
    for name, value in layer.__dict__.items():
        if name in SKIPPED or isinstance(value, spaces.Space):
            continue
        if ours and callable(value):
            continue
        found[name] = encode(value)
    return found


def mujoco_state(model: Any, data: Any) -> dict[str, Any]:
    """Every array of MjData whose size depends on the model alone: the state, the warm start, and derived quantities
    that the next step reads before it simulates (positions, forces). Constraint arrays are recomputed by each step.
    """
    import mujoco

    if model.nplugin:
        raise _Unknown
    blank = mujoco.MjData(model)
    state: dict[str, Any] = {"time": float(data.time)}
    for name in dir(data):
        value = None if name.startswith("_") else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and getattr(blank, name).shape == value.shape:
            state[name] = value.copy()
    return state


def restore_mujoco(data: Any, state: dict[str, Any]) -> None:
    """Write what `mujoco_state` found into the MjData of the same model."""
    for name, value in state.items():
        if name == "time":
            data.time = float(value)
        else:
            getattr(data, name)[...] = value


def encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | float | str):
        # np.float64 is a float and np.bool_ is not a bool; both must be restored with their type.
        return _scalar(value) if isinstance(value, np.generic) else value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else {"kind": "int", "value": str(value)}
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise _Unknown
        return value.copy()
    if isinstance(value, np.random.Generator):
        stream = value.bit_generator
        return {"kind": "stream", "name": type(stream).__name__, "value": encode(dict(stream.state))}
    if isinstance(value, deque):
        return {"kind": "deque", "value": [encode(x) for x in value], "length": value.maxlen}
    if isinstance(value, list | tuple):
        return {"kind": type(value).__name__, "value": [encode(x) for x in value]}
    if isinstance(value, dict):
        return {
            "kind": "dict",
            "keys": [encode(k) for k in value],
            "value": [encode(x) for x in value.values()],
        }
    if type(value).__module__.startswith("gymnasium.wrappers"):
        return {"kind": "object", "value": {name: encode(x) for name, x in vars(value).items()}}
    raise _Unknown


def _scalar(value: np.generic) -> dict[str, Any]:
    if value.dtype.kind not in "biuf":
        raise _Unknown
    return {"kind": "scalar", "value": np.asarray(value)}


def decode(value: Any, current: Any) -> Any:
    """The value that was encoded; an object is restored into `current`, the one that the layer has."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, dict):
        return value
    kind, inner = value["kind"], value["value"]
    if kind == "int":
        return int(inner)
    if kind == "scalar":
        return inner[()]
    if kind == "dict":
        return {decode(key, None): decode(x, None) for key, x in zip(value["keys"], inner)}
    if kind == "list":
        return [decode(x, None) for x in inner]
    if kind == "tuple":
        return tuple(decode(x, None) for x in inner)
    if kind == "deque":
        return deque((decode(x, None) for x in inner), value["length"])
    if kind == "object":
        for name, x in inner.items():
            setattr(current, name, decode(x, vars(current).get(name)))
        return current
    return _stream(value["name"], decode(inner, None))


def _stream(name: str, state: dict[str, Any]) -> np.random.Generator:
    known = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM, "MT19937": np.random.MT19937}
    known |= {"Philox": np.random.Philox, "SFC64": np.random.SFC64}
    if name not in known:
        raise EnvError(
            f"the snapshot has an unknown random stream {name!r}; supported are {', '.join(known)}"
        )
    bits: Any = known[name]()
    bits.state = state
    return np.random.Generator(bits)
