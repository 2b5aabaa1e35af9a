"""The two rules by which a population proceeds from one generation to the next, as functions of its history.

Cross-entropy method (the evolver of Advanced-SAC; Rubinstein 1999; with gradients Pourchot and Sigaud 2019,
arXiv:1810.01222): the best share of the learners is selected; per weight w, with mean and deviation over them,

    w = mean + min(max(std, min_std), max_std) * noise          noise ~ N(0, 1)

Settings are drawn in proportion to how often selected learners had them (counts start at 1), numbers in intervals from
the normal distribution of the selected ones.

Population-based training (Jaderberg et al. 2017, arXiv:1711.09846; truncation selection): the worst share copies
weights and optimizer state of one of the best share (exploit) and draws again or perturbs its settings (explore).

Differs from Advanced-SAC: generations are synchronous, the best learner continues unchanged, all start from the same
weights. Whatever is random depends on the seed and the generation alone.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.population.config import EvolveConfig
from whorl.settings.draws import Draw, Interval, draw_all


@dataclass(frozen=True)
class LineageRow:
    """One learner in one generation: a row of the lineage."""

    generation: int
    """from 1"""
    slot: int
    """its place in the population"""
    learner: int
    """its number, which its folder has: a learner that is replaced leaves its place to a new one"""
    age: int
    """generations that it has lived: the number of its newest checkpoint"""
    score: float
    """mean return of its evaluation; -inf: it diverged"""
    params: Mapping[str, Any]
    """its values of `random_params`"""
    origin: str
    """where its weights at the start of the generation came from: new, own, drawn (cem) or copied (pbt)"""
    parents: tuple[int, ...] = ()
    """the learners whose weights it was drawn around or copied from; optimizer state is that of the first"""
    steps: int = 0
    """environment steps of this learner so far"""
    selected: bool = False
    """cem: whether it is among the best share"""
    note: str = ""
    """why it diverged, or why it is a new learner"""


@dataclass(frozen=True)
class Plan:
    """What one place of the population does in the next generation."""

    slot: int
    learner: int
    age: int
    """generations that it has lived: 0 for a new learner"""
    params: Mapping[str, Any]
    origin: str
    parents: tuple[LineageRow, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Population:
    """What the rules need to know."""

    config: EvolveConfig
    draws: Mapping[str, Draw]
    seed: int
    history: Sequence[LineageRow] = field(default_factory=list)
    """rows of all complete generations"""

    @property
    def generation(self) -> int:
        """The number of complete generations."""
        return self.history[-1].generation if self.history else 0

    def next(self) -> list[Plan]:
        """The plan of the next generation."""
        if not self.history:
            return self._first()
        return self._cem() if self.config.rule == "cem" else self._pbt()

    def rng(self, slot: int, generation: int) -> np.random.Generator:
        """For the settings of one place in one generation."""
        return np.random.default_rng([self.seed, generation, slot])

    def weight_seed(self, slot: int, generation: int) -> int:
        """For the weights of one place in one generation."""
        found = np.random.SeedSequence([self.seed, generation, slot, 1]).generate_state(1, np.uint32)[0]
        return int(found)

    def newest(self) -> list[LineageRow]:
        """The last complete generation, by place."""
        return [row for row in self.history if row.generation == self.generation]

    def ranked(self) -> list[LineageRow]:
        """The same, best first; equal scores in the order of their places."""
        return sorted(self.newest(), key=lambda row: (-row.score, row.slot))

    def _first(self) -> list[Plan]:
        generation = self.generation + 1
        return [
            Plan(slot, slot, 0, draw_all(self.draws, self.rng(slot, generation)), "new")
            for slot in range(self.config.population)
        ]

    def _cem(self) -> list[Plan]:
        """New weights around the best; how often each value was selected gives the probability of settings."""
        config, generation = self.config, self.generation + 1
        best = [row for row in self.ranked() if row.selected]
        kept = {row.slot for row in self.ranked()[: config.keep_best] if math.isfinite(row.score)}
        removed = removed_learners(self.history, config.remove_worst)
        numbers = self._new_numbers()
        plans = []
        for row in self.newest():
            if row.slot in kept:
                plans.append(Plan(row.slot, row.learner, row.age, row.params, "own"))
                continue
            first = row.slot % len(best)  # its optimizer state and statistics are those of one of the best
            parents = (*best[first:], *best[:first])
            params = self._selected_params(self.rng(row.slot, generation), best)
            note = row.note if not math.isfinite(row.score) else removed.get(row.learner, "")
            learner, age = (next(numbers), 0) if note else (row.learner, row.age)
            plans.append(Plan(row.slot, learner, age, params, "drawn", parents, note))
        return plans

    def _selected_params(self, rng: np.random.Generator, best: Sequence[LineageRow]) -> dict[str, Any]:
        found = {}
        for name, draw in self.draws.items():
            rows = best if isinstance(draw, Interval) else [row for row in self.history if row.selected]
            found[name] = draw.select(rng, [row.params[name] for row in rows])
        return found

    def _pbt(self) -> list[Plan]:
        """The worst copy one of the best, and perturb its settings."""
        config, generation = self.config, self.generation + 1
        ranked = self.ranked()
        count = max(1, math.floor(config.exploit * len(ranked) + 1e-9)) if config.exploit else 0
        best = [row for row in ranked[: max(count, 1)] if math.isfinite(row.score)]
        worst = {row.slot for row in ranked[len(ranked) - count :]}
        numbers = self._new_numbers()
        plans = []
        for row in self.newest():
            failed = not math.isfinite(row.score)
            if row.slot not in worst and not failed:
                plans.append(Plan(row.slot, row.learner, row.age, row.params, "own"))
                continue
            rng = self.rng(row.slot, generation)
            parent = best[int(rng.integers(len(best)))]
            params = self._explored(rng, parent.params)
            learner, age = (next(numbers), 0) if failed else (row.learner, row.age)
            plans.append(
                Plan(row.slot, learner, age, params, "copied", (parent,), row.note if failed else "")
            )
        return plans

    def _explored(self, rng: np.random.Generator, params: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, draw in self.draws.items():
            redraw = rng.random() < self.config.resample
            found[name] = draw.draw(rng) if redraw else draw.perturb(rng, params[name], self.config.perturb)
        return found

    def _new_numbers(self) -> Any:
        """Numbers of learners that do not exist yet."""
        return iter(range(max(row.learner for row in self.history) + 1, 10**9))


def select(scores: Sequence[float], share: float) -> list[bool]:
    """Which learners are selected: the best share, two at least; never one that diverged."""
    count = max(2, math.ceil(share * len(scores) - 1e-9))
    order = sorted(range(len(scores)), key=lambda slot: (-scores[slot], slot))
    best = {slot for slot in order[:count] if math.isfinite(scores[slot])}
    return [slot in best for slot in range(len(scores))]


def removed_learners(history: Sequence[LineageRow], factor: float) -> dict[int, str]:
    """The learners that were selected `factor` times less often than a learner of their age is on average.

    Nobody is removed before that average is `factor`: one selection more or less must not decide. With the reason.
    """
    if factor <= 0:
        return {}
    newest = [row for row in history if row.generation == history[-1].generation]
    counts = Counter(row.learner for row in history if row.selected)
    rate = sum(counts.values()) / len(history)
    return {
        row.learner: f"learner {row.learner} was selected {counts[row.learner]} times, the average is "
        f"{rate * row.age:.1f}"
        for row in newest
        if rate * row.age >= factor and counts[row.learner] * factor < rate * row.age
    }


def moments(weights: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Mean and deviation of every weight over several learners."""
    stacks = {name: torch.stack([one[name] for one in weights]) for name in weights[0]}
    return (
        {name: stack.mean(0) for name, stack in stacks.items()},
        {name: stack.std(0, correction=0) for name, stack in stacks.items()},
    )


def drawn(
    mean: Mapping[str, Tensor], std: Mapping[str, Tensor], config: EvolveConfig, seed: int
) -> dict[str, Tensor]:
    """Weights from the normal distribution with these moments, the deviation within its bounds."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: mean[name]
        + std[name].clamp(config.min_std, config.max_std)
        * torch.randn(mean[name].shape, generator=generator, dtype=mean[name].dtype)
        for name in sorted(mean)
    }
