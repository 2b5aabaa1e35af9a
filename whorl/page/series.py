"""Columns of metrics.jsonl, read as the file grows: only new bytes are read, and only the metrics asked for are parsed.

Rows are flat JSON objects, one to a line (log/writers.py), so the value of a key is found by its name alone; that is
several times faster than parsing whole rows. A line that is still being written is left for the next time.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from whorl.log.statistics import Curve, Floats

TAIL = 1 << 15
"""bytes at the end of a file from which the newest values are taken"""
CHUNK = 1 << 24
"""bytes that are read at once"""
MARK = 256
"""bytes before the end that show whether a file was truncated and rewritten"""
_KEY = re.compile(rb'"((?:[^"\\]|\\.)+)":')


@dataclass
class Series:
    """One metric of one run over one axis, as far as it has been read."""

    axis: str
    metric: str
    offset: int = 0
    _mark: bytes = b""
    _parts: list[Curve] = field(default_factory=list)

    @property
    def curve(self) -> Curve:
        """Positions and values; not finite where a run wrote nan."""
        if len(self._parts) > 1:
            self._parts = [tuple(np.concatenate(part) for part in zip(*self._parts))]  # type: ignore[list-item]
        return self._parts[0] if self._parts else (np.empty(0), np.empty(0))

    def _rewind(self, file: Any, size: int) -> None:
        """Start from the beginning if what was read is no longer there: a resumed run replaces rows."""
        file.seek(max(0, min(self.offset, size) - len(self._mark)))
        if size < self.offset or file.read(len(self._mark)) != self._mark:
            self.offset, self._mark, self._parts = 0, b"", []

    def _take(self, lines: bytes, ends: Any, axis: "Column") -> None:
        self.offset += len(lines)
        self._mark = (self._mark + lines[-MARK:])[-MARK:]
        self._parts.append(_together(len(ends), axis, _column(lines, ends, self.metric)))


def update(path: Path, series: Sequence[Series]) -> None:
    """Read what is new of a file for several series over one axis, each byte once where they are equally far."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for one in series:
            one._rewind(file, size)
        for start in sorted({one.offset for one in series}):
            group, offset = [one for one in series if one.offset == start], start
            while offset < size:
                file.seek(offset)
                lines = _whole_lines(file.read(min(CHUNK, size - offset)))
                if not lines:  # half a line, or one that does not end
                    break
                ends = _ends(lines)
                axis = _column(lines, ends, group[0].axis)
                for one in group:
                    one._take(lines, ends, axis)
                offset += len(lines)


Column = tuple[Any, Floats]
"""the numbers of the rows that have a key, None if all have it, and its values"""


def columns(lines: bytes, axis: str, metric: str) -> Curve:
    """The values of two keys in the rows that have both."""
    ends = _ends(lines)
    return _together(len(ends), _column(lines, ends, axis), _column(lines, ends, metric))


def _together(count: int, axis: Column, metric: Column) -> Curve:
    (at, positions), (rows, values) = axis, metric
    if at is None and rows is None:
        return positions, values
    at, rows = (np.arange(count) if found is None else found for found in (at, rows))
    _, left, right = np.intersect1d(at, rows, assume_unique=True, return_indices=True)
    return positions[left], values[right]


def _ends(lines: bytes) -> Any:
    """Where lines end."""
    return np.flatnonzero(np.frombuffer(lines, np.uint8) == 10)


def _column(lines: bytes, ends: Any, key: str) -> Column:
    first = lines.find(_name(key))
    if first < 0:
        return np.empty(0, np.int64), np.empty(0)
    pattern = _pattern(key)
    # A metric that is not in the first row is not in every row: where its values stand is needed as well.
    if first < ends[0] and len(texts := pattern.findall(lines)) == len(ends):
        return None, _numbers(texts)
    found = list(pattern.finditer(lines, first))
    return np.searchsorted(ends, [match.start() for match in found]), _numbers([match[1] for match in found])


@lru_cache(maxsize=1024)
def _pattern(key: str) -> "re.Pattern[bytes]":
    return re.compile(re.escape(_name(key)) + rb':\s*"?([^",}\s]+)')


def _name(key: str) -> bytes:
    return json.dumps(key, ensure_ascii=False).encode()


def _numbers(texts: Sequence[bytes]) -> Floats:
    try:
        return np.array(list(map(float, texts)))
    except ValueError:  # words among numbers
        return np.array([_number(text) for text in texts])


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


class Tail:
    """The newest rows of a metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            data = file.read(TAIL)
        if size > TAIL:
            data = data[data.find(b"\n") + 1 :]
        self._lines = _whole_lines(data)

    def newest(self, endings: Iterable[str]) -> dict[str, Any]:
        """The newest row, over the newest rows that have keys with these endings."""
        found: dict[str, Any] = {}
        for ending in endings:
            at = self._lines.rfind(f'{ending}":'.encode())
            newest = self._row(at) if at >= 0 else {}
            if any(key.endswith(f"/{ending}") for key in newest):
                # Episodes of several behaviours end in different rows.
                keys = [key for key in self.keys() if key.endswith(f"/{ending}")]
                for place in sorted(self._lines.rfind(_name(key) + b":") for key in keys):
                    found |= self._row(place)
            found |= newest
        return found | self._row(len(self._lines) - 1)

    def rate(self, key: str, over: str = "time/elapsed") -> float:
        """How much of a key a second brings, over these rows; 0 if that is not known."""
        first, last = self._row(0), self._row(len(self._lines) - 1)
        try:
            span = float(last[over]) - float(first[over])
            return (float(last[key]) - float(first[key])) / span if span > 0 else 0.0
        except (KeyError, ValueError):
            return 0.0

    def keys(self) -> list[str]:
        """All keys of these rows, in the order in which they first appear."""
        found = dict.fromkeys(_KEY.findall(self._lines))
        return [json.loads(b'"' + key + b'"') for key in found]

    def rows(self, count: int) -> list[dict[str, Any]]:
        """The newest rows."""
        lines = self._lines.splitlines()[-count:]
        return [row for line in lines if isinstance(row := _json(line), dict)]

    def _row(self, at: int) -> dict[str, Any]:
        """The row around a place."""
        start = self._lines.rfind(b"\n", 0, max(at, 0)) + 1
        row = _json(self._lines[start : self._lines.find(b"\n", at) + 1]) if self._lines else None
        return row if isinstance(row, dict) else {}


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def thin(curve: Curve, points: int) -> Curve:
    """The lowest and the highest value of each of `points // 2` buckets, in their order: no peak is lost."""
    positions, values = _finite(curve)
    if len(values) <= points:
        return positions, values
    size = -(-len(values) // (points // 2))
    padded = np.append(values, np.full(-len(values) % size, values[-1])).reshape(-1, size)
    start = np.arange(len(padded)) * size
    extremes = np.concatenate([start + padded.argmin(1), start + padded.argmax(1), [0, len(values) - 1]])
    kept = np.unique(np.minimum(extremes, len(values) - 1))
    return positions[kept], values[kept]


def averaged(curve: Curve, points: int) -> Curve:
    """Means of `points` buckets of neighbouring points: what is smoothed afterwards needs no more of them."""
    positions, values = _finite(curve)
    if len(values) <= points:
        return positions, values
    edges = np.linspace(0, len(values), points + 1).astype(int)
    size = np.diff(edges)
    means = [np.add.reduceat(part, edges[:-1]) / size for part in (positions, values)]
    # The ends stay, so that curves reach as far as their runs.
    means[0][0], means[0][-1] = positions[0], positions[-1]
    return means[0], means[1]


def _finite(curve: Curve) -> Curve:
    kept = np.isfinite(curve[0]) & np.isfinite(curve[1])
    return curve[0][kept], curve[1][kept]
