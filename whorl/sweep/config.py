"""Settings of a sweep, besides those of its trials."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from whorl.core.registry import Part
from whorl.settings.schema import NonNegative, Range


@dataclass(frozen=True)
class SweepConfig:
    """Settings of a sweep, besides those of its trials."""

    trials: Annotated[int, Range(1, 10**6)] = 50
    """number of trials, including pruned ones; each trains once per seed"""
    seeds: Annotated[int, Range(1, 1000)] = 1
    """runs per trial, with seed, seed + 1, ...; they take turns, so that pruning sees all of them"""
    objective: Literal["mean", "iqm", "worst"] = "mean"
    """how the scores of a trial's seeds are combined; iqm: the interquartile mean"""
    score: Literal["last", "best", "average"] = "last"
    """which evaluation of a run is its score; average: the mean of all of them, which rewards learning fast"""
    sampler: Part = Part("tpe")
    """what proposes settings: tpe, random, grid, qmc, gp or cmaes; a mapping sets its options: {class: tpe,
    n_startup_trials: 20}"""
    pruner: Part = Part("median")
    """what stops unpromising trials after an evaluation: median, percentile, hyperband, successive_halving or none"""
    parallel: Annotated[int, Range(0, 1000)] = 0
    """trials at the same time, each in a process with its share of the cores; 0: one per core"""
    target_return: Annotated[float, Range(-math.inf, math.inf)] = math.inf
    """stop when a trial reaches this at its end"""
    max_minutes: NonNegative = 0.0
    """stop after this many minutes; the next call repeats unfinished trials; 0: no limit"""


MAY_CHANGE = ("trials", "parallel", "target_return", "max_minutes")
"""settings that may change when a sweep is continued"""
