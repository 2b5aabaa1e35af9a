"""The picture of a population: scores over the generations, and below them each drawn setting."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from whorl.log.plot import COLOURS, new_figure, save_figure
from whorl.population.rules import LineageRow
from whorl.settings.draws import Draw, Interval

BEST, OTHERS = COLOURS[1], COLOURS[0]


def draw_population(
    history: Sequence[LineageRow], draws: Mapping[str, Draw], output: Path, title: str
) -> None:
    """Draw the picture: a dot per learner and generation, a line from each to the one that it continues."""
    panels = 1 + len(draws)
    figure = new_figure((7.6, 4.2 + 1.7 * len(draws)))
    heights = [3.0, *[1.2] * len(draws)]
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    leaders = _leaders(history)
    _scores(axes[0], history, leaders)
    axes[0].set_title(title, loc="left", fontweight="bold", fontsize=12)
    for panel, (name, draw) in zip(axes[1:], draws.items()):
        _settings(panel, history, leaders, name, draw)
    axes[-1].set_xlabel("generation")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes:
        panel.grid(alpha=0.25)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    save_figure(figure, output)


def _scores(panel: Axes, history: Sequence[LineageRow], leaders: Sequence[LineageRow]) -> None:
    rows = [row for row in history if math.isfinite(row.score)]
    _ancestry(panel, rows, lambda row: row.score)
    panel.scatter(
        [row.generation for row in rows], [row.score for row in rows], s=14, color=OTHERS, alpha=0.6
    )
    panel.plot(
        [row.generation for row in leaders],
        [row.score for row in leaders],
        color=BEST,
        label="best",
        zorder=3,
    )
    generations = sorted({row.generation for row in rows})
    means = [_mean([row.score for row in rows if row.generation == g]) for g in generations]
    panel.plot(generations, means, color=OTHERS, label="mean", zorder=3)
    panel.set_ylabel("score (mean return)")
    panel.legend(frameon=False, loc="upper left")


def _settings(
    panel: Axes, history: Sequence[LineageRow], leaders: Sequence[LineageRow], name: str, draw: Draw
) -> None:
    numeric = all(isinstance(row.params[name], (int, float)) for row in history)
    words = [] if numeric else [str(value) for value in draw.extremes()]

    def height(row: LineageRow) -> Any:
        return row.params[name] if numeric else words.index(str(row.params[name]))

    _ancestry(panel, history, height)
    panel.scatter(
        [row.generation for row in history], [height(row) for row in history], s=14, color=OTHERS, alpha=0.6
    )
    panel.plot([row.generation for row in leaders], [height(row) for row in leaders], color=BEST, zorder=3)
    if words:
        panel.set_yticks(range(len(words)), words)
    elif isinstance(draw, Interval) and draw.log:
        panel.set_yscale("log")
    panel.set_ylabel(name)


def _ancestry(panel: Axes, rows: Sequence[LineageRow], height: Any) -> None:
    """Thin lines from each learner to those whose weights it continues with."""
    found = {(row.generation, row.learner): row for row in rows}
    for row in rows:
        origins = row.parents if row.origin in ("drawn", "copied") else (row.learner,)
        for learner in origins:
            before = found.get((row.generation - 1, learner))
            if before is not None:
                ends = (before.generation, row.generation), (height(before), height(row))
                panel.plot(*ends, color=OTHERS, alpha=0.25, linewidth=0.8, zorder=1)


def _leaders(history: Sequence[LineageRow]) -> list[LineageRow]:
    """The best learner of each generation."""
    found: dict[int, LineageRow] = {}
    for row in history:
        best = found.get(row.generation)
        if math.isfinite(row.score) and (best is None or row.score > best.score):
            found[row.generation] = row
    return list(found.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
