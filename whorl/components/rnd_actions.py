"""Action selection by random network distillation (Advanced-SAC): of several sampled actions the most novel is taken.

a = argmax_i mean_k (predictor(s, a_i) - target(s, a_i))_k^2,  a_1 .. a_n ~ pi(.|s)
The target network is random and fixed; the predictor learns to imitate it on the observations and actions of replay.
Rewards stay as they are, evaluation and random warm-up too. The action that is taken is no plain sample of the policy:
agents that correct by probability ratios see only the policy's.

Differs from Advanced-SAC: the networks read observations, normalised as in RND, instead of the agent's state; any
action space of a policy that samples works.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.auxiliary import rows_of
from whorl.agents.component import Component
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Array, Spec, flat_action_size, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.novelty import Distillation
from whorl.nets.soft_actions import SoftActions
from whorl.ops.losses import masked_mean
from whorl.settings.schema import (
    HiddenSizes,
    LearningRate,
    Optimizer,
    PositiveCount,
    PositiveLimit,
    Range,
    Size,
)


@dataclass(frozen=True)
class RNDActionsConfig:
    candidates: Annotated[int, Range(2, 1000)] = 10
    """actions sampled in each step, of which the most novel is taken"""
    lr: LearningRate = 1e-4
    """learning rate of the predictor"""
    batch_size: PositiveCount = 256
    """rows per gradient step, drawn from the batch"""
    features: Size = 64
    """outputs of both networks"""
    hidden_sizes: HiddenSizes = (256,)
    """hidden layers of the target network; the predictor has one more"""
    obs_clip_range: PositiveLimit = 5.0
    """normalised observations are clipped to this range"""
    encoder: Part = Part("auto")
    """encoder of both networks: auto, images, flat, or an import path"""
    optimizer: Optimizer = Part("Adam")
    """optimizer of the predictor"""


@register("component", "rnd_actions")
class RNDActions(Component):
    """Takes the most novel of several sampled actions, by random network distillation of observation and action."""

    Config = RNDActionsConfig
    cfg: RNDActionsConfig

    def __init__(self, name: str, spec: Spec, cfg: RNDActionsConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        actions: Any = getattr(agent, "actions", None)
        if isinstance(actions, SoftActions) and not agent.off_policy:
            raise ConfigError(
                f"{name} learns from replay, but use_replay_buffer is false; leave one of them out"
            )
        if not agent.off_policy or not isinstance(actions, SoftActions):
            raise ConfigError(
                f"{name} chooses among samples of a stochastic policy that learns from replay, which "
                f"{type(agent).__name__} does not have; use sac, tqc, redq or droq, or components: [rnd] for a reward"
            )
        if agent.privileged or actions.greedy:
            other = "privileged_obs" if agent.privileged else "discrete_dqn_like"
            raise ConfigError(f"{name} does not work with {other}; leave one of them out")
        observed = {"observation": spec.observation, "action": Array((flat_action_size(spec.action),))}
        self.networks = Distillation(
            observed, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range
        )
        agent.add_optimizer(name, self.networks.predictor, cfg.optimizer, cfg.lr)

    @property
    def candidates(self) -> int:
        return self.cfg.candidates

    def score(self, obs: Tree, action: Tree) -> Tensor:
        flat = flatten_action(self.spec.action, action)  # [n, B, columns]
        seen = tree.map(lambda leaf: leaf.unsqueeze(0).expand(len(flat), *leaf.shape), obs)
        return self.error(seen, flat)

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        """It keeps nothing, but has a part in acting."""
        return memory, {}

    def error(self, obs: Tree, action: Tensor) -> Tensor:
        """Mean squared prediction error of observations and flat actions [...]: [...]."""
        return self.networks({"observation": obs, "action": action}).square().mean(-1)

    def observe(self, rollout: Batch) -> None:
        taken = self._actions(rollout.action, rollout.mask)
        seen = tree.index(rollout.obs, slice(0, len(rollout.mask)))
        self.networks.merge_({"observation": seen, "action": taken}, rollout.mask)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        order = torch.rand(
            batch.mask.numel(), generator=agent.random(self.name), device=batch.mask.device
        ).argsort()[: self.cfg.batch_size]
        mask = batch.mask.flatten().index_select(0, order)
        taken = self._actions(rows_of(batch.action, order), mask)
        loss = masked_mean(self.error(rows_of(batch.obs, order), taken), mask)
        agent.minimize(self.name, loss)
        return {f"loss/{self.name}": loss.detach()}

    def _actions(self, action: Tree, mask: Tensor) -> Tensor:
        """Flat actions; 0 where masked, since whatever masked rows hold must not reach a gradient."""
        kept = tree.where(mask > 0, action, tree.map(torch.zeros_like, action))
        return flatten_action(self.spec.action, kept)
