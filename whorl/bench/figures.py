"""Figures of a benchmark, after Agarwal et al. 2021: aggregates, performance profiles, improvement, learning curves."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from whorl.bench.bench import Bench, Benched
from whorl.bench.cell import CellResult
from whorl.bench.results import AGGREGATES, Estimate, aggregates, improvements, scores_of
from whorl.bench.suite import Task
from whorl.core.errors import WhorlError
from whorl.log.groups import EVALUATION
from whorl.log.plot import COLOURS, curve, new_figure, save_figure
from whorl.log.statistics import Curve, Floats, aggregate_iqm, performance_profile, stratified_interval

POINTS = 60
THRESHOLDS = 501
SAMPLES = 1000
"""of the bootstrap of a curve"""


def draw_all(bench: Bench, benched: Benched) -> list[Path]:
    """All figures that the runs so far allow; the files written."""
    scores, folder = scores_of(benched), benched.folder
    if not scores:
        return []
    counts = {"environment": len(benched.suite.tasks), "seed": len(benched.suite.seeds)}
    words = ", ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items())
    title = f"{benched.suite.name}: {words}"
    written = [
        draw_aggregates(aggregates(scores), folder / "aggregates.png", title),
        draw_profiles(scores, folder / "profiles.png", title),
        draw_efficiency(*curves_of(bench, benched, list(scores)), folder / "efficiency.png", title),
    ]
    compared = folder / "improvement.png"
    if len(scores) > 1:
        written.append(draw_improvement(improvements(scores), compared, title))
    else:
        compared.unlink(missing_ok=True)  # that of a choice of more algorithms
    return written


def draw_aggregates(found: Mapping[str, Mapping[str, Estimate]], output: Path, title: str) -> Path:
    """Interquartile mean, mean, median and optimality gap of each algorithm, with intervals."""
    figure = new_figure((10.0, 1.3 + 0.35 * len(found)))
    panels = figure.subplots(1, len(AGGREGATES), sharey=True)
    names = list(found)[::-1]
    bounds = [
        bound for one in found.values() for what in AGGREGATES for bound in (one[what].low, one[what].high)
    ]
    low, high = (
        min(0.0, *bounds),
        max(1.0, *bounds),
    )  # one scale for all, from a random policy to the reference
    margin = 0.03 * (high - low)
    for panel, what in zip(panels, AGGREGATES):
        panel.set_xlim(low - margin, high + margin)
        for place, name in enumerate(names):
            one = found[name][what]
            colour = _colour(name, found)
            panel.barh(place, one.high - one.low, left=one.low, height=0.55, color=colour, alpha=0.65)
            panel.plot([one.value, one.value], [place - 0.28, place + 0.28], color="#222222", linewidth=1.4)
        panel.set_title(f"{what} (less is better)" if what == "optimality gap" else what, fontsize=10)
        panel.set_yticks(range(len(names)), names)
        _bare(panel, "x")
    figure.supxlabel("score (0: random, 1: reference)", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, output)


def draw_profiles(scores: Mapping[str, Floats], output: Path, title: str) -> Path:
    """The share of runs above each score."""
    figure = new_figure((6.4, 4.0))
    panel = figure.add_subplot()
    low = min(0.0, min(float(values.min()) for values in scores.values()))
    thresholds = np.linspace(
        low, max(1.0, max(float(values.max()) for values in scores.values())), THRESHOLDS
    )
    for name, values in scores.items():
        profile = performance_profile(values, thresholds)
        bottom, top = stratified_interval(
            [values], lambda drawn: performance_profile(drawn, thresholds), samples=SAMPLES
        )
        _band(panel, thresholds, profile, bottom, top, name, scores, steps=True)
    panel.set_xlim(thresholds[0], thresholds[-1])
    panel.set_ylim(-0.02, 1.02)
    panel.set_xlabel("score τ (0: random, 1: reference)")
    panel.set_ylabel("share of runs with score > τ")
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(panel, title)
    return save_figure(figure, output)


def draw_improvement(found: Mapping[tuple[str, str], Estimate], output: Path, title: str) -> Path:
    """The probability that a run of one algorithm beats one of another."""
    shown = {pair: one for number, (pair, one) in enumerate(found.items()) if _first(pair, found, number)}
    figure = new_figure((6.4, 1.3 + 0.35 * len(shown)))
    panel = figure.add_subplot()
    for place, one in enumerate(reversed(shown.values())):
        panel.barh(place, one.high - one.low, left=one.low, height=0.55, color=COLOURS[0], alpha=0.65)
        panel.plot([one.value, one.value], [place - 0.28, place + 0.28], color="#222222", linewidth=1.4)
    panel.axvline(0.5, color="#888888", linewidth=0.8, linestyle="--")
    labels = [f"{one} > {other}" for one, other in reversed(shown)]
    panel.set_yticks(range(len(shown)), labels)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel("probability of improvement")
    panel.set_title(title, fontsize=10)
    _bare(panel, "x")
    return save_figure(figure, output)


def draw_efficiency(share: Floats, curves: Mapping[str, Floats], output: Path, title: str) -> Path:
    """Interquartile mean of the evaluations over training."""
    figure = new_figure((6.4, 4.0))
    panel = figure.add_subplot()
    for name, values in curves.items():
        low, high = stratified_interval([values], aggregate_iqm, samples=SAMPLES)
        _band(panel, share, aggregate_iqm(values), low, high, name, curves)
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of the budget")
    panel.set_ylabel("IQM score of evaluations")
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    _finish(panel, title)
    return save_figure(figure, output)


def curves_of(bench: Bench, benched: Benched, names: Sequence[str]) -> tuple[Floats, dict[str, Floats]]:
    """Shares of the budget from when every run had been evaluated, and the normalised evaluations of algorithms there.

    An algorithm has [seeds, tasks, points] of them. A run that diverged scores 0 from its end on.
    """
    suite = bench.suite
    keys = {
        name: [[(name, task.env, seed) for task in suite.tasks] for seed in suite.seeds] for name in names
    }
    runs = {
        key: _evaluations(bench.folder_of(*key), benched.results[key])
        for rows in keys.values()
        for row in rows
        for key in row
    }
    share = np.linspace(max((float(x[0]) for x, _ in runs.values() if len(x)), default=0.0), 1, POINTS)
    found = {
        name: np.array(
            [
                [_scores(share, runs[key], benched.results[key], task) for task, key in zip(suite.tasks, row)]
                for row in rows
            ]
        )
        for name, rows in keys.items()
    }
    return share, found


def _evaluations(folder: Path, result: CellResult) -> Curve:
    """Shares of the budget at which a run was evaluated, and returns; that of its end is its result."""
    steps, values = np.empty(0), np.empty(0)
    with suppress(WhorlError):  # it ended before its first evaluation
        steps, values = curve(folder, EVALUATION)
    share, kept = result.share * steps / max(result.steps, 1), np.isfinite(values)
    if result.mean_return is None:
        return share[kept], values[kept]
    return np.append(share[kept], 1.0), np.append(values[kept], result.mean_return)


def _scores(share: Floats, evaluations: Curve, result: CellResult, task: Task) -> Floats:
    """Scores of a run at shares of its budget."""
    if not len(evaluations[0]):  # it diverged before the first one
        return np.zeros_like(share)
    found = task.normalized(np.interp(share, *evaluations))
    return found if result.mean_return is not None else np.where(share < result.share, found, 0.0)


def _first(pair: tuple[str, str], found: Mapping[tuple[str, str], Estimate], number: int) -> bool:
    """The direction of a pair in which the better one comes first."""
    one, other = found[pair].value, found[pair[::-1]].value
    return one > other or (one == other and number < list(found).index(pair[::-1]))


def _band(
    panel: Axes,
    x: Floats,
    y: Floats,
    low: Floats,
    high: Floats,
    name: str,
    names: Mapping[str, Any],
    steps: bool = False,
) -> None:
    colour = _colour(name, names)
    panel.plot(x, y, color=colour, label=name, drawstyle="steps-post" if steps else "default")
    panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, step="post" if steps else None)


def _colour(name: str, names: Mapping[str, Any]) -> str:
    return COLOURS[list(names).index(name) % len(COLOURS)]


def _finish(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.legend(frameon=False, fontsize=9)
    _bare(panel, "both")


def _bare(panel: Axes, axis: Any) -> None:
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.grid(axis=axis, color="#eeeeee")
    panel.set_axisbelow(True)
