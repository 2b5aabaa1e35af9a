"""Parallelised Q-network (Gallici et al. 2024, arXiv:2407.04811): Q-learning without replay and target networks.

minimise E[(Q(s_t, a_t) - G_t)^2] / 2,  G_t = r_t + discount_t * ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1})
Layer normalisation replaces the target network. G stops at the end of an episode; a truncated one bootstraps.

Differs from the paper: one layer norm after the convolutions, over all their features.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import check_batch_size, minibatches
from whorl.explore.acting import act_by_values, highest_value
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.nets.normalize import normalizers
from whorl.nets.q_network import QNetwork, QNetworkConfig, allowed
from whorl.ops.losses import blank, row_weight, squared
from whorl.ops.returns import lambda_return
from whorl.ops.values import best, pick
from whorl.settings.schema import (
    Epsilon,
    Fraction,
    LearningRate,
    Limit,
    Optimizer,
    PositiveLimit,
    Range,
    Schedule,
)


@dataclass(frozen=True)
class PQNConfig(ExplorationConfig, QNetworkConfig):
    layer_norm: bool = True
    """layer normalisation of the features and of each hidden layer before its activation"""
    gamma: Fraction = 0.99
    """discount factor"""
    q_lambda: Fraction = 0.65
    """lambda of the Q(lambda) return"""
    n_epochs: Annotated[int, Range(1, 10**6)] = 2
    """passes over each rollout"""
    batch_size: Annotated[int, Range(1, 10**7)] = 128
    """steps per minibatch; must divide num_envs * num_steps"""
    optimizer: Optimizer = Part("RAdam")
    """optimizer: a class of torch.optim or an import path, with options"""
    adam_eps: Epsilon = 1e-8
    """epsilon of the optimizer"""
    learning_rate: LearningRate = 2.5e-4
    """learning rate"""
    lr_schedule: Schedule = Part("constant")
    """learning rate over the run: constant, linear (to zero), cosine, warmup, or a registered function of progress"""
    max_grad_norm: Limit = 10.0
    """maximum norm of the gradients; 0: no clipping"""
    normalize_obs: bool = False
    """normalise float observations by running statistics; one-hot and binary ones stay as they are"""
    normalize_reward: bool = False
    """divide rewards by the standard deviation of the discounted return"""
    clip_obs: bool = True
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: PositiveLimit = 10.0
    """bound of clipped observations"""
    clip_reward: bool = False
    """clip scaled rewards to reward_clip_range"""
    reward_clip_range: PositiveLimit = 1.0
    """bound of clipped rewards"""


class PQN(Agent):
    """Parallelised Q-network: Q-learning from rollouts of many environments."""

    Config = PQNConfig
    cfg: PQNConfig
    acts_with = ("observations", "critic", "explore")

    def __init__(self, spec: Spec, cfg: PQNConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.critic = QNetwork("pqn", spec, cfg)
        self.explore = Exploration(spec, cfg)
        self.add_optimizers(critic=cfg.learning_rate)

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, self.stride)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_values(self, obs, memory, context)

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        return self.critic.outputs(features, noise)[..., 0]

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        return highest_value(self, rows)

    @captured
    def update(self, rollout: Batch) -> Updated:
        cfg, random = self.cfg, self.random("critic")
        batch = self.begin_update(rollout)
        columns = {
            "action": batch.action,
            "target": self.target(batch, self.critic.draw(random)),
            "weight": row_weight(batch.mask),
        }
        found = []
        for _ in range(cfg.n_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, random):
                loss, q = self.critic_loss(rows, data, self.critic.draw(random))
                norm = self.minimize("critic", loss, cfg.max_grad_norm, measure=True)
                found.append(torch.stack([loss.detach(), q, norm]))
        self.end_update(rollout)
        loss, q, norm = torch.stack(found).mean(0).unbind()
        return Updated({"loss/critic": loss, "q/mean": q, "gradient/critic": norm})

    @pure
    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """G [T, B]"""
        q = self.critic(batch.all, noise).squeeze(-1)  # [T+1, B, choices]
        value = pick(q, best(q, allowed(batch.all, self.spec)))
        target = lambda_return(batch.reward, batch.discount, value, batch.keep, self.cfg.q_lambda)
        return blank(target, batch.mask)

    @pure
    def critic_loss(self, rows: Rows, data: dict[str, Tensor], noise: Tree) -> tuple[Tensor, Tensor]:
        """E[(Q(s, a) - G)^2] / 2; the mean of Q"""
        q = pick(self.critic(rows, noise).squeeze(-1), data["action"])
        loss = (squared(q, data["target"]) * data["weight"]).mean()
        return loss, (q.detach() * data["weight"]).mean()
