"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): an intrinsic reward for new observations.

reward_t = mean_k (predictor(s_{t+1}) - target(s_{t+1}))_k^2 / std of the discounted sum of these errors
The target network is random and fixed; the predictor learns to imitate it on the observations that are visited. Both
read observations normalised by running statistics and clipped to +-5. The reward stream is not episodic.

Differs from the paper: the predictor is trained once per update on part of its rows, not in every PPO epoch; a frame
stack is read whole; with replay the reward is computed once, when the rollout is added.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, BonusConfig, in_parts
from whorl.core import tree
from whorl.core.registry import Part, register
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.novelty import Distillation
from whorl.ops.losses import masked_mean
from whorl.settings.schema import (
    ABOVE_0,
    Count,
    HiddenSizes,
    LearningRate,
    Optimizer,
    PositiveCount,
    PositiveLimit,
    Range,
    Size,
)


@dataclass(frozen=True)
class RNDConfig(BonusConfig):
    lr: LearningRate = 1e-4
    """learning rate of the predictor"""
    proportion: Annotated[float, Range(ABOVE_0, 1)] = 0.25
    """fraction of the rows of a batch that the predictor is trained on"""
    batch_size: PositiveCount = 256
    """rows per gradient step of the predictor"""
    features: Size = 128
    """outputs of both networks"""
    hidden_sizes: HiddenSizes = (256,)
    """hidden layers of the target network; the predictor has one more"""
    obs_clip_range: PositiveLimit = 5.0
    """normalised observations are clipped to this range"""
    warmup_steps: Count = 0
    """environment steps at the start that only update the statistics of observations: their reward is 0"""
    encoder: Part = Part("auto")
    """encoder of both networks: auto, images, flat, or an import path"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of the predictor"""


@register("component", "rnd")
class RND(Bonus):
    """Random network distillation: intrinsic reward by the prediction error of a random network."""

    Config = RNDConfig
    cfg: RNDConfig
    episodic = False
    seen: Tensor

    def __init__(self, name: str, spec: Spec, cfg: RNDConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.networks = Distillation(
            spec.observation, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        agent.add_optimizer(name, self.networks.predictor, cfg.optimizer, cfg.lr)

    def observe(self, rollout: Batch) -> None:
        self.networks.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)

    def bonus(self, rollout: Batch) -> Tensor:
        error = in_parts(self.error, tree.index(rollout.obs, slice(1, None)))
        warm = self.seen >= self.cfg.warmup_steps
        self.seen.add_(rollout.mask.sum())
        return torch.where(warm, error, 0.0)

    def error(self, obs: Tree) -> Tensor:
        """Mean squared prediction error of observations [..., ...]: [...]."""
        return self.networks(obs).square().mean(-1)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        rows, generator = batch.mask.numel(), agent.random(self.name)
        count = max(1, int(rows * self.cfg.proportion))
        chosen = torch.rand(rows, generator=generator, device=batch.mask.device).argsort()[:count]
        following = tree.map(lambda leaf: leaf[1 : len(batch.mask) + 1].flatten(0, 1), batch.obs)
        losses = []
        for index in chosen.split(self.cfg.batch_size):
            error = self.error(tree.map(lambda leaf: leaf.index_select(0, index), following))  # noqa: B023 - used at once
            loss = masked_mean(error, batch.mask.flatten().index_select(0, index))
            agent.minimize(self.name, loss)
            losses.append(loss.detach())
        return {f"loss/{self.name}": torch.stack(losses).mean(), **self.metrics()}
