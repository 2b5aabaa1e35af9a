"""Learning curves from metrics.jsonl; seeds of one setting become an interquartile mean with a confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whorl.core.errors import WhorlError, nearest
from whorl.log.console import compact
from whorl.log.statistics import Curve, Floats, align, bootstrap_interval, interquartile_mean, smooth
from whorl.log.writers import ELAPSED, read_rows

RETURN = "episode/return"
EVALUATION = "evaluation/return"
COLOURS = ("#2a6fbb", "#e07b39", "#3a9a6b", "#b5446e", "#7a5fb0", "#8a8d3b", "#3aa6b9", "#a0522d")
SPAN = 0.012
"""width of the smoothing kernel, as a share of the x-axis"""


@dataclass
class _Run:
    folder: Path
    config: dict[str, object]
    rows: list[dict[str, float | int | str]]

    def has(self, metric: str) -> bool:
        return any(metric in row for row in self.rows)

    def setting(self, path: str, default: str) -> str:
        """A value of config.yaml by dotted path."""
        value: object = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else str(value)

    def curve(self, metric: str, x: str) -> Curve:
        rows = [row for row in self.rows if metric in row and x in row]
        return _numbers(x, rows), _numbers(metric, rows)


@dataclass
class _Group:
    """Runs that differ only in their seed."""

    label: str
    colour: str
    runs: list[_Run] = field(default_factory=list)


def plot_runs(
    run_folders: Sequence[Path],
    output: Path,
    x: Literal["steps", "time"] = "steps",
    metric: str = RETURN,
    metrics: Sequence[str] = (),
    group_by: Sequence[str] = ("algorithm",),
) -> Path:
    """Draw learning curves into a PNG: one row of panels per metric, one panel in it per environment.

    Args:
        metric: what to draw; if no run has episode/return, evaluation/return is drawn instead.
        metrics: several metrics instead of `metric`.
        group_by: settings in config.yaml (dotted paths) that distinguish lines; runs that agree in them and in `env`
            are treated as seeds of one setting.
    """
    runs = [_read(Path(folder)) for folder in run_folders]
    if not runs:
        raise WhorlError("there are no runs to plot; give at least one run folder")
    wanted = [_available(name, runs) for name in (metrics or [metric])]
    axis = {"steps": "steps", "time": ELAPSED}[x]
    if not any(run.has(axis) for run in runs):
        raise WhorlError(f"no row has {axis!r}, so nothing can be plotted over {x}; use x='steps'")
    environments = list(dict.fromkeys(run.setting("env", "") for run in runs))
    groups = {
        name: _grouped([run for run in runs if run.setting("env", "") == name], group_by)
        for name in environments
    }
    _colour_by_label([group for found in groups.values() for group in found])

    columns = min(3, len(environments)) if len(wanted) == 1 else len(environments)
    down = -(-len(environments) // columns) * len(wanted)
    size = (max(7.0, 5.2 * columns), 4.3 * down) if len(environments) * len(wanted) > 1 else (7.6, 4.6)
    figure = Figure(
        figsize=size, dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12), facecolor="white"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, columns, squeeze=False).flatten()
    pairs = [(name, environment) for name in wanted for environment in environments]
    for panel, (name, environment) in zip(panels, pairs):
        _draw_panel(panel, groups[environment], name, axis)
        panel.set_title(environment, loc="left", fontweight="bold", fontsize=12)
    for panel in panels[len(pairs) :]:
        panel.remove()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)
    return output


def curve(run_folder: Path, metric: str = RETURN) -> Curve:
    """Steps and values of one metric of one run."""
    run = _read(Path(run_folder))
    return run.curve(_available(metric, [run]), "steps")


def _read(folder: Path) -> _Run:
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise WhorlError(f"{folder} has no metrics.jsonl; is it the folder of a run?")
    rows = list(read_rows(path))
    if not rows:
        raise WhorlError(f"{path} has no rows yet; let the run log something first")
    config = folder / "config.yaml"
    found = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else None
    return _Run(folder, found if isinstance(found, dict) else {}, rows)


def _numbers(metric: str, rows: Sequence[dict[str, float | int | str]]) -> Floats:
    try:
        return np.array([float(row[metric]) for row in rows], dtype=np.float64)
    except ValueError:
        words = {row[metric] for row in rows if isinstance(row[metric], str)}
        raise WhorlError(
            f"{metric!r} is not a number but text such as {words.pop()!r}; plot another metric"
        ) from None


def _available(metric: str, runs: Sequence[_Run]) -> str:
    if any(run.has(metric) for run in runs):
        return metric
    if metric == RETURN and any(run.has(EVALUATION) for run in runs):
        return EVALUATION
    names = {key for run in runs for row in run.rows for key, value in row.items() if "/" in key}
    raise WhorlError(f"no run has the metric {metric!r}; {nearest(metric, names)}")


def _grouped(runs: Sequence[_Run], group_by: Sequence[str]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for run in runs:
        label = " · ".join(run.setting(key, run.folder.name) for key in group_by)
        groups.setdefault(label, _Group(label, "")).runs.append(run)
    return list(groups.values())


def _colour_by_label(groups: Sequence[_Group]) -> None:
    """The same colour for the same label in every panel."""
    labels = list(dict.fromkeys(group.label for group in groups))
    for group in groups:
        group.colour = COLOURS[labels.index(group.label) % len(COLOURS)]


def _draw_panel(panel: Axes, groups: Sequence[_Group], metric: str, x: str) -> None:
    for group in groups:
        curves = [found for run in group.runs if np.isfinite((found := run.curve(metric, x))[1]).any()]
        if curves:
            _draw_curves(panel, curves, group)
        if metric == RETURN:
            _draw_evaluations(panel, group, x)
    _dress(panel, metric, x)


def _draw_curves(panel: Axes, curves: Sequence[Curve], group: _Group) -> None:
    if len(curves) == 1 or not _overlap(curves):
        for index, (steps, values) in enumerate(curves):
            label = None if index else group.label
            panel.plot(steps, values, color=group.colour, alpha=0.25, linewidth=0.8)
            panel.plot(steps, _smoothed(steps, values), color=group.colour, linewidth=2.0, label=label)
        return
    grid, values = align([(steps, _smoothed(steps, values)) for steps, values in curves])
    low, high = bootstrap_interval(values, interquartile_mean)
    label = f"{group.label}, IQM and 95% CI of {len(curves)} seeds"
    panel.fill_between(grid, low, high, color=group.colour, alpha=0.18, linewidth=0)
    panel.plot(grid, interquartile_mean(values), color=group.colour, linewidth=2.0, label=label)


def _draw_evaluations(panel: Axes, group: _Group, x: str) -> None:
    """Evaluations as points: the mean over seeds if all were evaluated at the same steps, else each one."""
    curves = [run.curve(EVALUATION, x) for run in group.runs if run.has(EVALUATION)]
    if not curves:
        return
    first = curves[0][0]
    if all(np.array_equal(first, steps) for steps, _ in curves):
        curves = [(first, np.mean([values for _, values in curves], axis=0))]
    for steps, values in curves:
        panel.add_line(_points(steps, values, group.colour))


def _points(steps: Sequence[float] | Floats, values: Sequence[float] | Floats, colour: str) -> Line2D:
    return Line2D(
        steps,
        values,
        linestyle="none",
        marker="o",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor=colour,
        markeredgewidth=1.3,
    )


def _overlap(curves: Sequence[Curve]) -> bool:
    """Whether some steps are covered by all curves, as `align` requires."""
    finite = [steps[np.isfinite(values)] for steps, values in curves]
    return max(steps[0] for steps in finite) <= min(steps[-1] for steps in finite)


def _smoothed(steps: Floats, values: Floats) -> Floats:
    return smooth(steps, values, SPAN * float(steps[-1] - steps[0]))


def _dress(panel: Axes, metric: str, x: str) -> None:
    group, _, name = metric.partition("/")
    panel.set_ylabel(
        {RETURN: "episode return", EVALUATION: "evaluation return"}.get(metric, f"{group} / {name}")
    )
    panel.set_xlabel("env steps" if x == "steps" else "training time")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda v, _: compact(v) if x == "steps" else _clock(v)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda v, _: compact(v) if abs(v) >= 1000 else f"{v:g}"))
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.margins(x=0.01)
    panel.grid(True, color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(color="#999999", labelcolor="#333333", labelsize=9)
    handles, labels = panel.get_legend_handles_labels()
    if any(line.get_marker() == "o" for line in panel.get_lines()):
        handles, labels = [*handles, _points([], [], "#666666")], [*labels, "evaluation"]
    if handles:
        panel.autoscale_view()
        panel.legend(handles, labels, loc="best", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
