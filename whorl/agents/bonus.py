"""What intrinsic rewards have in common: a reward stream, and their division by the deviation of its return."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.component import Component
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Spec, Stream
from whorl.core.tree import Tree
from whorl.data.batch import SUCCESSOR, Batch
from whorl.nets.normalize import ReturnScale
from whorl.ops.losses import masked_mean
from whorl.settings.schema import (
    ABOVE_0,
    Fraction,
    HiddenSizes,
    LearningRate,
    NonNegative,
    Optimizer,
    PositiveCount,
    PositiveLimit,
    Range,
    Size,
)

ROWS_AT_ONCE = 1024
"""rows whose rewards are computed in one pass: bounds the memory of rollouts of images"""


@dataclass(frozen=True)
class BonusConfig:
    """Settings of every intrinsic reward."""

    weight: NonNegative = 0.5
    """weight of the intrinsic reward; the environment's has weight 1"""
    gamma: Fraction = 0.99
    """discount of the intrinsic return (agents with replay and PQN discount this reward as the environment's: there it
    is only that of normalize)"""
    normalize: bool = True
    """divide the reward by the standard deviation of its discounted return"""


@dataclass(frozen=True)
class LearnedBonusConfig(BonusConfig):
    """Settings of intrinsic rewards with networks of their own."""

    lr: LearningRate = 1e-4
    """learning rate of its networks"""
    proportion: Annotated[float, Range(ABOVE_0, 1)] = 0.25
    """fraction of the rows of a batch that its networks learn from, at least batch_size rows"""
    batch_size: PositiveCount = 256
    """rows per gradient step"""
    features: Size = 128
    """outputs of its networks"""
    hidden_sizes: HiddenSizes = (256,)
    """hidden layers after the encoder; a predictor of a random network has its last layer twice"""
    obs_clip_range: PositiveLimit = 5.0
    """normalised observations are clipped to this range"""
    encoder: Part = Part("auto")
    """encoder of its networks: auto, images, flat, or an import path"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of its networks"""


class Bonus(Component):
    """An intrinsic reward; a subclass defines `bonus`."""

    episodic: ClassVar[bool] = True
    """whether its return stops at the end of an episode, where agents have a value of it"""
    cfg: BonusConfig
    mean_reward: Tensor

    def __init__(self, name: str, spec: Spec, cfg: Any, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        if cfg.gamma != type(cfg).gamma and not cfg.normalize and not agent.separate_streams:
            raise ConfigError(
                f"{name}.gamma is {cfg.gamma:g}, but {type(agent).__name__} discounts intrinsic rewards as those of "
                f"the environment; leave {name}.gamma out, or use ppo, which has a value of each reward"
            )
        self.scale = ReturnScale(spec.num_envs, cfg.normalize, 0.0)
        self.register_buffer("mean_reward", torch.zeros(()))

    @classmethod
    def streams(cls, name: str, cfg: Any) -> tuple[Stream, ...]:
        return (Stream(name, cfg.gamma, episodic=cls.episodic, weight=cfg.weight),)

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        bonus = self.bonus(rollout)  # [T, B]
        keep = rollout.keep if self.episodic else torch.ones_like(bonus)
        self.scale.merge_(bonus, keep, rollout.mask, self.cfg.gamma)
        reward = self.scale(bonus)
        self.mean_reward.copy_(masked_mean(reward, rollout.mask))
        return {self.name: reward}

    def minibatches(self, agent: Agent, batch: Batch) -> Iterator[tuple[Tree, Tree, Tree, Tensor]]:
        """What the networks of this component learn from: see `drawn`."""
        cfg: Any = self.cfg
        return drawn(batch, cfg.proportion, cfg.batch_size, agent.random(self.name))

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


def drawn(
    batch: Batch, proportion: float, size: int, generator: torch.Generator
) -> Iterator[tuple[Tree, Tree, Tree, Tensor]]:
    """Minibatches of up to `size` transitions: observations, actions, the observations after them, mask [size].

    Together they are a random `proportion` of the batch, at least one minibatch. With n-step returns a sample of replay
    bootstraps several rows later; the next observation is then in its extras.
    """
    rows, total = len(batch.mask), batch.mask.numel()
    following = batch.extras.get(SUCCESSOR)
    if following is None:
        following = tree.index(batch.obs, slice(1, rows + 1))
    # Whatever masked rows hold must not reach a gradient, not even as 0 * nan.
    action = tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action))
    parts: Any = (tree.index(batch.obs, slice(0, rows)), action, following, batch.mask)
    parts = tuple(tree.map(lambda leaf: leaf.flatten(0, 1), part) for part in parts)
    count = max(1, int(total * proportion) // size) * size
    order = torch.rand(total, generator=generator, device=batch.mask.device).argsort()
    for index in order[:count].split(size):
        yield tuple(tree.map(lambda leaf: leaf.index_select(0, index), part) for part in parts)  # noqa: B023 - used at once
