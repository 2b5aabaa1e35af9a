"""Runs as curves: which runs are seeds of one setting, and the statistic and band of their seeds.

Plots and the page of runs draw what is computed here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from whorl.log.statistics import (
    Curve,
    Floats,
    align,
    bootstrap_interval,
    extent,
    interquartile_mean,
    smooth,
    typical_gap,
)
from whorl.log.writers import ELAPSED

RETURN = "episode/return"
EVALUATION = "evaluation/return"
COLOURS = ("#2a6fbb", "#e07b39", "#3a9a6b", "#b5446e", "#7a5fb0", "#8a8d3b", "#3aa6b9", "#a0522d")
SPAN = 0.012
"""width of the automatic smoothing kernel, as a share of the x-axis"""
RAGGED = 0.05
"""seeds whose ends differ by less than this share of the axis count as equally long"""

REPORTING = (
    *(
        "seed",
        "tag",
        "name",
        "runs",
        "quiet",
        "log_freq",
        "log_file",
        "loggers",
        "tensorboard",
        "screenshot_freq",
    ),
    *("eval", "eval_freq", "n_eval_episodes", "eval_max_steps", "save_model", "checkpoint_freq"),
    "keep_checkpoints",
    *(
        "use_wandb",
        "wandb_project",
        "wandb_entity",
        "wandb_mode",
        "wandb_group",
        "wandb_tags",
        "wandb_job_type",
    ),
    *("mlflow_uri", "mlflow_experiment", "http_url"),
)
"""settings that change nothing but the seed, names and reports"""
MACHINE = (
    *(
        "hardware",
        "device",
        "env_device",
        "workers",
        "acting",
        "threads",
        "learner_threads",
        "compile",
        "tf32",
    ),
    *("ray", "actors_on_gpu", "actor_restarts", "restarts_per_hour", "replay_device"),
)
"""settings that say where a run is computed: they change how long it takes, not what it does"""


@dataclass(frozen=True)
class Style:
    """How curves are drawn."""

    x: Literal["steps", "time", "episodes"] = "steps"
    statistic: Literal["mean", "iqm", "median"] = "mean"
    """of several seeds"""
    band: Literal["ci", "std", "none"] = "ci"
    """around it: a bootstrapped 95% confidence interval, or the standard deviation"""
    smooth: int = -1
    """rows of metrics over which curves are smoothed; 0: none; -1: automatic"""

    @property
    def axis(self) -> str:
        """The key of a row that is the position on the x-axis."""
        return ELAPSED if self.x == "time" else self.x

    @property
    def reduce(self) -> Callable[[Floats], Any]:
        """The statistic over the first axis."""
        found: dict[str, Callable[[Floats], Any]] = {
            "mean": partial(np.mean, axis=0),
            "iqm": interquartile_mean,
            "median": partial(np.median, axis=0),
        }
        return found[self.statistic]

    def bounds(self, values: Floats) -> tuple[Floats, Floats] | None:
        """The band [2, points] of curves [runs, points]."""
        if self.band == "none" or len(values) < 2:
            return None
        if self.band == "ci":
            return bootstrap_interval(values, self.reduce)
        centre, spread = self.reduce(values), values.std(axis=0, ddof=1)
        return centre - spread, centre + spread

    def smoothed(self, curve: Curve) -> Curve:
        positions, values = curve
        span = typical_gap(positions) * self.smooth / 2 if self.smooth >= 0 else SPAN * extent(positions)
        return positions, smooth(positions, values, span)

    def __str__(self) -> str:
        band = {"ci": " and 95% CI", "std": " ± std", "none": ""}[self.band]
        return f"{'IQM' if self.statistic == 'iqm' else self.statistic}{band} of the seeds"


STYLE = Style()


class Configured(Protocol):
    """A run as far as grouping knows it."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def algorithm(self) -> str: ...


R = TypeVar("R", bound=Configured)


def grouped(runs: Sequence[R], group_by: Sequence[str] = (), style: Style = STYLE) -> dict[str, list[R]]:
    """The runs of one environment by the label of their curve, in the order in which they were named."""
    groups: dict[str, list[R]] = {}
    algorithms = dict.fromkeys(run.algorithm for run in runs)
    names = {
        algorithm: list(group_by) or differing([run for run in runs if run.algorithm == algorithm], style)
        for algorithm in algorithms
    }
    for run in runs:
        settings = flat(run.config)
        values = {name: shown(settings.get(name)) for name in names[run.algorithm] if name != "algorithm"}
        named = "algorithm" in names[run.algorithm] or (not group_by and (len(algorithms) > 1 or not values))
        label = ", ".join([run.algorithm] * named + [f"{name} = {value}" for name, value in values.items()])
        groups.setdefault(label, []).append(run)
    return groups


def differing(runs: Sequence[Configured], style: Style = STYLE) -> list[str]:
    """The settings in which runs of one algorithm differ, except the seed and what changes no curve."""
    ignored = {"env", "algorithm", *REPORTING, *(() if style.x == "time" else MACHINE)}
    configs = [run.config for run in runs]
    first = configs[0]
    found = []
    for key in first:
        # A setting that a run does not name, of another version of the library, is not known to differ.
        if key in ignored or not all(key in config for config in configs):
            continue
        if all(config[key] == first[key] for config in configs):
            continue
        values = [flat({key: config[key]}) for config in configs]
        names = dict.fromkeys(name for settings in values for name in settings)
        found += [name for name in names if any(one.get(name) != values[0].get(name) for one in values)]
    return found


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted path."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        found.update(flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return found


def shown(value: Any) -> str:
    """The value of a setting in a label."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) or abs(value) >= 10**6 else str(value)
    return (" ".join(map(str, value)) if isinstance(value, list) else str(value)) or "none"


@dataclass(frozen=True)
class Segment:
    """The statistic of several seeds over a part of the x-axis."""

    grid: Floats
    centre: Floats
    bounds: tuple[Floats, Floats] | None
    fewer: bool
    """whether it covers only the longer runs, beyond the end of the shortest"""


def ends(curves: Sequence[Curve]) -> list[float]:
    """The last position of each curve with a finite value, in order."""
    return sorted(_end(curve) for curve in curves)


def ragged(curves: Sequence[Curve]) -> bool:
    """Whether some seeds ran clearly longer than others."""
    found = ends(curves)
    return found[-1] - found[0] > RAGGED * found[-1]


def segments(curves: Sequence[Curve], style: Style = STYLE, points: int = 400) -> Iterator[Segment]:
    """The statistic of smoothed curves as far as all of them reach, then over the longer ones; both overlap."""
    grid, values = align(curves, points)
    yield Segment(grid, style.reduce(values), style.bounds(values), False)
    for end in sorted(set(ends(curves)))[:-1] if ragged(curves) else ():
        grid, values = align([one for one in curves if _end(one) > end], points, begin=end)
        yield Segment(grid, style.reduce(values), None, True)


def evaluations(curves: Sequence[Curve], style: Style = STYLE) -> Curve:
    """The statistic over the seeds of evaluations that belong together: at most one of each seed, nearly at one place.

    Steps that only reset an environment do not count, so seeds are evaluated some steps apart from each other. Over
    time they are evaluated at any moment: the statistic is that of values in between, as often as a seed is evaluated.
    """
    known = [curve for curve in curves if np.isfinite(curve[1]).any()]
    lines = all(np.isfinite(values).sum() > 1 for _, values in known)
    if style.x == "time" and len(known) > 1 and lines and overlap(known):
        return _on_a_grid(known, style)
    points = sorted(
        (position, seed, value)
        for seed, (positions, values) in enumerate(curves)
        for position, value in zip(positions.tolist(), values.tolist())
    )
    gaps = [typical_gap(positions) for positions, _ in curves if len(positions) > 1]
    together: list[dict[int, tuple[float, float]]] = []
    begin = 0.0
    for position, seed, value in points:
        near = min(gaps) / 2 if gaps else RAGGED * position
        if not together or seed in together[-1] or position - begin > near:
            together.append({})
            begin = position
        together[-1][seed] = (position, value)
    places = [float(np.mean([position for position, _ in one.values()])) for one in together]
    found = [float(style.reduce(np.array([value for _, value in one.values()]))) for one in together]
    return np.array(places), np.array(found)


def _on_a_grid(curves: Sequence[Curve], style: Style) -> Curve:
    """The statistic at even distances, as far as all curves reach and then of the longer ones."""
    gap = float(np.median([typical_gap(positions) for positions, _ in curves]))
    last = sorted(set(ends(curves))) if ragged(curves) else ends(curves)[:1]
    begin = max(float(positions[np.isfinite(values)][0]) for positions, values in curves)
    places, found = list[float](), list[float]()
    for end in last:
        reaching = [one for one in curves if _end(one) >= end]
        count = round((end - begin) / gap) if gap else 0
        grid, values = align(reaching, 1 + max(count, 1), begin)
        new = slice(1 if places else 0, None)  # the first place of a longer part is the last one before
        places += grid[new].tolist()
        found += style.reduce(values)[new].tolist()
        begin = end
    return np.array(places), np.array(found)


def overlap(curves: Sequence[Curve]) -> bool:
    """Whether some steps are covered by all curves, as `align` requires."""
    finite = [steps[np.isfinite(values)] for steps, values in curves]
    return max(steps[0] for steps in finite) <= min(steps[-1] for steps in finite)


def _end(curve: Curve) -> float:
    return float(curve[0][np.isfinite(curve[1])][-1])
