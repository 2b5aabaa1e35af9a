"""Learning curves from metrics.jsonl; seeds of one setting become one curve with a confidence band."""

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import offset_copy

from whorl.core import files
from whorl.core.errors import WhorlError, nearest
from whorl.log.console import compact
from whorl.log.maps import read_maps, shades
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
from whorl.log.writers import ELAPSED, read_rows
from whorl.settings.presets import read_yaml

RETURN = "episode/return"
EVALUATION = "evaluation/return"
ARM = "policies/episodes_"
"""metrics that count the episodes of each policy of Agent57"""
COLOURS = ("#2a6fbb", "#e07b39", "#3a9a6b", "#b5446e", "#7a5fb0", "#8a8d3b", "#3aa6b9", "#a0522d")
LINES = ("-", (0, (6, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
"""line styles, for more curves than there are colours"""
SPAN = 0.012
"""width of the automatic smoothing kernel, as a share of the x-axis"""
RAGGED = 0.05
"""seeds whose ends differ by less than this share of the axis count as equally long"""
LEGEND_LINE = 0.19
"""height of a line of a legend below its panel, in inches"""
ENDINGS = (".png", ".svg", ".pdf")

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
    *("use_wandb", "wandb_project", "wandb_entity", "wandb_mode"),
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
    wanted = [name for given in metrics for name in _available(given, runs)]
    if not any(run.has(style.axis) for run in runs):
        raise WhorlError(
            f"no row has {style.axis!r}, so nothing can be plotted over {style.x}; plot over steps"
        )
    environments = list(dict.fromkeys(run.env for run in runs))
    groups = {env: _grouped([run for run in runs if run.env == env], group_by, style) for env in environments}
    several = len({run.algorithm for run in runs}) > 1
    _colour_by_label([group for found in groups.values() for group in found])

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
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
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
    warnings.warn(f"{sentence}; it is left out", stacklevel=3)


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


# Groups


def _grouped(runs: Sequence[_Run], group_by: Sequence[str], style: Style) -> list[_Group]:
    """The runs of one environment as curves, in the order in which they were named."""
    groups: dict[str, _Group] = {}
    several = len({run.algorithm for run in runs}) > 1
    for run in runs:
        alike = [other for other in runs if other.algorithm == run.algorithm]
        names = list(group_by) or _differing(alike, style)
        settings = _flat(run.config)
        values = {name: _shown(settings.get(name)) for name in names if name != "algorithm"}
        named = "algorithm" in names or (not group_by and (several or not values))
        label = ", ".join([run.algorithm] * named + [f"{name} = {value}" for name, value in values.items()])
        groups.setdefault(label, _Group(label)).runs.append(run)
    return list(groups.values())


def _differing(runs: Sequence[_Run], style: Style) -> list[str]:
    """The settings in which runs of one algorithm differ."""
    ignored = {"env", "algorithm", *REPORTING, *(() if style.x == "time" else MACHINE)}
    # A setting that a run does not name, of another version of the library, is not known to differ.
    shared = [key for key in runs[0].config if all(key in run.config for run in runs) and key not in ignored]
    found = []
    for key in shared:
        flat = [_flat({key: run.config[key]}) for run in runs]
        names = dict.fromkeys(name for settings in flat for name in settings)
        found += [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)]
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted path."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        found.update(_flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) or abs(value) >= 10**6 else str(value)
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


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
    _dress(panel, metric, style)
    return _add_legend(panel, str(style) if several else None)


def _draw_curves(panel: Axes, curves: Sequence[Curve], group: _Group, style: Style) -> None:
    """The statistic to where all seeds reach, and dashed from there over those that go on."""
    if len(curves) == 1 or not _overlap(curves):
        for index, one in enumerate(curves):
            label = None if index else _wrapped(group.label)
            panel.plot(*one, color=group.colour, alpha=0.25, linewidth=0.8)
            panel.plot(*style.smoothed(one), group.line, color=group.colour, linewidth=2.0, label=label)
        return
    smoothed = [style.smoothed(one) for one in curves]
    ends = sorted(_end(one) for one in smoothed)
    ragged = ends[-1] - ends[0] > RAGGED * ends[-1]
    grid, values = align(smoothed)
    label = f"{group.label} ({len(curves)} seeds)"
    if ragged:
        label = f"{label[:-1]}; dashed: fewer, the shortest ends at {_place(ends[0], style)})"
    if (bounds := style.bounds(values)) is not None:
        panel.fill_between(grid, *bounds, color=group.colour, alpha=0.18, linewidth=0)
    panel.plot(
        grid,
        style.reduce(values),
        linestyle=group.line,
        color=group.colour,
        linewidth=2.0,
        label=_wrapped(label),
    )
    for end in sorted(set(ends))[:-1] if ragged else ():
        grid, values = align([one for one in smoothed if _end(one) > end], begin=end)
        panel.plot(grid, style.reduce(values), linestyle=(0, (2, 2)), color=group.colour, linewidth=1.3)


def _draw_evaluations(panel: Axes, group: _Group, style: Style) -> None:
    """Evaluations as points: the statistic of the seeds that were evaluated at the same place."""
    curves = [run.curve(EVALUATION, style.axis) for run in group.runs]
    at: dict[float, list[float]] = {}
    for positions, values in curves:
        for position, value in zip(positions.tolist(), values.tolist()):
            at.setdefault(position, []).append(value)
    if at:
        places = sorted(at)
        found = [float(style.reduce(np.array(at[place]))) for place in places]
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


def _end(curve: Curve) -> float:
    """The last position with a finite value."""
    return float(curve[0][np.isfinite(curve[1])][-1])


def _overlap(curves: Sequence[Curve]) -> bool:
    """Whether some steps are covered by all curves, as `align` requires."""
    finite = [steps[np.isfinite(values)] for steps, values in curves]
    return max(steps[0] for steps in finite) <= min(steps[-1] for steps in finite)


def _dress(panel: Axes, metric: str, style: Style) -> None:
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
