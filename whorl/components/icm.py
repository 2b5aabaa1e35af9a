"""Intrinsic curiosity module (Pathak et al. 2017, arXiv:1705.05363): a reward for what a forward model cannot predict.

phi embeds observations; an inverse model predicts the action from phi(s_t), phi(s_{t+1}), a forward model predicts
phi(s_{t+1}) from phi(s_t) and the action:
reward_t = 1/2 |forward(phi(s_t), a_t) - phi(s_{t+1})|^2 / std of the discounted sum of these errors
loss     = (1 - beta) * inverse loss + beta * 1/2 |forward(phi(s_t), a_t) - phi(s_{t+1})|^2
With `error: inverse` the reward is the inverse model's loss instead: how badly the action can be told.

Differs from the paper: phi learns from the inverse model alone, so that it cannot make the forward model's task easy
by becoming constant (beta then weighs losses of different networks, which has next to no effect with Adam); the reward
is divided by a running deviation, as in RND.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, LearnedBonusConfig, in_parts
from whorl.core import tree
from whorl.core.registry import register
from whorl.core.spec import Spec, flat_action_size, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.layers import MLP
from whorl.nets.novelty import InverseDynamics
from whorl.ops.losses import masked_mean
from whorl.settings.schema import Fraction, LearningRate, Size


@dataclass(frozen=True)
class ICMConfig(LearnedBonusConfig):
    error: Literal["forward", "inverse"] = "forward"
    """whose error is the reward: the forward model's (what follows was not predicted) or the inverse model's (the
    action can't be told from what follows)"""
    beta: Fraction = 0.2
    """weight of the forward model's loss; the inverse model's has 1 - beta (they train different networks, so that with
    Adam, which divides gradients by their size, only 0 and 1 make a difference)"""
    lr: LearningRate = 5e-4
    """learning rate of all its networks"""
    features: Size = 64
    """size of the embedding"""


@register("component", "icm")
class ICM(Bonus):
    """Intrinsic curiosity: reward by the error of a forward model in a learned embedding."""

    Config = ICMConfig
    cfg: ICMConfig
    needs_successor = True

    def __init__(self, name: str, spec: Spec, cfg: ICMConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.inverse = InverseDynamics(
            *(spec.observation, spec.action, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range)
        )
        width = cfg.features + flat_action_size(spec.action)
        hidden = cfg.hidden_sizes[-1:] or (cfg.features,)
        self.forward_model = nn.Sequential(MLP(width, hidden, "relu"), nn.Linear(hidden[-1], cfg.features))
        agent.add_optimizer(name, [self.inverse, self.forward_model], cfg.optimizer, cfg.lr)

    def observe(self, rollout: Batch) -> None:
        self.inverse.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)

    def bonus(self, rollout: Batch) -> Tensor:
        def error(obs: Tree, action: Tree, following: Tree) -> Tensor:
            before, after = self.inverse(obs), self.inverse(following)
            if self.cfg.error == "inverse":
                return self.inverse.loss(before, after, action)
            return self.forward_error(before, action, after)

        now, after = (tree.index(rollout.obs, part) for part in (slice(0, -1), slice(1, None)))
        return in_parts(error, now, rollout.action, after)

    def forward_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """1/2 |forward(before, action) - after|^2 of embedded observations: [...]."""
        given = torch.cat((before, flatten_action(self.spec.action, action)), -1)
        return 0.5 * (self.forward_model(given) - after).square().sum(-1)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        losses = []
        for obs, action, following, mask in self.minibatches(agent, batch):
            before, after = self.inverse(obs), self.inverse(following)
            inverse = masked_mean(self.inverse.loss(before, after, action), mask)
            forward = masked_mean(self.forward_error(before.detach(), action, after.detach()), mask)
            agent.minimize(self.name, (1 - self.cfg.beta) * inverse + self.cfg.beta * forward)
            losses.append(torch.stack([inverse, forward]).detach())
        inverse, forward = torch.stack(losses).mean(0).unbind()
        return {f"loss/{self.name}_inverse": inverse, f"loss/{self.name}_forward": forward, **self.metrics()}
