"""Quantile-regression DQN (Dabney et al. 2018, arXiv:1710.10044): quantiles of the return at fixed fractions.

minimise E[sum_i mean_j |tau_i - 1{d_ij < 0}| huber(d_ij)],  d_ij = r + discount * theta'_j(s', a*) - theta_i(s, a)
tau_i = (2 i - 1) / 2N;  a* = argmax_a mean_j theta'_j(s', a); double: chosen by the online network.          (alg. 1)
munchausen:  d_ij = r + m * clip(t log pi(a|s), low, 0) + discount * sum_b pi(b|s') (theta'_j(s', b) - t log pi(b|s'))
             - theta_i(s, a),  pi = softmax(mean_j theta'_j / t)
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import MunchausenConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_values, highest_value
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.nets.losses import quantile_element_loss
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed, draw_passes
from whorl.ops.losses import quantile_loss, sorted_quantile_huber
from whorl.ops.values import best, bootstrap, pick, pick_columns, soft_policy
from whorl.settings.schema import Choice, Range, Size


@dataclass(frozen=True)
class QRDQNConfig(ExplorationConfig, MunchausenConfig):
    n_quantiles: Size = 200
    """quantiles per action"""
    loss: Annotated[Part, Choice("loss", ("huber", "squared"))] = Part("huber")
    """loss of a pair of quantiles: huber (threshold kappa), squared, both halved, or the import path of a function of
    (quantile, target), one value per element"""
    kappa: Annotated[float, Range(1e-6, 10**6)] = 1.0
    """threshold of the Huber loss"""


class QRDQN(Agent):
    """Quantile-regression DQN: quantiles of the return of each action."""

    Config = QRDQNConfig
    cfg: QRDQNConfig
    acts_with = ("observations", "critic", "explore")
    shares_unroll = ("critic",)
    tau: Tensor

    def __init__(self, spec: Spec, cfg: QRDQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic = QNetwork("qr_dqn", spec, cfg, cfg.n_quantiles)
        self.loss = quantile_element_loss(Part.of(cfg.loss), cfg.kappa)
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.register_buffer("tau", (torch.arange(cfg.n_quantiles) + 0.5) / cfg.n_quantiles, persistent=False)
        self.add_optimizers(critic=cfg.learning_rate)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_values(self, obs, memory, context)

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        return self.critic.outputs(features, noise).mean(-1)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        return highest_value(self, rows)

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        return draw_passes(self.critic, self.target_critic, self.random("critic"))

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[sum_i mean_j rho(d_ij)]; the TD errors of the means [T, B]; the mean of Q"""
        theta = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        quantile = pick_columns(self.critic(batch.now, noise["online"]), batch.action)  # [T, B, quantiles]
        # The mean over j does not depend on their order, and sorted targets need no tensor of all pairs.
        if self.loss is None:
            loss = sorted_quantile_huber(quantile, self.tau, theta.sort(-1).values, self.cfg.kappa)  # [T, B]
        else:
            loss = quantile_loss(quantile, self.tau, theta, self.loss)
        mean = quantile.detach().mean(-1)
        return (loss * batch.weight).mean(), (mean - theta.mean(-1)).abs(), (mean * batch.share).mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """r + discount * theta'(s', a*) [T, B, quantiles]"""
        theta = self.target_critic(batch.next, noise["target"])  # [T, B, choices, quantiles]
        select = self.critic(batch.next, noise["select"]) if self.cfg.double else theta
        value = pick_columns(theta, best(select.mean(-1), allowed(batch.next, self.spec)))
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's targets [T, B, quantiles]"""
        cfg = self.cfg
        theta = self.target_critic(batch.both, noise["target"])  # [2T, B, choices, quantiles]
        prob, log_pi = soft_policy(theta.mean(-1), cfg.munchausen_temperature, allowed(batch.both, self.spec))
        bonus = cfg.munchausen * pick(log_pi.chunk(2)[0], batch.action).clamp(cfg.munchausen_low, 0)
        value = (prob.unsqueeze(-1) * (theta - log_pi.unsqueeze(-1))).chunk(2)[1].sum(-2)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)
