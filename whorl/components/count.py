"""Count-based exploration (Tang et al. 2017, arXiv:1611.04717): a reward for rarely visited cells of observations.

reward_t = 1 / sqrt(n(cell(s_{t+1}))),   n: how often that cell was visited in the whole run, this visit included
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, BonusConfig
from whorl.core import collectives, tree
from whorl.core.registry import register
from whorl.core.spec import Spec
from whorl.data.batch import Batch
from whorl.nets.novelty import Cells
from whorl.settings.schema import NonNegative, PositiveCount


@dataclass(frozen=True)
class CountConfig(BonusConfig):
    weight: NonNegative = 0.1
    """weight of the intrinsic reward; the environment's has weight 1"""
    normalize: bool = False
    """divide the reward by the standard deviation of its discounted return"""
    bins: PositiveCount = 20
    """cells per dimension of a vector: of its bounds if it has them, else per two units"""
    cells: PositiveCount = 1_000_003
    """size of the table of counts; cells beyond share entries"""


@register("component", "count")
class Count(Bonus):
    """Counts of visited cells: intrinsic reward 1 / sqrt(visits)."""

    Config = CountConfig
    cfg: CountConfig
    visits: Tensor

    def __init__(self, name: str, spec: Spec, cfg: CountConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.cells = Cells(spec.observation, cfg.bins, cfg.cells)
        self.register_buffer("visits", torch.zeros(cfg.cells))

    def bonus(self, rollout: Batch) -> Tensor:
        cell = self.cells(tree.index(rollout.obs, slice(1, None)))  # [T, B]
        added = torch.zeros_like(self.visits).index_add_(0, cell.flatten(), rollout.mask.flatten())
        self.visits.add_(collectives.total(added))
        return self.visits[cell].clamp(min=1).rsqrt()

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        return {f"{self.name}/cells": (self.visits > 0).sum().float(), **self.metrics()}
