"""Learning curves from metrics.jsonl; seeds of one setting become one curve with a confidence band."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import offset_copy

from whorl.core import files, messages
from whorl.core.arguments import listed
from whorl.core.errors import WhorlError, nearest
from whorl.log.console import compact
from whorl.log.groups import (
    COLOURS,
    EVALUATION,
    RETURN,
    STYLE,
    Style,
    ends,
    evaluations,
    grouped,
    overlap,
    ragged,
    segments,
)
from whorl.log.maps import read_maps, shades
from whorl.log.statistics import Curve, Floats
from whorl.log.writers import read_rows
from whorl.settings.presets import read_yaml

ARM = "policies/episodes_"
"""metrics that count the episodes of each policy of Agent57"""
LINES = ("-", (0, (6, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
"""line styles, for more curves than there are colours"""
LEGEND_LINE = 0.19
"""height of a line of a legend below its panel, in inches"""
ENDINGS = (".png", ".svg", ".pdf")


@dataclass
class _Run:
    folder: Path
    config: dict[str, Any]
    rows: list[dict[str, float | int | str]]

    @property
    def env(self) -> str:
        return str(self.config.get("env", ""))

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", self.folder.name))

    def has(self, metric: str) -> bool:
        return any(metric in row for row in self.rows)

    def curve(self, metric: str, x: str) -> Curve:
        rows = [row for row in self.rows if metric in row and x in row]
        return _numbers(x, rows), _numbers(metric, rows)


@dataclass
class _Group:
    """Runs that differ only in their seed."""

    label: str
    colour: str = ""
    line: Any = "-"
    runs: list[_Run] = field(default_factory=list)


def plot_runs(
    run_folders: Sequence[Path],
    output: Path,
    metrics: Sequence[str] = (RETURN,),
    group_by: Sequence[str] = (),
    style: Style = STYLE,
) -> Path:
    """Draw learning curves into a .png, .svg or .pdf: a row of panels per metric, one panel in it per environment.

    Args:
        metrics: what to draw; where no run has episode/return, evaluation/return is drawn instead.
        group_by: settings in config.yaml (dotted paths) that distinguish curves; runs that agree in them and in `env`
            are seeds of one curve. Empty: every setting in which runs of an algorithm differ, except the seed and what
            concerns only reports, or (not over time) only where a run is computed.
    """
    check_ending(output)
    if not run_folders:
        raise WhorlError("there are no runs to plot; give at least one run folder")
    found = [_read(Path(folder)) for folder in run_folders]
    runs = [run for run in found if run.rows]
    for run in found:
        if not run.rows:
            _skip(run, bool(runs))
    wanted = [name for given in listed(metrics) for name in _available(given, runs)]
    if not any(run.has(style.axis) for run in runs):
        raise WhorlError(
            f"no row has {style.axis!r}, so nothing can be plotted over {style.x}; plot over steps"
        )
    environments = list(dict.fromkeys(run.env for run in runs))
    groups = {
        env: [
            _Group(label, runs=found)
            for label, found in grouped([run for run in runs if run.env == env], group_by, style).items()
        ]
        for env in environments
    }
    several = len({run.algorithm for run in runs}) > 1
    _colour_by_label([group for theirs in groups.values() for group in theirs])

    columns = min(3, len(environments)) if len(wanted) == 1 else len(environments)
    down = -(-len(environments) // columns) * len(wanted)
    size = (max(7.0, 5.2 * columns), 4.3 * down) if len(environments) * len(wanted) > 1 else (7.6, 4.6)
    figure = new_figure(size)
    panels = figure.subplots(down, columns, squeeze=False).flatten()
    pairs = [(name, environment) for name in wanted for environment in environments]
    below = 0
    for panel, (name, environment) in zip(panels, pairs):
        below = max(below, _draw_panel(panel, groups[environment], name, style))
        title = environment if several or not environment else f"{runs[0].algorithm} on {environment}"
        panel.set_title(title, loc="left", fontweight="bold", fontsize=12)
    for panel in panels[len(pairs) :]:
        panel.remove()
    figure.set_size_inches(size[0], size[1] + LEGEND_LINE * below * down)
    return save_figure(figure, output)


def plot_map(run_folder: Path, output: Path) -> Path:
    """Draw the maps of a run: visits of every cell, and the mean of each intrinsic reward there."""
    check_ending(output)
    maps = read_maps(run_folder)
    rows, columns = maps["visits"].shape
    width = min(4.2, max(2.6, 4.2 * columns / rows))
    figure = new_figure((max(4.0, (width + 1.1) * len(maps)), max(2.4, width * rows / columns + 0.7)))
    for panel, (name, values) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items()):
        panel.set_facecolor("#c8c8c8")
        drawn = panel.imshow(shades(name, values), cmap="viridis", interpolation="nearest")
        bar = figure.colorbar(drawn, ax=panel, shrink=0.85)
        if name == "visits":
            bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: compact(round(10**x))))
        panel.set_title("visits" if name == "visits" else f"mean reward of {name}", loc="left", fontsize=11)
        panel.set_xticks([])
        panel.set_yticks([])
    return save_figure(figure, output)


def plot_arms(run_folder: Path, output: Path) -> Path:
    """Draw which policies the bandit of an Agent57 run chose: their shares of the episodes between rows of metrics."""
    check_ending(output)
    run = _read(run_folder)
    names = [f"{ARM}{number}" for number in range(sum(run.has(f"{ARM}{i}") for i in range(1000)))]
    rows = [row for row in run.rows if all(name in row for name in names)]
    if not names or len(rows) < 2:
        raise WhorlError(
            f"{run_folder} has no rows with {ARM}0 and so on, which Agent57 writes; nothing to draw"
        )
    steps = _numbers("steps", rows)
    count = np.stack([_numbers(name, rows) for name in names])  # [arms, rows]
    # At most as many columns as can be told apart.
    taken = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), 161)).astype(int))
    episodes = np.diff(count[:, taken], axis=1)
    total = episodes.sum(0)
    share = np.where(total > 0, episodes / np.maximum(total, 1), np.nan)
    figure = new_figure((7.6, 4.2))
    panel = figure.subplots()
    panel.set_facecolor("#c8c8c8")
    edges = np.arange(len(names) + 1) - 0.5
    drawn = panel.pcolormesh(steps[taken], edges, share, cmap="viridis", vmin=0)
    bar = figure.colorbar(drawn, ax=panel)
    bar.set_label("share of episodes")
    best = [row for row in rows if "policies/best" in row]
    if best:
        panel.step(
            _numbers("steps", best), _numbers("policies/best", best), color="#e07b39", where="post", lw=1.2
        )
    panel.set_title(
        f"{run.algorithm} on {run.env}: policies chosen, and the best (line)", loc="left", fontsize=11
    )
    panel.set_xlabel("steps")
    panel.set_ylabel("policy (0 exploits)")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: compact(x)))
    panel.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return save_figure(figure, output)


def check_ending(output: Path) -> None:
    """Raise for a file that no plot can be written to."""
    if output.suffix.lower() not in ENDINGS:
        raise WhorlError(f"a plot can't be written as {output.name!r}; end the name in {', '.join(ENDINGS)}")


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure, of a size in inches."""
    figure = Figure(
        figsize=size, dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12), facecolor="white"
    )
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, output: Path) -> Path:
    """Write a figure, whose file is either complete or as it was before."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # The same runs give the same file, and letters stay letters in a PDF.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower())
    with files.scratch(output) as temp, mpl.rc_context({"svg.hashsalt": "whorl", "pdf.fonttype": 42}):
        figure.savefig(temp, format=output.suffix[1:].lower(), metadata=dates)
        temp.replace(output)
    return output


def curve(run_folder: Path, metric: str = RETURN) -> Curve:
    """Steps and values of one metric of one run, that of its first behaviour where there are several."""
    run = _read(Path(run_folder))
    if not run.rows:
        _skip(run, False)
    return run.curve(_available(metric, [run])[0], "steps")


def _read(folder: Path) -> _Run:
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise WhorlError(f"{folder} has no metrics.jsonl; is it the folder of a run?")
    config = folder / "config.yaml"
    found = read_yaml(config.read_text(encoding="utf-8"), str(config)) if config.exists() else None
    return _Run(folder, found if isinstance(found, dict) else {}, list(read_rows(path)))


def _skip(run: _Run, others: bool) -> None:
    """A run that has logged nothing is left out, or is an error where it is the only one."""
    sentence = f"{run.folder} has no rows of metrics yet"
    if not others:
        raise WhorlError(f"{sentence}; let the run log something first")
    messages.warn(f"{sentence}; it is left out")


def _numbers(metric: str, rows: Sequence[dict[str, float | int | str]]) -> Floats:
    try:
        return np.array([float(row[metric]) for row in rows], dtype=np.float64)
    except ValueError:
        words = {row[metric] for row in rows if isinstance(row[metric], str)}
        raise WhorlError(
            f"{metric!r} is not a number but text such as {words.pop()!r}; plot another metric"
        ) from None


def _available(metric: str, runs: Sequence[_Run]) -> list[str]:
    """The metric, or what there is of it: that of every behaviour, or evaluations instead of training episodes."""
    if any(run.has(metric) for run in runs):
        return [metric]
    theirs = [key for run in runs for row in run.rows for key in row if key.endswith(f"/{metric}")]
    if theirs:
        return list(dict.fromkeys(theirs))
    if metric == RETURN and any(run.has(EVALUATION) for run in runs):
        return [EVALUATION]
    names = {key for run in runs for row in run.rows for key, value in row.items() if "/" in key}
    raise WhorlError(f"no run has the metric {metric!r}; {nearest(metric, names)}")


def _colour_by_label(groups: Sequence[_Group]) -> None:
    """The same colour for the same label in every panel."""
    labels = list(dict.fromkeys(group.label for group in groups))
    for group in groups:
        index = labels.index(group.label)
        group.colour = COLOURS[index % len(COLOURS)]
        group.line = LINES[index // len(COLOURS) % len(LINES)]


# Drawing


def _draw_panel(panel: Axes, groups: Sequence[_Group], metric: str, style: Style) -> int:
    """Draw one metric of one environment; the lines of the legend that stand below the panel."""
    several = False
    for group in groups:
        found = [run.curve(metric, style.axis) for run in group.runs]
        curves = [one for one in found if np.isfinite(one[1]).any()]
        several |= len(curves) > 1
        if curves:
            _draw_curves(panel, curves, group, style)
        if metric == RETURN:
            _draw_evaluations(panel, group, style)
    _label_axes(panel, metric, style)
    return _add_legend(panel, str(style) if several else None)


def _draw_curves(panel: Axes, curves: Sequence[Curve], group: _Group, style: Style) -> None:
    """The statistic as far as all seeds reach, then dashed over the longer runs alone."""
    if len(curves) == 1 or not overlap(curves):
        for index, one in enumerate(curves):
            label = None if index else _wrapped(group.label)
            panel.plot(*one, color=group.colour, alpha=0.25, linewidth=0.8)
            steps, values = style.smoothed(one)
            options: dict[str, Any] = {"color": group.colour, "marker": _marker(values), "label": label}
            panel.plot(steps, values, group.line, linewidth=2.0, **options)
        return
    smoothed = [style.smoothed(one) for one in curves]
    seeds = {run.config.get("seed") for run in group.runs}
    label = f"{group.label} ({len(curves)} {'seeds' if len(seeds) == len(group.runs) else 'runs'})"
    if ragged(smoothed):
        label = f"{label[:-1]}; dashed: fewer, the shortest ends at {_place(ends(smoothed)[0], style)})"
    for part in segments(smoothed, style):
        if part.fewer:
            panel.plot(part.grid, part.centre, linestyle=(0, (2, 2)), color=group.colour, linewidth=1.3)
            continue
        if part.bounds is not None:
            panel.fill_between(part.grid, *part.bounds, color=group.colour, alpha=0.18, linewidth=0)
        panel.plot(
            part.grid,
            part.centre,
            linestyle=group.line,
            color=group.colour,
            linewidth=2.0,
            marker=_marker(part.centre),
            label=_wrapped(label),
        )


def _marker(values: Floats) -> str:
    """A curve of one point has no line to be seen by."""
    return "." if np.isfinite(values).sum() == 1 else ""


def _draw_evaluations(panel: Axes, group: _Group, style: Style) -> None:
    """Evaluations as points."""
    places, found = evaluations([run.curve(EVALUATION, style.axis) for run in group.runs], style)
    if len(places):
        panel.add_line(_points(places, found, group.colour))


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


def _label_axes(panel: Axes, metric: str, style: Style) -> None:
    group, _, name = metric.partition("/")
    panel.set_ylabel(
        {RETURN: "episode return", EVALUATION: "evaluation return"}.get(metric, f"{group} / {name}")
    )
    panel.autoscale_view()
    name, unit = _unit(style, panel.dataLim.x1)
    panel.set_xlabel(name)
    panel.xaxis.set_major_locator(_Multiples(unit))
    panel.xaxis.set_major_formatter(
        FuncFormatter(lambda v, _: f"{v / unit:.4g}" if style.x == "time" else compact(v))
    )
    panel.yaxis.set_major_formatter(FuncFormatter(lambda v, _: compact(v) if abs(v) >= 1000 else f"{v:g}"))
    panel.margins(x=0.01)
    panel.grid(True, color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(color="#999999", labelcolor="#333333", labelsize=9)


def _add_legend(panel: Axes, title: str | None) -> int:
    """Inside the panel while it is small, below it where it would hide the curves; the number of lines below."""
    handles, labels = panel.get_legend_handles_labels()
    if any(line.get_marker() == "o" for line in panel.get_lines()):
        handles, labels = [*handles, _points([], [], "#666666")], [*labels, "evaluation"]
    if not handles:
        return 0
    lines = sum(label.count("\n") + 1 for label in labels) + bool(title)
    small = lines <= 7 and max(len(line) for label in labels for line in label.split("\n")) <= 40
    options: dict[str, Any] = {"loc": "best", "frameon": True, "framealpha": 0.9, "edgecolor": "none"}
    if not small:
        under = offset_copy(panel.transAxes, panel.get_figure(root=True), y=-34, units="points")
        options = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": under, "frameon": False}
    legend = panel.legend(
        handles, labels, fontsize=9, title=title, title_fontsize=9, alignment="left", borderpad=0.2, **options
    )
    legend.get_title().set_color("#666666")
    return 0 if small else lines


def _wrapped(label: str) -> str:
    """A label in lines; `name = value` stays together."""
    lines = textwrap.wrap(label.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), 64)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


class _Multiples(MaxNLocator):
    """Ticks at round numbers of a unit."""

    def __init__(self, unit: float) -> None:
        super().__init__(6, steps=[1, 2, 2.5, 5, 10])
        self.unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.asarray(super().tick_values(vmin / self.unit, vmax / self.unit)) * self.unit


def _unit(style: Style, end: float) -> tuple[str, float]:
    """The name of the x-axis, and what one of its numbers stands for."""
    if style.x != "time":
        return {"steps": "environment steps", "episodes": "episodes"}[style.x], 1.0
    name, unit = _unit_of_time(end)
    return f"training time ({name})", unit


def _place(position: float, style: Style) -> str:
    """A position on the x-axis in words."""
    if style.x != "time":
        return compact(position)
    name, unit = _unit_of_time(position)
    return f"{position / unit:.3g} {name}"


def _unit_of_time(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds < 180 else ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)
