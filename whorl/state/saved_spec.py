"""A `Spec` as plain containers, as checkpoints and policy files hold it."""

from dataclasses import asdict
from math import prod
from typing import Any, get_type_hints

import numpy as np

from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, Spec, Stream, TupleSpec
from whorl.settings.schema import coerce

_LEAVES = {kind.__name__: kind for kind in (Array, Continuous, Discrete, MultiDiscrete)}


def pack_spec(spec: Spec) -> dict[str, Any]:
    """A spec as plain containers."""

    def pack(value: Any) -> Any:
        if isinstance(value, TupleSpec):
            return [pack(branch) for branch in value.values()]
        if isinstance(value, dict):
            return {key: pack(branch) for key, branch in value.items()}
        return {"leaf": type(value).__name__, **{k: _plain(v) for k, v in asdict(value).items()}}

    return {
        "observation": pack(spec.observation),
        "action": pack(spec.action),
        "num_envs": spec.num_envs,
        "streams": [asdict(stream) for stream in spec.streams],
        "parameters_of": _plain(spec.parameters_of),
    }


def unpack_spec(packed: dict[str, Any]) -> Spec:
    """The inverse of `pack_spec`."""

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return TupleSpec({str(number): unpack(branch) for number, branch in enumerate(value)})
        if not isinstance(value.get("leaf"), str):  # a dict may have a branch of that name
            return {key: unpack(branch) for key, branch in value.items()}
        return _typed(_LEAVES[value["leaf"]], {k: v for k, v in value.items() if k != "leaf"})

    streams = tuple(_typed(Stream, stream) for stream in packed.get("streams", ()))
    used = tuple(tuple(map(int, entry)) for entry in packed.get("parameters_of", ()))
    spaces = unpack(packed["observation"]), unpack(packed["action"])
    return Spec(*spaces, int(packed["num_envs"]), streams=streams, parameters_of=used)


def _typed(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass whose fields have the types that it declares."""
    hints = get_type_hints(kind)
    found = {name: coerce(name, value, hints[name]) for name, value in values.items()}
    np.dtype(found.get("dtype"))  # raises where it is none
    leaf = kind(**found)
    if isinstance(leaf, Continuous) and not len(leaf.low) == len(leaf.high) == prod(leaf.shape):
        raise ValueError(f"actions of shape {leaf.shape} have {len(leaf.low)} and {len(leaf.high)} bounds")
    return leaf


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
