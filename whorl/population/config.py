"""Settings of a population, besides those of its learners."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from whorl.settings.schema import Fraction, Positive, PositiveCount, Range


@dataclass(frozen=True)
class EvolveConfig:
    """Settings of a population, besides those of its learners."""

    rule: Literal["cem", "pbt"] = "cem"
    """cem: new weights are drawn around those of the best learners (cross-entropy method); pbt: the worst learners copy
    the best ones and perturb their settings (population-based training)"""
    population: Annotated[int, Range(2, 1000)] = 8
    """number of learners"""
    generations: Annotated[int, Range(1, 10**6)] = 20
    """stop after this many generations"""
    generation_steps: PositiveCount = 10_000
    """environment steps of each learner in a generation; n_eval_episodes episodes are its score"""
    target_return: Annotated[float, Range(-math.inf, math.inf)] = math.inf
    """stop when the best score of a generation reaches this"""
    parallel: Annotated[int, Range(0, 1000)] = 0
    """learners that train at the same time, each in a process of its own; 0: one per core"""
    elite: Annotated[float, Range(0.01, 1)] = 0.3
    """cem: share of the learners that are selected, at least two"""
    keep_best: Annotated[int, Range(0, 1000)] = 1
    """cem: number of best learners that keep their own weights and settings; 0: all weights are drawn"""
    min_std: Annotated[float, Range(0, 10)] = 0.0
    """cem: smallest standard deviation of a drawn weight"""
    max_std: Annotated[float, Range(0, 10)] = 1.0
    """cem: largest standard deviation of a drawn weight"""
    common_start: bool = True
    """cem: all learners start from the same weights, so that averages of them make sense"""
    remove_worst: Annotated[float, Range(0, 1000)] = 4.0
    """cem: N: a learner that was selected less than 1/N as often as the average learner of its age is replaced by a new
    one with an empty replay buffer, once that average is at least N; 0: never"""
    exploit: Annotated[float, Range(0, 0.5)] = 0.25
    """pbt: share of the learners that are replaced: each of the worst copies one of as many best ones; at least one; 0:
    none"""
    resample: Fraction = 0.25
    """pbt: probability that a setting of a copy is drawn again instead of perturbed"""
    perturb: tuple[Positive, ...] = (0.8, 1.2)
    """pbt: factors for perturbed numbers, one of which is drawn each time"""


MAY_CHANGE = ("generations", "target_return", "parallel")
"""settings that a resumed population may change"""
