"""Deep Q-learning (Mnih et al. 2015) with the parts that later papers added, each a switch.

minimise E[loss(Q(s, a) - y)],  y = r + discount * Q'(s', a*),  a* = argmax_a Q'(s', a)
double:      a* = argmax_a Q(s', a), chosen by the online net                (van Hasselt et al. 2016, arXiv:1509.06461)
munchausen:  y = r + m * clip(t log pi(a|s), low, 0) + discount * sum_b pi(b|s') (Q'(s', b) - t log pi(b|s')),
             pi = softmax(Q' / t)                                            (Vieillard et al. 2020, arXiv:2007.14430)
rescaled:    y = h(r + discount * h^-1(Q'(s', a*)))                          (Pohlen et al. 2018, arXiv:1805.11593)
Dueling streams and noisy layers are the net's, priorities and n-step returns the replay's.

Differs from the papers: Adam; with n-step returns the log-probability of the first action alone is added.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

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
from whorl.ops.losses import huber
from whorl.ops.targets import polyak_
from whorl.ops.values import best, bootstrap, pick, soft_policy


@dataclass(frozen=True)
class DQNConfig(ExplorationConfig, MunchausenConfig):
    loss: Literal["huber", "squared"] = "huber"
    """loss of the TD error: Huber with threshold 1, or squared; both halved"""


class DQN(Agent):
    """Deep Q-learning: the value of every choice, from replay."""

    Config = DQNConfig
    cfg: DQNConfig
    acts_with = ("observations", "critic", "explore")

    def __init__(self, spec: Spec, cfg: DQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic = QNetwork("dqn", spec, cfg)
        self.observations = Preprocessor(spec, cfg)
        self.explore = Exploration(spec, cfg)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
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
        q, memory = self.critic.step(self.observations(obs), memory, context.reset, noise)
        return Acted(self.explore(q[..., 0], obs, context, self.progress), memory)

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
        """E[loss(Q(s, a) - y)]; the errors [T, B]; the mean of Q"""
        target = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        q = pick(self.critic(batch.now, noise["now"]).squeeze(-1), batch.action)  # [T, B]
        error = q - target
        loss = huber(error) if self.cfg.loss == "huber" else 0.5 * error.square()
        return (loss * batch.weight).mean(), error.detach().abs(), q.detach().mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """y [T, B]"""
        following = self.target_critic(batch.next, noise["told"]).squeeze(-1)  # [T, B, choices]
        judged = self.critic(batch.next, noise["chosen"]).squeeze(-1) if self.cfg.double else following
        value = pick(following, best(judged, allowed(batch.next, self.spec)))
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's y [T, B]"""
        cfg = self.cfg
        q = self.target_critic(batch.both, noise["told"]).squeeze(-1)  # [2T, B, choices]
        prob, log_pi = soft_policy(q, cfg.munchausen_temperature, allowed(batch.both, self.spec))
        bonus = cfg.munchausen * pick(log_pi.chunk(2)[0], batch.action).clamp(cfg.munchausen_low, 0)
        value = (prob * (q - log_pi)).chunk(2)[1].sum(-1)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        q = self.critic(rows)[..., 0]
        return pick(q, best(q, allowed(rows, self.spec)))
