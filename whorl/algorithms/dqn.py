"""Deep Q-learning (Mnih et al. 2015) with optional extensions of later papers.

minimise E[loss(Q(s, a) - y)],  y = r + discount * Q'(s', a*),  a* = argmax_a Q'(s', a)
double:      a* = argmax_a Q(s', a), chosen by the online network            (van Hasselt et al. 2016, arXiv:1509.06461)
munchausen:  y = r + m * clip(t log pi(a|s), low, 0) + discount * sum_b pi(b|s') (Q'(s', b) - t log pi(b|s')),
             pi = softmax(Q' / t)                                            (Vieillard et al. 2020, arXiv:2007.14430)
rescaled:    y = h(r + discount * h^-1(Q'(s', a*)))                          (Pohlen et al. 2018, arXiv:1805.11593)
Dueling heads and noisy layers are options of the network, priorities and n-step returns of replay.

Differs from the papers: Adam; with n-step returns only the log-probability of the first action is added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.by_hand import q_loss_by_hand
from whorl.agents.families import MunchausenConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_values, highest_value
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.nets.losses import value_loss
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed, draw_passes
from whorl.ops.values import best, bootstrap, pick, soft_policy
from whorl.settings.schema import Choice


@dataclass(frozen=True)
class DQNConfig(ExplorationConfig, MunchausenConfig):
    loss: Annotated[Part, Choice("loss", ("huber", "squared"))] = Part("huber")
    """loss per element: huber (option delta, 1), squared, both halved, or the import path of a function of (q,
    target)"""


class DQN(Agent):
    """Deep Q-learning from replay."""

    Config = DQNConfig
    cfg: DQNConfig
    acts_with = ("observations", "critic", "explore")
    shares_unroll = ("critic",)

    def __init__(self, spec: Spec, cfg: DQNConfig) -> None:
        super().__init__(spec, cfg)
        self.critic, self.loss = QNetwork("dqn", spec, cfg), value_loss(Part.of(cfg.loss))
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_optimizers(critic=cfg.learning_rate)

    def prepare(self, device: torch.device | str, seeds: Callable[[str], torch.Generator]) -> "DQN":
        super().prepare(device, seeds)
        self.by_hand = q_loss_by_hand(self, DQN)
        return self

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_values(self, obs, memory, context)

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        return self.critic.outputs(features, noise)[..., 0]

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        return highest_value(self, rows)

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        return draw_passes(self.critic, self.target_critic, self.random("critic"))

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[loss(Q(s, a) - y)]; the TD errors [T, B]; the mean of Q"""
        target = self.soft_target(batch, noise) if self.cfg.munchausen else self.target(batch, noise)
        q = pick(self.critic(batch.now, noise["online"]).squeeze(-1), batch.action)  # [T, B]
        error = q - target
        loss = self.loss(q, target)
        return (loss * batch.weight).mean(), error.detach().abs(), (q.detach() * batch.share).mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """y = r + discount * Q'(s', a*) [T, B]"""
        next_q = self.target_critic(batch.next, noise["target"]).squeeze(-1)  # [T, B, choices]
        select = self.critic(batch.next, noise["select"]).squeeze(-1) if self.cfg.double else next_q
        return self.bellman_target(batch, next_q, select)

    def bellman_target(self, batch: Batch, next_q: Tensor, select: Tensor) -> Tensor:
        """y [T, B] from Q'(s', .) and from the values that select a*, both [T, B, choices]"""
        value = pick(next_q, best(select, allowed(batch.next, self.spec)))
        return bootstrap(batch.reward, batch.discount, value, self.cfg.rescale_values)

    @torch.no_grad()
    def soft_target(self, batch: Batch, noise: Tree) -> Tensor:
        """Munchausen's y [T, B]"""
        cfg = self.cfg
        q = self.target_critic(batch.both, noise["target"]).squeeze(-1)  # [2T, B, choices]
        prob, log_pi = soft_policy(q, cfg.munchausen_temperature, allowed(batch.both, self.spec))
        bonus = cfg.munchausen * pick(log_pi.chunk(2)[0], batch.action).clamp(cfg.munchausen_low, 0)
        value = (prob * (q - log_pi)).chunk(2)[1].sum(-1)
        return bootstrap(batch.reward + bonus, batch.discount, value, cfg.rescale_values)
