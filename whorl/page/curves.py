"""Curves of the runs that a page shows: read as they grow, grouped as `whorl plot` does it, with few points each."""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from whorl.log.groups import (
    COLOURS,
    EVALUATION,
    RETURN,
    STYLE,
    Style,
    evaluations,
    flat,
    grouped,
    overlap,
    segments,
    shown,
)
from whorl.log.statistics import Curve, Floats
from whorl.page.catalog import Entry
from whorl.page.series import Series, Tail, averaged, thin, update

RAW = 600
"""points of a curve that is not smoothed"""
SMOOTHED = 1500
"""points that are smoothed; their neighbours are nearer than what smoothing can tell apart"""
DRAWN = 250
"""points of a curve that is drawn smoothly"""
KEPT = 4000
"""series that are kept in memory"""
READ_SECONDS = 0.4
"""an answer comes after so long, with the runs that were read by then"""
DASHES = ("solid", "dash", "dot", "dashdot")
COLUMNS = 40
"""groups in the table of settings that differ"""
COUNTS = ("steps", "iteration", "episodes", "updates")


@dataclass(frozen=True)
class Query:
    """What a page shows."""

    metric: str = RETURN
    style: Style = STYLE
    have: Mapping[str, str] = field(default_factory=dict)
    """digests of the curves that the page has, by key: they are not sent a second time"""


STANDARD = Query()


class Curves:
    """Series of metrics by run, and what was computed from them."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, str, str], Series] = OrderedDict()
        self._drawn: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def panels(
        self, entries: Sequence[Entry], query: Query, read_seconds: float = READ_SECONDS
    ) -> dict[str, Any]:
        """One panel per metric and environment with the curves of these runs."""
        with self._lock:
            return self._panels([entry for entry in entries if not entry.population], query, read_seconds)

    def prefetch(self, entries: Sequence[Entry], query: Query = STANDARD) -> None:
        """Read the curves of runs, and compute what is drawn, before a page asks for them."""
        runs = [entry for entry in entries if not entry.population]
        names = expanded(query.metric, metrics_of(runs))
        for entry in runs:
            with self._lock:
                self._read([entry], names, query.style, float("inf"))
            time.sleep(0.001)  # a page that asks meanwhile takes the lock
        self.panels(runs, query)

    def _panels(self, entries: Sequence[Entry], query: Query, seconds: float) -> dict[str, Any]:
        stop = time.monotonic() + seconds
        metrics = metrics_of(entries)
        names = expanded(query.metric, metrics)
        groups = {
            env: grouped([entry for entry in entries if entry.env == env], style=query.style)
            for env in dict.fromkeys(entry.env for entry in entries)
        }
        # One group after the other, so that the first ones are complete as early as can be.
        ordered = [run for found in groups.values() for runs in found.values() for run in runs]
        waiting = self._read(ordered, names, query.style, stop)
        labels = list(dict.fromkeys(label for found in groups.values() for label in found))
        look = {
            label: {
                "colour": COLOURS[index % len(COLOURS)],
                "dash": DASHES[index // len(COLOURS) % len(DASHES)],
            }
            for index, label in enumerate(labels)
        }
        panels = []
        for name in names:
            for env, found in groups.items():
                drawn = [
                    {"label": label, **look[label], **self._group(f"{name}|{env}|{label}", runs, name, query)}
                    for label, runs in found.items()
                ]
                curves = [group for group in drawn if group["digest"]]
                if curves:
                    panels.append({"env": env, "metric": name, "groups": curves})
        colours = {
            run.name: look[label]["colour"]
            for found in groups.values()
            for label, runs in found.items()
            for run in runs
        }
        return {
            "panels": panels,
            "metrics": metrics,
            "shown": names,
            "waiting": waiting,
            "colours": colours,
            "differ": _differ(groups),
        }

    def _read(self, entries: Sequence[Entry], metrics: Sequence[str], style: Style, stop: float) -> int:
        """Read what is new of each run until the time is over; the number of runs that have not been read yet."""
        wanted = (*metrics, EVALUATION) if RETURN in metrics else tuple(metrics)
        waiting = 0
        for entry in entries:
            keys = [(entry.name, style.axis, metric) for metric in wanted]
            new = any(key not in self._series for key in keys)
            if new and time.monotonic() > stop:
                waiting += 1
                continue
            path = entry.metrics
            for key in keys:
                self._series.setdefault(key, Series(*key[1:]))
                self._series.move_to_end(key)
            if path is not None:
                with suppress(OSError):  # it was deleted meanwhile
                    update(path, [self._series[key] for key in keys])
        while len(self._series) > max(KEPT, len(entries) * len(wanted)):
            self._series.popitem(last=False)
        return waiting

    def _group(self, key: str, runs: Sequence[Entry], metric: str, query: Query) -> dict[str, Any]:
        """The curve of a group; only its digest where the page has it already."""
        style = query.style
        found = {run.name: self._series.get((run.name, style.axis, metric)) for run in runs}
        series = {name: one for name, one in found.items() if one is not None}
        points = [self._series.get((run.name, style.axis, EVALUATION)) for run in runs]
        marks = [one for one in points if one is not None] if metric == RETURN else []
        state = (key, style, tuple((name, one.offset) for name, one in series.items()), len(marks))
        if state not in self._drawn:
            curves = {name: one.curve for name, one in series.items()}
            # The band of a group of which seeds are missing would be computed for nothing.
            look = style if len(curves) == len(runs) else replace(style, band="none")
            self._drawn[state] = _drawing(curves, [one.curve for one in marks], look)
            while len(self._drawn) > KEPT:
                self._drawn.popitem(last=False)
        self._drawn.move_to_end(state)
        drawing = self._drawn[state]
        common = {"key": key, "runs": [run.name for run in runs], "digest": drawing["digest"]}
        return common if query.have.get(key) == drawing["digest"] else {**common, **drawing}


def metrics_of(entries: Sequence[Entry]) -> list[str]:
    """The metrics of runs: those that people look at first, then the others by name."""
    found: dict[str, None] = {}
    for entry in entries:
        if (path := entry.metrics) is not None:
            found |= dict.fromkeys(_keys(str(path), entry.signature))
    names = [name for name in found if name not in COUNTS]
    return sorted(names, key=lambda name: (not name.endswith(RETURN), not name.endswith(EVALUATION), name))


@lru_cache(maxsize=KEPT)
def _keys(path: str, signature: object) -> tuple[str, ...]:
    """The keys of a file's newest rows; another signature says that the file has changed."""
    try:
        return tuple(Tail(Path(path)).keys())
    except OSError:
        return ()


def expanded(metric: str, metrics: Sequence[str]) -> list[str]:
    """A metric, or what there is of it: that of every behaviour, or evaluations instead of training episodes."""
    if metric in metrics:
        return [metric]
    theirs = [name for name in metrics if name.endswith(f"/{metric}")]
    if not theirs and metric == RETURN and EVALUATION in metrics:
        return [EVALUATION]
    return theirs or [metric]


def _drawing(found: Mapping[str, Curve], marks: Sequence[Curve], style: Style) -> dict[str, Any]:
    """Lines, band and points of one group, as lists of numbers."""
    curves = {name: curve for name, curve in found.items() if np.isfinite(curve[1]).any()}
    smoothed = [style.smoothed(averaged(curve, SMOOTHED)) for curve in curves.values()]
    lines: list[dict[str, Any]] = []
    if len(smoothed) > 1 and overlap(smoothed):
        for part in segments(smoothed, style, DRAWN):
            drawn: dict[str, Any] = {"x": _places(part.grid), "y": _values(part.centre), "fewer": part.fewer}
            if part.bounds is not None:
                drawn |= {"low": _values(part.bounds[0]), "high": _values(part.bounds[1])}
            lines.append(drawn)
    else:
        for curve, even in zip(curves.values(), smoothed):
            raw, line = thin(curve, RAW), thin(even, DRAWN)
            lines.append({"x": _places(raw[0]), "y": _values(raw[1]), "raw": True})
            lines.append({"x": _places(line[0]), "y": _values(line[1]), "fewer": False})
    known = [(mark[0][np.isfinite(mark[1])], mark[1][np.isfinite(mark[1])]) for mark in marks]
    places, values = evaluations(known, style)
    points = thin((places, values), RAW) if len(places) else (places, values)
    drawing: dict[str, Any] = {
        "seeds": len(curves),
        "lines": lines,
        "points": {"x": _places(points[0]), "y": _values(points[1])},
    }
    empty = not lines and not len(points[0])
    digest = "" if empty else hashlib.sha256(json.dumps(drawing).encode()).hexdigest()[:16]
    return {**drawing, "digest": digest}


def _differ(groups: Mapping[str, Mapping[str, Sequence[Entry]]]) -> dict[str, Any]:
    """Settings in which groups differ: a row for each, a column for each group."""
    columns = [(env, label, runs) for env, found in groups.items() for label, runs in found.items()]
    settings = [flat(runs[0].config) for _, _, runs in columns[:COLUMNS]]
    names = dict.fromkeys(name for one in settings for name in one)
    ignored = {"seed", "runs", "tag", "name"}
    rows = [
        {"setting": name, "values": [shown(one[name]) if name in one else "" for one in settings]}
        for name in names
        if name not in ignored and any(one.get(name) != settings[0].get(name) for one in settings)
    ]
    titles = [
        {
            "env": env,
            "label": label,
            "runs": len(runs),
            "seeds": [run.config.get("seed") for run in runs][:20],
        }
        for env, label, runs in columns[:COLUMNS]
    ]
    return {"columns": titles, "rows": rows, "left_out": max(0, len(columns) - COLUMNS)}


def _places(values: Floats) -> list[float]:
    return [float(f"{value:.8g}") for value in values.tolist()]


def _values(values: Floats) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]
