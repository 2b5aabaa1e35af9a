"""Episodic novelty modulated by lifelong novelty, the intrinsic reward of NGU (Badia et al. 2020, arXiv:2002.06038).

reward_t = episodic(s_{t+1}) * clip(lifelong(s_{t+1}), 1, L)
episodic: 1 / similarity of the embedded observation to its k nearest among those of the episode (`ops.novelty`)
lifelong: 1 + (error - mean) / std of the error of random network distillation, running mean and std
The embedding is learned by an inverse dynamics model, so it leaves out what the agent has no influence on.

Every environment has its memory of the episode where acting happens, so the reward is known when the next action is
chosen (NGU reads it). Differs from the paper: the memory holds the newest `capacity` observations of the episode. The
error falls by orders of magnitude while the network learns, so its mean and std are those of recent observations:
beside the errors of the first steps nothing would be novel later.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, LearnedBonusConfig
from whorl.core import tree
from whorl.core.registry import register
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.normalize import RecentStatistics
from whorl.nets.novelty import Distillation, InverseDynamics
from whorl.ops.losses import blank, masked_mean
from whorl.ops.novelty import episodic_bonus, nearest_distances
from whorl.settings.schema import (
    Epsilon,
    HiddenSizes,
    LearningRate,
    NonNegative,
    PositiveCount,
    PositiveLimit,
    Range,
    Size,
)


@dataclass(frozen=True)
class EpisodicConfig(LearnedBonusConfig):
    weight: NonNegative = 0.3
    """weight of the intrinsic reward; the environment's has weight 1 (NGU and Agent57 have weights of their own)"""
    normalize: bool = False
    """divide the reward by the standard deviation of its discounted return"""
    neighbours: PositiveCount = 10
    """nearest observations of the episode that are compared"""
    capacity: PositiveCount = 2_000
    """observations of an episode that are kept; NGU: 30,000"""
    kernel_epsilon: Epsilon = 1e-4
    """epsilon of the kernel epsilon / (distance + epsilon)"""
    cluster_distance: NonNegative = 8e-3
    """relative distances below this are 0"""
    pseudo_count: Epsilon = 1e-3
    """added to the similarity"""
    max_similarity: PositiveLimit = 8.0
    """above it the reward is 0"""
    max_lifelong: Annotated[float, Range(1, 1e6)] = 5.0
    """bound L of the lifelong factor; 1: episodic novelty alone"""
    lifelong_window: PositiveCount = 5_000
    """size of the window of recent observations (all environments) whose distillation errors give mean and deviation;
    between one and two windows are kept"""
    features: Size = 32
    """size of the embedding"""
    hidden_sizes: HiddenSizes = (128,)
    """hidden layers of the embedding and of the distilled network"""
    lr: LearningRate = 5e-4
    """learning rate of the inverse dynamics model and of the distillation"""


@register("component", "episodic")
class Episodic(Bonus):
    """Episodic novelty by nearest neighbours, times lifelong novelty: the intrinsic reward of NGU."""

    Config = EpisodicConfig
    cfg: EpisodicConfig
    needs_successor = True
    outlives_episodes = ("distance", "distances")
    mean_lifelong: Tensor

    def __init__(self, name: str, spec: Spec, cfg: EpisodicConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        shared = (cfg.encoder, cfg.hidden_sizes)
        self.inverse = InverseDynamics(
            spec.observation, spec.action, *shared, cfg.features, cfg.obs_clip_range
        )
        self.networks = Distillation(spec.observation, *shared, cfg.features, cfg.obs_clip_range)
        self.errors = RecentStatistics((), cfg.lifelong_window)
        self.register_buffer("mean_lifelong", torch.ones(()))
        agent.add_optimizer(name, [self.inverse, self.networks.predictor], cfg.optimizer, cfg.lr)

    @property
    def immediate(self) -> bool:
        return not self.cfg.normalize

    def initial_memory(self, num_envs: int) -> Tree:
        return {
            "held": torch.zeros(num_envs, self.cfg.capacity, self.cfg.features),
            "count": torch.zeros(num_envs, dtype=torch.int64),
            "distance": torch.zeros(num_envs),
            "distances": torch.zeros(num_envs),
        }

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        cfg, held = self.cfg, memory["held"]
        count = memory["count"].masked_fill(reset, 0)
        value = self.inverse(next_obs)
        found = nearest_distances(value, held, count, cfg.neighbours)  # [B, k]
        # The mean distance of neighbours over the environment's life; episodes do not clear it.
        near = found.isfinite()
        distances = memory["distances"] + near.sum(-1)
        added = (torch.where(near, found, 0.0) - memory["distance"].unsqueeze(1)) * near
        mean = memory["distance"] + added.sum(-1) / distances.clamp(min=1)
        bonus = episodic_bonus(
            *(found, mean, cfg.kernel_epsilon, cfg.cluster_distance, cfg.pseudo_count, cfg.max_similarity)
        )
        error = self.error(next_obs)
        place = (count % cfg.capacity)[:, None, None].expand(-1, 1, held.shape[2])
        held.scatter_(1, place, value.unsqueeze(1))
        after = {"held": held, "count": count + 1, "distance": mean, "distances": distances}
        return after, {self.name: bonus * self.lifelong(error), f"{self.name}_error": error}

    def lifelong(self, error: Tensor) -> Tensor:
        """The factor of observations whose distillation has this error [...]."""
        deviations = (error - self.errors.mean) * (self.errors.var + 1e-24).rsqrt()
        return (1 + deviations).clamp(1.0, max(1.0, self.cfg.max_lifelong))

    def error(self, obs: Tree) -> Tensor:
        """Mean squared error of the distillation [...]."""
        return self.networks(obs).square().mean(-1)

    def observe(self, rollout: Batch) -> None:
        following = tree.index(rollout.obs, slice(1, None))
        self.inverse.merge_(following, rollout.mask)
        self.networks.merge_(following, rollout.mask)
        error = blank(rollout.extras[f"{self.name}_error"], rollout.mask)
        self.mean_lifelong.copy_(masked_mean(self.lifelong(error), rollout.mask))
        self.errors.merge_(error.flatten(), rollout.mask.flatten())

    def bonus(self, rollout: Batch) -> Tensor:
        return rollout.extras[self.name]

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        losses = []
        for obs, action, following, mask in self.minibatches(agent, batch):
            inverse = masked_mean(self.inverse.loss(self.inverse(obs), self.inverse(following), action), mask)
            error = masked_mean(self.error(following), mask)
            agent.minimize(self.name, inverse + error)
            losses.append(torch.stack([inverse, error]).detach())
        inverse, error = torch.stack(losses).mean(0).unbind()
        return {
            f"loss/{self.name}_inverse": inverse,
            f"loss/{self.name}_distillation": error,
            f"{self.name}/lifelong": self.mean_lifelong.clone(),
            **self.metrics(),
        }
