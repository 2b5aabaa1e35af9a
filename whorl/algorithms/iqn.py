"""Implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923): the return's quantile at any fraction asked for.

minimise E[sum_i mean_j |tau_i - 1{d_ij < 0}| huber(d_ij)],  d_ij = r + discount * Z'_{tau'_j}(s', a*) - Z_{tau_i}(s, a)
tau, tau' uniform in [0, 1), N and N' of them;  a* = argmax_a of the mean of Z' over K fractions               (eq. 3)
double and munchausen as in DQN, with the mean over K fractions as Q.

Differs from the paper: the K fractions that judge actions are midpoints, not drawn, so that acting is no more random
than it says; the Huber loss is not divided by kappa.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import MunchausenConfig
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.explore.noise import random_action
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QuantileNetwork, allowed
from whorl.ops.losses import quantile_huber
from whorl.ops.targets import polyak_
from whorl.ops.values import best, bootstrap, pick, pick_columns, soft_policy
from whorl.settings.schema import Range, Size


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
    kappa: Annotated[float, Range(1e-6, 10**6)] = 1.0
    """threshold of the Huber loss"""


class IQN(Agent):
    """Implicit quantile networks: the return's quantile function."""

    Config = IQNConfig
    cfg: IQNConfig
    acts_with = ("observations", "critic", "explore")
    midpoints: Tensor

    def __init__(self, spec: Spec, cfg: IQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic = QuantileNetwork("iqn", spec, cfg, cfg.n_cosines)
        self.observations = Preprocessor(spec, cfg)
        self.explore = Exploration(spec, cfg)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        midpoints = (torch.arange(cfg.n_policy_fractions) + 0.5) / cfg.n_policy_fractions
        self.register_buffer("midpoints", midpoints, persistent=False)
        given: dict[str, Any] = {"eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.learning_rate, **given)

    def initial_memory(self, num_envs: int) -> Tree:
        return self.critic.backbone.initial_memory(num_envs, self.device)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random:
            after = (
                self.critic.backbone.advance(self.observations(obs), memory, context.reset)
                if memory
                else memory
            )
            return Acted(random_action(self.spec, obs, context.generator), after)
        noise = {} if context.greedy else self.critic.draw(context.generator)
        features, memory = self.critic.backbone.step(self.observations(obs), memory, context.reset)
        return Acted(
            self.explore(self.mean(self.critic, features, noise), obs, context, self.progress), memory
        )

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, move_targets=(self.updates + 1) % self.cfg.target_update_interval == 0)

    @captured
    def step(self, batch: Batch, *, move_targets: bool) -> Updated:
        cfg = self.cfg
        self.anneal()
        self.critic.renew()
        batch = self.observations.learn(batch, self.random("critic"))
        batch = self.critic.unrolled(batch)
        loss, error, q = self.critic_loss(batch, self.draw(batch))
        self.descend("critic", loss, cfg.max_grad_norm)
        if move_targets:
            polyak_(self.target_critic, self.critic, cfg.tau)
        if not cfg.target_memory:
            polyak_(self.target_critic.backbone.memories, self.critic.backbone.memories, 1.0)
        return Updated({"loss/critic": loss.detach(), "q/mean": q}, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """The randomness of one update: fractions; noisy layers, where there are any, for each pass its own."""
        nets = {"now": self.critic, "chosen": self.critic, "told": self.target_critic}
        found = {name: net.draw(self.random("critic")) for name, net in nets.items()}
        for name, count in (("tau", self.cfg.n_fractions), ("target_tau", self.cfg.n_target_fractions)):
            shape = (*batch.mask.shape, count)
            found[name] = torch.rand(shape, generator=self.random("critic"), device=self.device)
        return found

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[sum_i mean_j rho(d_ij)]; the errors of the means [T, B]; the mean of Q"""
        target = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        tau = noise["tau"]  # [T, B, N]
        every = self.critic.at(self.critic.backbone(batch.now), tau, noise["now"])  # [T, B, N, choices]
        quantile = pick_columns(every.transpose(-1, -2), batch.action)  # [T, B, N]
        loss = quantile_huber(quantile, tau, target, self.cfg.kappa)  # [T, B]
        q = quantile.detach().mean(-1)
        return (loss * batch.weight).mean(), (q - target.mean(-1)).abs(), q.mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """r + discount * Z'(s', a*) [T, B, N']"""
        following = self.target_critic.backbone(batch.next)
        if self.cfg.double:
            judged = self.mean(self.critic, self.critic.backbone(batch.next), noise["chosen"])
        else:
            judged = self.mean(self.target_critic, following, noise["told"])
        choice = best(judged, allowed(batch.next, self.spec))
        every = self.target_critic.at(following, noise["target_tau"], noise["told"])  # [T, B, N', choices]
        value = pick_columns(every.transpose(-1, -2), choice)
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's targets [T, B, N']"""
        cfg = self.cfg
        features = self.target_critic.backbone(batch.both)  # [2T, B, ...]
        q = self.mean(self.target_critic, features, noise["told"])  # [2T, B, choices]
        prob, log_pi = soft_policy(q, cfg.munchausen_temperature, allowed(batch.both, self.spec))
        now, after = log_pi.chunk(2)
        bonus = cfg.munchausen * pick(now, batch.action).clamp(cfg.munchausen_low, 0)
        following = features.chunk(2)[1]
        every = self.target_critic.at(following, noise["target_tau"], noise["told"])  # [T, B, N', choices]
        value = (prob.chunk(2)[1].unsqueeze(-2) * (every - after.unsqueeze(-2))).sum(-1)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)

    def mean(self, net: QuantileNetwork, features: Tensor, noise: Tree) -> Tensor:
        """Q [..., choices] of features: the mean over K fractions."""
        tau = self.midpoints.expand(*features.shape[:-1], -1)
        return net.at(features, tau, noise).mean(-2)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        q = self.mean(self.critic, self.critic.backbone(rows), {})
        return pick(q, best(q, allowed(rows, self.spec)))
