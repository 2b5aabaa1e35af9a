"""Side channels: bytes beside the messages, with which engine settings and parameters of an environment are set.

A message is a sequence of records: the channel's UUID in .NET's byte order, the length of the payload as int32, the
payload. Numbers are little endian, strings are ASCII with their length before them.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from whorl.core.errors import EnvError, nearest

ENGINE = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400")
SAMPLERS = ("uniform", "gaussian", "multi_range")
"""distributions from which a player draws a parameter in every episode, in the order of their numbers"""


def record(channel: UUID, payload: bytes) -> bytes:
    """One record of a side channel."""
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def engine_settings(
    width: int,
    height: int,
    quality_level: int,
    time_scale: float,
    target_frame_rate: int,
    capture_frame_rate: int,
) -> bytes:
    """Records that set the engine: size of the window, quality, speed and frame rates."""
    payloads = (
        struct.pack("<iii", 0, width, height),
        struct.pack("<ii", 1, quality_level),
        struct.pack("<if", 2, time_scale),
        struct.pack("<ii", 3, target_frame_rate),
        struct.pack("<ii", 4, capture_frame_rate),
    )
    return b"".join(record(ENGINE, payload) for payload in payloads)


def parameters(values: Mapping[str, Any], seed: int = 0) -> bytes:
    """Records that set parameters of the environment: numbers, or distributions such as {"uniform": [0, 1]}."""
    found = b""
    for name, value in values.items():
        if isinstance(value, Mapping):
            payload = struct.pack("<ii", 1, seed) + _sampler(name, value)
        elif isinstance(value, int | float):
            payload = struct.pack("<if", 0, value)
        else:
            raise _wrong(name, value)
        found += record(PARAMETERS, _string(name) + payload)
    return found


def _sampler(name: str, value: Mapping[str, Any]) -> bytes:
    if len(value) != 1:
        raise _wrong(name, value)
    kind, numbers = next(iter(value.items()))
    if kind not in SAMPLERS:
        raise EnvError(f"parameter {name!r} has the distribution {kind!r}; {nearest(str(kind), SAMPLERS)}")
    if kind == "multi_range":
        try:
            flat = [float(number) for low, high in numbers for number in (low, high)]
        except (TypeError, ValueError):
            raise _wrong(name, value) from None
        return struct.pack(f"<ii{len(flat)}f", SAMPLERS.index(kind), len(flat), *flat)
    if not isinstance(numbers, Sequence) or len(numbers) != 2:
        raise _wrong(name, value)
    return struct.pack("<iff", SAMPLERS.index(kind), *numbers)


def _wrong(name: str, value: Any) -> EnvError:
    return EnvError(
        f"parameter {name!r} is {value!r}; give a number, {{uniform: [min, max]}}, {{gaussian: [mean, deviation]}} or "
        "{multi_range: [[min, max], ...]}"
    )


def _string(text: str) -> bytes:
    try:
        encoded = text.encode("ascii")
    except UnicodeEncodeError:
        raise EnvError(f"parameter {text!r} has letters that Unity can't read; use ASCII") from None
    return struct.pack("<i", len(encoded)) + encoded
