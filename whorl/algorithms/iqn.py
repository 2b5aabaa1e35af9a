"""Implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923): quantiles of the return at sampled fractions.

minimise E[sum_i mean_j |tau_i - 1{d_ij < 0}| huber(d_ij)],  d_ij = r + discount * Z'_{tau'_j}(s', a*) - Z_{tau_i}(s, a)
tau, tau' uniform in [0, 1), N and N' of them;  a* = argmax_a of the mean of Z' over K fractions               (eq. 3)
double and munchausen as in DQN, with the mean over K fractions as Q.

Differs from the paper: the K fractions for Q values are midpoints instead of samples, so that they add no randomness to
acting; the Huber loss is not divided by kappa.
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
from whorl.nets.q_network import QuantileNetwork, allowed, draw_passes
from whorl.ops.losses import quantile_huber, quantile_loss
from whorl.ops.values import best, bootstrap, pick, pick_columns, soft_policy
from whorl.settings.schema import Choice, Range, Size


@dataclass(frozen=True)
class IQNConfig(ExplorationConfig, MunchausenConfig):
    n_fractions: Size = 64
    """quantile fractions sampled for the prediction"""
    n_target_fractions: Size = 64
    """quantile fractions sampled for the target"""
    n_policy_fractions: Size = 32
    """quantile fractions averaged to select an action"""
    n_cosines: Size = 64
    """cosine features of a quantile fraction"""
    loss: Annotated[Part, Choice("loss", ("huber", "squared"))] = Part("huber")
    """loss of a pair of quantiles: huber (threshold kappa), squared, both halved, or the import path of a function of
    (quantile, target), one value per element"""
    kappa: Annotated[float, Range(1e-6, 10**6)] = 1.0
    """threshold of the Huber loss"""


class IQN(Agent):
    """Implicit quantile networks: the quantile function of the return of each action."""

    Config = IQNConfig
    cfg: IQNConfig
    acts_with = ("observations", "critic", "explore")
    shares_unroll = ("critic",)
    midpoints: Tensor

    def __init__(self, spec: Spec, cfg: IQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic = QuantileNetwork("iqn", spec, cfg, cfg.n_cosines)
        self.loss = quantile_element_loss(Part.of(cfg.loss), cfg.kappa)
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        midpoints = (torch.arange(cfg.n_policy_fractions) + 0.5) / cfg.n_policy_fractions
        self.register_buffer("midpoints", midpoints, persistent=False)
        self.add_optimizers(critic=cfg.learning_rate)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_values(self, obs, memory, context)

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        return self.mean(self.critic, features, noise)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        return highest_value(self, rows)

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        """Noise of the passes, and the fractions tau [T, B, N] and tau' [T, B, N']."""
        random, shape = self.random("critic"), batch.mask.shape
        found = draw_passes(self.critic, self.target_critic, random)
        found["tau"] = torch.rand(*shape, self.cfg.n_fractions, generator=random, device=self.device)
        found["target_tau"] = torch.rand(
            *shape, self.cfg.n_target_fractions, generator=random, device=self.device
        )
        return found

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[sum_i mean_j rho(d_ij)]; the TD errors of the means [T, B]; the mean of Q"""
        target = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        z = self.critic.at(
            self.critic.backbone(batch.now), noise["tau"], noise["online"]
        )  # [T, B, N, choices]
        quantile = pick_columns(z.transpose(-1, -2), batch.action)  # [T, B, N]
        if self.loss is None:
            loss = quantile_huber(quantile, noise["tau"], target, self.cfg.kappa)  # [T, B]
        else:
            loss = quantile_loss(quantile, noise["tau"], target, self.loss)
        q = quantile.detach().mean(-1)
        return (loss * batch.weight).mean(), (q - target.mean(-1)).abs(), (q * batch.share).mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """r + discount * Z'(s', a*) [T, B, N']"""
        features = self.target_critic.backbone(batch.next)
        if self.cfg.double:
            q = self.mean(self.critic, self.critic.backbone(batch.next), noise["select"])
        else:
            q = self.mean(self.target_critic, features, noise["target"])
        z = self.target_critic.at(features, noise["target_tau"], noise["target"])  # [T, B, N', choices]
        value = pick_columns(z.transpose(-1, -2), best(q, allowed(batch.next, self.spec)))
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's targets [T, B, N']"""
        cfg = self.cfg
        features = self.target_critic.backbone(batch.both)  # [2T, B, ...]
        q = self.mean(self.target_critic, features, noise["target"])  # [2T, B, choices]
        prob, log_pi = soft_policy(q, cfg.munchausen_temperature, allowed(batch.both, self.spec))
        log_now, log_next = log_pi.chunk(2)
        bonus = cfg.munchausen * pick(log_now, batch.action).clamp(cfg.munchausen_low, 0)
        z = self.target_critic.at(
            features.chunk(2)[1], noise["target_tau"], noise["target"]
        )  # [T, B, N', choices]
        value = (prob.chunk(2)[1].unsqueeze(-2) * (z - log_next.unsqueeze(-2))).sum(-1)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)

    def mean(self, net: QuantileNetwork, features: Tensor, noise: Tree) -> Tensor:
        """Q [..., choices] of features [..., size]: the mean over K fractions."""
        tau = self.midpoints.expand(*features.shape[:-1], -1)
        return net.at(features, tau, noise).mean(-2)
