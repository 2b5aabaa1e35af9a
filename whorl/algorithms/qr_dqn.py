"""Quantile-regression DQN (Dabney et al. 2018, arXiv:1710.10044): the return's quantiles at fixed fractions.

minimise E[sum_i mean_j |tau_i - 1{d_ij < 0}| huber(d_ij)],  d_ij = r + discount * theta'_j(s', a*) - theta_i(s, a)
tau_i = (2 i - 1) / 2N;  a* = argmax_a mean_j theta'_j(s', a); double: chosen by the online net.              (alg. 1)
munchausen:  d_ij = r + m * clip(t log pi(a|s), low, 0) + discount * sum_b pi(b|s') (theta'_j(s', b) - t log pi(b|s'))
             - theta_i(s, a),  pi = softmax(mean_j theta'_j / t)
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
from whorl.nets.q_network import QNetwork, allowed
from whorl.ops.losses import sorted_quantile_huber
from whorl.ops.targets import polyak_
from whorl.ops.values import best, bootstrap, pick, pick_columns, soft_policy
from whorl.settings.schema import Range, Size


@dataclass(frozen=True)
class QRDQNConfig(ExplorationConfig, MunchausenConfig):
    n_quantiles: Size = 200
    """quantiles per action"""
    kappa: Annotated[float, Range(1e-6, 10**6)] = 1.0
    """threshold of the Huber loss"""


class QRDQN(Agent):
    """Quantile-regression DQN: the return's quantiles."""

    Config = QRDQNConfig
    cfg: QRDQNConfig
    acts_with = ("observations", "critic", "explore")
    tau: Tensor

    def __init__(self, spec: Spec, cfg: QRDQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic = QNetwork("qr_dqn", spec, cfg, cfg.n_quantiles)
        self.observations = Preprocessor(spec, cfg)
        self.explore = Exploration(spec, cfg)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("tau", (torch.arange(cfg.n_quantiles) + 0.5) / cfg.n_quantiles, persistent=False)
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
        quantile, memory = self.critic.step(self.observations(obs), memory, context.reset, noise)
        return Acted(self.explore(quantile.mean(-1), obs, context, self.progress), memory)

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
        """The randomness of one update: of noisy layers, where there are any, for each pass its own."""
        nets = {"now": self.critic, "chosen": self.critic, "told": self.target_critic}
        return {name: net.draw(self.random("critic")) for name, net in nets.items()}

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[sum_i mean_j rho(d_ij)]; the errors of the means [T, B]; the mean of Q"""
        target = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        quantile = pick_columns(self.critic(batch.now, noise["now"]), batch.action)  # [T, B, quantiles]
        # A mean over j does not mind their order, and sorted targets need no tensor of all pairs.
        loss = sorted_quantile_huber(quantile, self.tau, target.sort(-1).values, self.cfg.kappa)  # [T, B]
        q = quantile.detach().mean(-1)
        return (loss * batch.weight).mean(), (q - target.mean(-1)).abs(), q.mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """r + discount * theta'(s', a*) [T, B, quantiles]"""
        following = self.target_critic(batch.next, noise["told"])  # [T, B, choices, quantiles]
        judged = self.critic(batch.next, noise["chosen"]) if self.cfg.double else following
        choice = best(judged.mean(-1), allowed(batch.next, self.spec))
        value = pick_columns(following, choice)
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's targets [T, B, quantiles]"""
        cfg = self.cfg
        every = self.target_critic(batch.both, noise["told"])  # [2T, B, choices, quantiles]
        prob, log_pi = soft_policy(every.mean(-1), cfg.munchausen_temperature, allowed(batch.both, self.spec))
        bonus = cfg.munchausen * pick(log_pi.chunk(2)[0], batch.action).clamp(cfg.munchausen_low, 0)
        value = (prob.unsqueeze(-1) * (every - log_pi.unsqueeze(-1))).chunk(2)[1].sum(-2)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        q = self.critic(rows).mean(-1)
        return pick(q, best(q, allowed(rows, self.spec)))
