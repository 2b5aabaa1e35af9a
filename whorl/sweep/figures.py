"""Pictures of a sweep: its history, which settings matter, and which of their values are good."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from whorl.core import files
from whorl.core.errors import missing_extra
from whorl.log.plot import COLOURS, new_figure, save_figure
from whorl.sweep.space import Space, label
from whorl.sweep.strategy import import_optuna
from whorl.sweep.sweep import TrialRow, shown

HISTORY, IMPORTANCE, PARALLEL, PAGE = "history.png", "importance.png", "parallel.png", "sweep.html"
FEWEST = 4
"""complete trials that a picture of importance needs"""
TICKS = 5
COLOURMAP = "viridis"
BUTTONS = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"]}
"""plots of the page, without the button that would upload them"""


def draw_all(
    folder: Path, rows: Sequence[TrialRow], spaces: Sequence[Space], study: Any, title: str
) -> list[Path]:
    """All pictures that the trials so far allow; the files written."""
    complete = [row for row in rows if row.state == "complete"]
    written = [draw_history(rows, folder / HISTORY, title)] if complete else []
    if len(complete) >= FEWEST:
        found = importance(study, spaces)
        if found:
            written.append(draw_importance(found, folder / IMPORTANCE, title))
        written.append(draw_parallel(rows, spaces, folder / PARALLEL, title))
        written.append(write_page(study, folder / PAGE, title))
    return written


def importance(study: Any, spaces: Sequence[Space]) -> dict[str, float]:
    """How much each setting matters, in shares of 1 (PED-ANOVA, which needs no other package)."""
    optuna = import_optuna()
    always = [space.name for space in spaces if not space.when]
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, params=always))
        except (RuntimeError, ValueError):  # too few trials that differ
            return {}


def draw_history(rows: Sequence[TrialRow], output: Path, title: str) -> Path:
    """The value of every trial, and the best so far."""
    figure = new_figure((7.0, 3.6))
    panel = figure.add_subplot()
    complete = [row for row in rows if row.state == "complete"]
    pruned = [row for row in rows if row.state == "pruned" and math.isfinite(row.value)]
    best = np.maximum.accumulate([row.value for row in complete])
    places = [*(row.number for row in complete), max(row.number for row in rows)]
    panel.step(places, [*best, best[-1]], where="post", color=COLOURS[1], label="best so far")
    panel.scatter(
        [row.number for row in complete],
        [row.value for row in complete],
        s=22,
        color=COLOURS[0],
        label="trial",
    )
    panel.scatter(
        *([row.number for row in pruned], [row.value for row in pruned]),
        s=18,
        color="#999999",
        marker="x",
        linewidths=1,
        label="pruned",
    )
    panel.set_xlabel("trial")
    panel.set_ylabel("objective")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_title(title, fontsize=10, loc="left")
    panel.legend(
        frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0
    )
    _bare(panel)
    return save_figure(figure, output)


def draw_importance(found: Mapping[str, float], output: Path, title: str) -> Path:
    """A bar for each setting."""
    figure = new_figure((6.0, 1.2 + 0.32 * len(found)))
    panel = figure.add_subplot()
    names = sorted(found, key=lambda name: found[name])
    panel.barh(names, [found[name] for name in names], color=COLOURS[0], height=0.6)
    for place, name in enumerate(names):
        panel.text(found[name], place, f" {found[name]:.2f}", va="center", fontsize=8)
    panel.set_xlim(0, 1.12 * max(found.values()) or 1)
    panel.set_xlabel("importance (PED-ANOVA)")
    panel.set_title(title, fontsize=10)
    _bare(panel)
    return save_figure(figure, output)


def draw_parallel(rows: Sequence[TrialRow], spaces: Sequence[Space], output: Path, title: str) -> Path:
    """A line for each trial through the values of its settings; the best ones are drawn last."""
    ranked = sorted((row for row in rows if row.state == "complete"), key=lambda row: row.value)
    figure = new_figure((2.4 + 1.15 * len(spaces), 4.0))
    panel = figure.add_subplot()
    scale = Normalize(
        ranked[0].value, ranked[-1].value if ranked[-1].value > ranked[0].value else ranked[0].value + 1
    )
    colours = figure.colorbar(ScalarMappable(scale, COLOURMAP), ax=panel, pad=0.02, aspect=30)
    colours.set_label("objective")
    for row in ranked:
        heights = [
            _height(space, row.params[space.name]) if space.name in row.params else math.nan
            for space in spaces
        ]
        share = float(scale(row.value))
        panel.plot(heights, color=colours.cmap(share), alpha=0.25 + 0.7 * share, linewidth=0.8 + 1.2 * share)
    for place, space in enumerate(spaces):
        panel.axvline(place, color="#bbbbbb", linewidth=0.8, zorder=0)
        for height, text in _ticks(space):
            panel.text(
                place - 0.03,
                height,
                text,
                ha="right",
                va="center",
                fontsize=7,
                color="#333333",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
            )
    panel.set_xticks(range(len(spaces)), [_lines(space.name) for space in spaces], fontsize=8)
    panel.tick_params(length=0)
    panel.set_xlim(-0.5, len(spaces) - 0.8)
    panel.set_yticks([])
    panel.set_ylim(-0.03, 1.03)
    panel.set_title(title, fontsize=10)
    for side in panel.spines.values():
        side.set_visible(False)
    return save_figure(figure, output)


def write_page(study: Any, output: Path, title: str) -> Path:
    """A page with plots to hover over; it needs no network."""
    optuna = import_optuna()
    try:
        import plotly
    except ImportError:
        raise missing_extra("plotly", "sweep") from None
    draw = optuna.visualization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        plots = [draw.plot_optimization_history(study), draw.plot_parallel_coordinate(study)]
        plots.append(draw.plot_intermediate_values(study))
        plots.append(draw.plot_slice(study))
        try:
            plots.append(draw.plot_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError):  # too few trials that differ
            plots.append(None)
    parts = [
        plotly.io.to_html(plot, full_html=False, include_plotlyjs=not number, config=BUTTONS)
        for number, plot in enumerate(plot for plot in plots if plot is not None)
    ]
    style = "body{font-family:sans-serif;margin:8px} .plot{overflow-x:auto} .plot>div{min-width:640px}"
    head = (
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{style}</style><h2>{title}</h2>"
    )
    framed = [f"<div class=plot>{part}</div>" for part in parts]  # wide plots scroll, not the page
    files.write_atomic(output, "\n".join([head, *framed]).encode())
    return output


def _height(space: Space, value: Any) -> float:
    """Where a value is on its axis, from 0 to 1."""
    if space.values:
        return space.values.index(value) / (len(space.values) - 1)
    low, high, here = (math.log(x) if space.log else x for x in (space.low, space.high, value))
    return (here - low) / (high - low)


def _ticks(space: Space) -> list[tuple[float, str]]:
    if space.values:
        return [
            (_height(space, value), shown(value) if not isinstance(value, dict) else label(value))
            for value in space.values
        ]
    if space.log:
        values = _round_numbers(space.low, space.high)
    else:
        values = list(np.linspace(space.low, space.high, TICKS))
    if space.whole:
        values = sorted({round(value) for value in values})
    return [(_height(space, value), f"{value:.0f}" if space.whole else f"{value:.4g}") for value in values]


def _round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers, with 2 and 5 times them where that is not enough."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log(high / low)
    kept: list[float] = []
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        # Both ends are shown, and nothing too near to them.
        kept = [value for value in found if min(math.log(value / low), math.log(high / value)) > 0.1 * span]
        if len(kept) >= TICKS - 3:
            break
    return [low, *kept, high]


def _lines(name: str) -> str:
    """A long name in two lines."""
    breaks = [place for place, letter in enumerate(name) if letter == "_"]
    if len(name) <= 13 or not breaks:
        return name
    middle = min(breaks, key=lambda place: abs(place - len(name) / 2))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _bare(panel: Axes) -> None:
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.grid(axis="both", color="#eeeeee", zorder=0)
    panel.set_axisbelow(True)
