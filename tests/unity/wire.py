"""The messages of ML-Agents as bytes, written and read by hand: nothing here uses protobuf or the package under test.

A message is a list of (field number, value): int and bool as varints, float as 4 bytes, str, bytes and lists of
messages as length-delimited fields. Lists of numbers are packed.
"""

import struct
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def block(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return tag(number, BYTES) + varint(len(content)) + content


def whole(number: int, value: int) -> bytes:
    """An int32, enum or bool; 0 is not sent."""
    return tag(number, VARINT) + varint(int(value)) if value else b""


def real(number: int, value: float) -> bytes:
    """A float; 0 is not sent."""
    return tag(number, FIXED32) + struct.pack("<f", value) if value else b""


def text(number: int, value: str) -> bytes:
    return block(number, value.encode()) if value else b""


def reals(number: int, values: Any) -> bytes:
    return block(number, struct.pack(f"<{len(values)}f", *values)) if len(values) else b""


def wholes(number: int, values: Any) -> bytes:
    return block(number, b"".join(varint(int(value)) for value in values)) if len(values) else b""


def read(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message: numbers, and bytes that `read`, `floats` or `ints` take apart further."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == VARINT:
            value, at = read_varint(data, at)
        elif kind == FIXED32:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == FIXED64:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
        found.setdefault(number, []).append(value)
    return found


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value - (1 << 64) if value >> 63 else value, at


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def ints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        found.append(value)
    return found


def inside(data: bytes, *path: int) -> bytes:
    """The bytes of a nested message; empty where it is missing."""
    for number in path:
        data = read(data).get(number, [b""])[-1]
    return data


# What a player sends


def message(output: bytes = b"", status: int = 200) -> bytes:
    return block(1, whole(1, status)) + (block(2, output) if output else b"")


def hello(version: str = "1.5.0") -> bytes:
    capabilities = b"".join(whole(number, 1) for number in range(1, 8))
    return message(
        block(2, text(1, "AcademySingleton") + text(2, version) + text(7, "3.0.0") + block(8, capabilities))
    )


def output(agents: dict[str, list[bytes]], brains: list[bytes] = (), side_channel: bytes = b"") -> bytes:  # type: ignore[assignment]
    """A step: agents by behaviour, and the behaviours that are announced with it."""
    entries = b"".join(
        block(2, text(1, key) + block(2, b"".join(block(1, agent) for agent in several)))
        for key, several in agents.items()
    )
    announced = block(2, b"".join(block(5, brain) for brain in brains)) if brains else b""
    return message(block(1, entries + (block(3, side_channel) if side_channel else b"")) + announced)


def brain(name: str, continuous: int = 0, branches: tuple[int, ...] = ()) -> bytes:
    spec = whole(1, continuous) + whole(2, len(branches)) + wholes(3, branches)
    return text(7, name) + whole(8, 1) + block(9, spec)


def agent(
    id: int,
    observations: list[bytes],
    reward: float = 0.0,
    done: bool = False,
    max_step: bool = False,
    mask: Any = (),
    group_reward: float = 0.0,
) -> bytes:
    return (
        real(7, reward)
        + whole(8, done)
        + whole(9, max_step)
        + whole(10, id)
        + wholes(11, mask)
        + b"".join(block(13, one) for one in observations)
        + real(15, group_reward)
    )


def vector(values: Any, name: str = "VectorSensor", properties: tuple[int, ...] = (1,)) -> bytes:
    """Numbers of any shape, as their own array has it or as one vector."""
    shape = getattr(values, "shape", (len(values),))
    flat = getattr(values, "ravel", lambda: values)()
    return wholes(1, shape) + block(4, reals(1, flat)) + wholes(6, properties) + text(8, name)


def picture(png: bytes, shape: tuple[int, ...], mapping: Any = (), name: str = "CameraSensor") -> bytes:
    return (
        wholes(1, shape)
        + whole(2, 1)
        + block(3, png)
        + wholes(5, mapping)
        + wholes(6, (1, 2, 2))
        + text(8, name)
    )


# What a player receives


def status(data: bytes) -> int:
    return read(inside(data, 1)).get(1, [0])[-1]


def command(data: bytes) -> int:
    """0: step, 1: reset."""
    return read(inside(data, 3, 1)).get(4, [0])[-1]


def side_channel(data: bytes) -> bytes:
    return read(inside(data, 3, 1)).get(5, [b""])[-1]


def seed(data: bytes) -> int:
    return read(inside(data, 3, 2)).get(1, [0])[-1]


def actions(data: bytes) -> dict[str, list[tuple[list[float], list[int]]]]:
    """Continuous and discrete actions of each agent, by behaviour."""
    found = {}
    for entry in read(inside(data, 3, 1)).get(1, []):
        fields = read(entry)
        several = [read(one) for one in read(fields.get(2, [b""])[-1]).get(1, [])]
        found[fields[1][-1].decode()] = [
            (floats(one.get(6, [b""])[-1]), ints(one.get(7, [b""])[-1])) for one in several
        ]
    return found
