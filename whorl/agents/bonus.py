"""What intrinsic rewards have in common: a reward stream, and their division by the deviation of its return."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.component import Component
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec, Stream
from whorl.core.tree import Tree
from whorl.data.batch import SUCCESSOR, Batch
from whorl.nets.normalize import ReturnScale
from whorl.ops.losses import masked_mean
from whorl.settings.schema import Fraction, NonNegative

ROWS_AT_ONCE = 1024
"""rows whose rewards are computed in one pass: bounds the memory of rollouts of images"""


@dataclass(frozen=True)
class BonusConfig:
    """Settings of every intrinsic reward."""

    weight: NonNegative = 0.5
    """weight of the intrinsic reward; the environment's has weight 1"""
    gamma: Fraction = 0.99
    """discount of the intrinsic return"""
    normalize: bool = True
    """divide the reward by the standard deviation of its discounted return"""


class Bonus(Component):
    """An intrinsic reward; a subclass defines `bonus`."""

    episodic: ClassVar[bool] = True
    """whether its return stops at the end of an episode"""
    cfg: BonusConfig
    mean_reward: Tensor

    def __init__(self, name: str, spec: Spec, cfg: Any, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.scale = ReturnScale(spec.num_envs, cfg.normalize, 0.0)
        self.register_buffer("mean_reward", torch.zeros(()))

    @classmethod
    def streams(cls, name: str, cfg: Any) -> tuple[Stream, ...]:
        return (Stream(name, cfg.gamma, episodic=cls.episodic, weight=cfg.weight),)

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        if self.cfg.normalize and rollout.shape[1] != self.spec.num_envs:
            raise ConfigError(
                f"{self.name} follows the return of each of {self.spec.num_envs} environments, but rollouts have "
                f"{rollout.shape[1]}; leave trajectories_per_batch out"
            )
        bonus = self.bonus(rollout)  # [T, B]
        keep = rollout.keep if self.episodic else torch.ones_like(bonus)
        self.scale.merge_(bonus, keep, rollout.mask, self.cfg.gamma)
        reward = self.scale(bonus)
        self.mean_reward.copy_(masked_mean(reward, rollout.mask))
        return {self.name: reward}

    def bonus(self, rollout: Batch) -> Tensor:
        """The reward [T, B] before it is scaled; row t belongs to the transition from `obs[t]` to `obs[t + 1]`."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Tensor]:
        """The mean reward of the last rollout."""
        return {f"{self.name}/reward": self.mean_reward.clone()}


def in_parts(function: Callable[..., Tensor], *rows: Tree) -> Tensor:
    """`function` of trees of rows [T, B, ...], a part of the rows at a time: [T, B, ...]."""
    steps, num_envs = tree.first(rows[0]).shape[:2]
    size = max(1, ROWS_AT_ONCE // num_envs)
    return torch.cat(
        [function(*(tree.index(every, slice(t, t + size)) for every in rows)) for t in range(0, steps, size)]
    )


def drawn(batch: Batch, count: int, generator: torch.Generator) -> tuple[Tree, Tree, Tree, Tensor]:
    """Up to `count` transitions of a batch: observations, actions, the observations after them, mask [count].

    With n-step returns a sample of replay bootstraps several rows later; the next observation is then in its extras.
    """
    rows = len(batch.mask)
    following = batch.extras.get(SUCCESSOR)
    if following is None:
        following = tree.index(batch.obs, slice(1, rows + 1))
    parts = (tree.index(batch.obs, slice(0, rows)), batch.action, following, batch.mask)
    total = batch.mask.numel()
    if count < total:
        index = torch.rand(total, generator=generator, device=batch.mask.device).argsort()[:count]
    else:
        index = torch.arange(total, device=batch.mask.device)
    found: Any = tuple(
        tree.map(lambda leaf: leaf.flatten(0, 1).index_select(0, index), part) for part in parts
    )
    return found
