"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): an intrinsic reward for new observations.

reward_t = mean_k (predictor(s_{t+1}) - target(s_{t+1}))_k^2 / std of the discounted sum of these errors
The target network is random and fixed; the predictor learns to imitate it on the observations that are visited. Both
read observations normalised by running statistics and clipped to +-5. The reward stream is not episodic.

Differs from the paper: the predictor is trained once per update on part of its rows, not in every PPO epoch; a frame
stack is read whole; with replay the reward is computed once, when the rollout is added.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.component import Component
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, register
from whorl.core.spec import Spec, SpecTree, Stream
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.layers import MLP
from whorl.nets.normalize import Observations, ReturnScale
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
class RNDConfig:
    weight: NonNegative = 0.5
    """weight of the intrinsic reward; the environment's has weight 1"""
    gamma: Fraction = 0.99
    """discount of the intrinsic return"""
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
    encoder: Part = Part("auto")
    """encoder of both networks: auto, images, flat, or an import path"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of the predictor"""


class Embedding(nn.Module):
    """Observations [..., ...] -> features [..., outputs]."""

    def __init__(self, observation: SpecTree, encoder: Part, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.encoder = construct("encoder", encoder, observation)
        width = int(self.encoder.size)
        self.hidden = MLP(width, hidden, "relu")
        self.last = nn.Linear(hidden[-1] if hidden else width, outputs)

    def forward(self, obs: Tree) -> Tensor:
        return self.last(self.hidden(self.encoder(obs)))


@register("component", "rnd")
class RND(Component):
    """Random network distillation: intrinsic reward by the prediction error of a random network."""

    Config = RNDConfig
    cfg: RNDConfig
    mean_reward: Tensor

    def __init__(self, name: str, spec: Spec, cfg: RNDConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        # All leaves as float vectors, so that images and one-hots are normalised by running statistics too.
        observation = tree.map(lambda leaf: replace(leaf, dtype="float32", binary=False), spec.observation)
        self.observations = Observations(observation, True, cfg.obs_clip_range)
        self.target = Embedding(observation, cfg.encoder, cfg.hidden_sizes, cfg.features)
        self.target.requires_grad_(False)
        deeper = (*cfg.hidden_sizes, *cfg.hidden_sizes[-1:])
        self.predictor = Embedding(observation, cfg.encoder, deeper, cfg.features)
        self.scale = ReturnScale(spec.num_envs, True, 0.0)
        self.register_buffer("mean_reward", torch.zeros(()))
        agent.add_optimizer(name, self.predictor, cfg.optimizer, cfg.lr)

    @classmethod
    def streams(cls, name: str, cfg: RNDConfig) -> tuple[Stream, ...]:
        return (Stream(name, cfg.gamma, episodic=False, weight=cfg.weight),)

    def observe(self, rollout: Batch) -> None:
        obs = tree.map(lambda leaf: leaf[1:].float(), rollout.obs)
        self.observations.merge_(obs, rollout.mask)

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        if rollout.shape[1] != self.spec.num_envs:
            raise ConfigError(
                f"{self.name} follows the return of each of {self.spec.num_envs} environments, but rollouts have "
                f"{rollout.shape[1]}; leave trajectories_per_batch out"
            )
        steps = max(1, ROWS_AT_ONCE // rollout.shape[1])
        following = tree.index(rollout.obs, slice(1, None))
        parts = [tree.index(following, slice(t, t + steps)) for t in range(0, rollout.shape[0], steps)]
        error = torch.cat([self.error(part) for part in parts])  # [T, B]
        self.scale.merge_(error, torch.ones_like(error), rollout.mask, self.cfg.gamma)
        reward = self.scale(error)
        self.mean_reward.copy_(masked_mean(reward, rollout.mask))
        return {self.name: reward}

    def error(self, obs: Tree) -> Tensor:
        """Mean squared prediction error of observations [..., ...]: [...]."""
        obs = self.observations(tree.map(Tensor.float, obs))
        return (self.predictor(obs) - self.target(obs)).square().mean(-1)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        rows, generator = batch.mask.numel(), agent.random(self.name)
        count = max(1, int(rows * self.cfg.proportion))
        drawn = torch.rand(rows, generator=generator, device=batch.mask.device).argsort()[:count]
        following: Any = tree.map(lambda leaf: leaf[1 : len(batch.mask) + 1].flatten(0, 1), batch.obs)
        losses = []
        for index in drawn.split(self.cfg.batch_size):
            error = self.error(tree.map(lambda leaf: leaf.index_select(0, index), following))  # noqa: B023 - used at once
            loss = masked_mean(error, batch.mask.flatten().index_select(0, index))
            agent.minimize(self.name, loss)
            losses.append(loss.detach())
        return {
            f"loss/{self.name}": torch.stack(losses).mean(),
            f"{self.name}/reward": self.mean_reward.clone(),
        }
