"""Exploration via elliptical episodic bonuses (Henaff et al. 2022, arXiv:2210.05805).

reward_t = phi(s_{t+1})^T C^-1 phi(s_{t+1}),   C = ridge * I + sum of phi phi^T over the observations of this episode
phi is learned by an inverse dynamics model, so it leaves out what the agent has no influence on.

Differs from the paper: the reward is divided by the running deviation of its return, as in RND (`normalize`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, LearnedBonusConfig
from whorl.core import tree
from whorl.core.registry import register
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.novelty import InverseDynamics
from whorl.ops.losses import masked_mean
from whorl.ops.novelty import elliptical_
from whorl.settings.schema import Epsilon, Size


@dataclass(frozen=True)
class E3BConfig(LearnedBonusConfig):
    ridge: Epsilon = 0.1
    """regularisation of C"""
    features: Size = 64
    """size of the embedding"""


@register("component", "e3b")
class E3B(Bonus):
    """Elliptical episodic bonus: reward for features that the episode has not had yet."""

    Config = E3BConfig
    cfg: E3BConfig
    needs_successor = True

    def __init__(self, name: str, spec: Spec, cfg: E3BConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.inverse = InverseDynamics(
            *(spec.observation, spec.action, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range)
        )
        agent.add_optimizer(name, self.inverse, cfg.optimizer, cfg.lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return {"inverse": self.start("cpu").expand(num_envs, -1, -1).clone()}

    def start(self, device: torch.device | str) -> Tensor:
        """C^-1 before the first observation of an episode.

        In double precision: single loses it within a few thousand steps, where features are nearly dependent.
        """
        return torch.eye(self.cfg.features, dtype=torch.float64, device=device) / self.cfg.ridge

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        inverse = memory["inverse"]
        inverse.copy_(torch.where(reset[:, None, None], self.start(inverse.device), inverse))
        bonus = elliptical_(inverse, self.inverse(next_obs).double())
        return {"inverse": inverse}, {self.name: bonus.float()}

    def observe(self, rollout: Batch) -> None:
        self.inverse.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)

    def bonus(self, rollout: Batch) -> Tensor:
        return rollout.extras[self.name]

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        losses = []
        for obs, action, following, mask in self.minibatches(agent, batch):
            loss = masked_mean(self.inverse.loss(self.inverse(obs), self.inverse(following), action), mask)
            agent.minimize(self.name, loss)
            losses.append(loss.detach())
        return {f"loss/{self.name}": torch.stack(losses).mean(), **self.metrics()}
