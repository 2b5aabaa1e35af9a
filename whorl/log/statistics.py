"""Statistics over several runs: robust means, confidence intervals, smoothing, curves on a common grid."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Positions (steps or seconds, non-decreasing) and the value at each."""


def interquartile_mean(values: ArrayLike) -> Floats:
    """Mean over the first axis (runs) without the lowest and the highest quarter, each rounded down.

    Agarwal et al. 2021, arXiv:2108.13264: nearly as robust as the median, nearly as efficient as the mean.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=0)
    trimmed = len(ordered) // 4
    return ordered[trimmed : len(ordered) - trimmed].mean(axis=0)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[Floats], ArrayLike],
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval (low, high) of a statistic that reduces the first axis, over runs."""
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        raise ValueError("an interval needs at least one value")
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1; use for instance 0.95")
    drawn = np.random.default_rng(seed).integers(len(data), size=(samples, len(data)))
    found = np.stack([np.asarray(statistic(data[rows]), dtype=np.float64) for rows in drawn])
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def smooth(steps: ArrayLike, values: ArrayLike, span: float) -> Floats:
    """Weighted mean around each point; a neighbour `span` steps away, on either side, has weight 1/e.

    The kernel is symmetric, so the curve does not lag, and weights depend on the distance in steps, so uneven logging
    does not distort it. Values that are not finite are skipped; with no others near, the result is NaN.
    """
    positions = np.asarray(steps, dtype=np.float64)
    data = np.asarray(values, dtype=np.float64)
    if span <= 0:
        return data.copy()
    kept = np.isfinite(data)
    known = np.where(kept, data, 0.0)
    ahead, behind = np.diff(positions, prepend=positions[:1]), np.diff(positions, append=positions[-1:])
    total = _decayed(known, ahead, span) + _decayed(known[::-1], behind[::-1], span)[::-1] - known
    weight = _decayed(kept, ahead, span) + _decayed(kept[::-1], behind[::-1], span)[::-1] - kept
    return np.divide(total, weight, out=np.full(len(data), np.nan), where=weight > 0)


def extent(positions: Floats) -> float:
    """The length of the axis that a curve covers."""
    return float(positions[-1] - positions[0])


def typical_gap(positions: Floats) -> float:
    """The median distance between neighbouring points of a curve."""
    return float(np.median(np.diff(positions))) if len(positions) > 1 else 0.0


def align(curves: Sequence[Curve], points: int = 400, begin: float = -np.inf) -> tuple[Floats, Floats]:
    """A common grid [points] and every curve interpolated on it [curves, points].

    The grid covers only steps from `begin` on that all curves cover: beyond them a mean would jump where a run ends.
    """
    finite = [_finite(curve) for curve in curves]
    if not all(len(steps) for steps, _ in finite):
        raise ValueError("a curve without finite points can't be aligned")
    start = max(begin, *(steps[0] for steps, _ in finite))
    stop = min(steps[-1] for steps, _ in finite)
    if start > stop:
        raise ValueError(f"the curves share no steps: one starts at {start:g}, another ends at {stop:g}")
    grid = np.linspace(start, stop, points if stop > start else 1)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in finite])


def _finite(curve: Curve) -> Curve:
    steps, values = (np.asarray(part, dtype=np.float64) for part in curve)
    kept = np.isfinite(values)
    return steps[kept], values[kept]


def _decayed(values: ArrayLike, distance: Floats, span: float) -> Floats:
    """Running sum that decays by exp(-distance / span) before each value is added."""
    data = np.asarray(values, dtype=np.float64)
    result = np.empty(len(data))
    total = 0.0
    for i, (value, fade) in enumerate(zip(data, np.exp(-distance / span))):
        total = result[i] = total * fade + value
    return result


# Algorithms over several tasks: scores are [runs, tasks], normalised so that 0 is a random policy and 1 the reference.
# The definitions are those of rliable (Agarwal et al. 2021, arXiv:2108.13264).


def aggregate_mean(scores: ArrayLike) -> Floats:
    """Mean over runs and tasks."""
    return np.asarray(scores, dtype=np.float64).mean(axis=(0, 1))


def aggregate_median(scores: ArrayLike) -> Floats:
    """Median over tasks of the mean over runs."""
    return np.median(np.asarray(scores, dtype=np.float64).mean(axis=0), axis=0)


def aggregate_iqm(scores: ArrayLike) -> Floats:
    """Interquartile mean of all runs of all tasks together."""
    data = np.asarray(scores, dtype=np.float64)
    return interquartile_mean(data.reshape(-1, *data.shape[2:]))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> Floats:
    """How far scores are below `target` on average, scores above it counted as `target`; less is better."""
    return target - np.minimum(np.asarray(scores, dtype=np.float64), target).mean(axis=(0, 1))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """Share of runs, over all tasks, whose score is above each threshold."""
    data = np.asarray(scores, dtype=np.float64).ravel()
    return (data[None] > np.asarray(thresholds, dtype=np.float64)[:, None]).mean(axis=1)


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> Floats:
    """Mean over tasks of the probability that a run of ours scores higher than one of theirs; a tie counts half."""
    x, y = (np.asarray(scores, dtype=np.float64) for scores in (ours, theirs))
    above = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])  # [runs of ours, runs of theirs, tasks]
    return above.mean(axis=(0, 1)).mean(axis=0)


def stratified_interval(
    scores: Sequence[ArrayLike],
    statistic: Callable[..., ArrayLike],
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval (low, high) of a statistic of scores, [runs, tasks, ...] each.

    Runs are drawn with replacement for each task by itself, and for each of several arrays by itself.
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1; use for instance 0.95")
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(one, dtype=np.float64) for one in scores]
    found = []
    for _ in range(samples):
        drawn = [
            data[rng.integers(len(data), size=data.shape[:2]), np.arange(data.shape[1])] for data in arrays
        ]
        found.append(np.asarray(statistic(*drawn), dtype=np.float64))
    low, high = np.quantile(np.stack(found), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
