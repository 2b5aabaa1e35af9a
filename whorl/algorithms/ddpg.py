"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971).

critic:   minimise E[(Q(s, a) - y)^2],  y = r + discount * Q'(s', mu'(s'))
actor:    maximise E[Q(s, mu(s))]
targets:  theta' <- tau * theta + (1 - tau) * theta' for both

Two versions: Lillicrap's lets the action join the critic in its second layer and explores by an Ornstein-Uhlenbeck
process; Fujimoto's ("our DDPG" of arXiv:1802.09477) shows the critic both at once and explores by Gaussian noise.
Differs from Lillicrap: no batch normalisation (running statistics by `normalize_obs`), orthogonal initialisation.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import ActorCriticConfig
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.noise import ActionNoise, NoiseConfig, random_action
from whorl.nets.actor import Actor, DeterministicHead, bounded
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.ops.targets import polyak_


@dataclass(frozen=True)
class DDPGConfig(NoiseConfig, ActorCriticConfig):
    action_joins: Literal["first", "second"] = "first"
    """layer of the critic that reads the action: first (Fujimoto et al. 2018) or second (Lillicrap et al. 2015)"""


class DDPG(Agent):
    """Deep deterministic policy gradient: an actor that climbs its critic."""

    Config = DDPGConfig
    cfg: DDPGConfig
    acts_with = ("observations", "actor", "noise")

    def __init__(self, spec: Spec, cfg: DDPGConfig) -> None:
        super().__init__(spec, cfg)
        size = bounded(spec, "ddpg")
        self.observations = Preprocessor(spec, cfg)
        self.noise = ActionNoise(spec, size, cfg)
        self.critic = QEnsemble("critic", spec, cfg, 1, actions=size, join=int(cfg.action_joins == "second"))
        self.actor = Actor(
            "actor", spec, cfg, lambda width: DeterministicHead(width, size), self.critic.backbone
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor = self.actor.target(self.target_critic.backbone)
        given: dict[str, Any] = {"eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, **given)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, **given)

    def initial_memory(self, num_envs: int) -> Tree:
        nets = (self.actor, self.critic)
        kept = {k: v for net in nets for k, v in net.initial_memory(num_envs, self.device).items()}
        return {**self.noise.initial(num_envs), **kept}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random and not memory:
            return Acted(random_action(self.spec, obs, context.generator), memory)
        seen, reset = self.observations(obs), context.reset
        noise = {} if context.greedy else self.actor.draw(context.generator)
        action, after = self.actor.step(seen, memory, reset, noise)
        after = {**memory, **after, **self.critic.advance(seen, memory, reset)}
        if context.random:
            return Acted(random_action(self.spec, obs, context.generator), after)
        if not context.greedy:
            action, disturbed = self.noise(action, memory, context, self.progress)
            after = {**after, **disturbed}
        return Acted(action, after)

    def value(self, rows: Rows) -> Tensor:
        """Q(s, mu(s)) of rows [T, B]."""
        return self.critic(rows, self.actor(rows))[0]

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, move_targets=(self.updates + 1) % self.cfg.target_update_interval == 0)

    @captured
    def step(self, batch: Batch, *, move_targets: bool) -> Updated:
        cfg = self.cfg
        self.anneal()
        batch = self.observations.learn(batch, self.random("critic"))
        noise = self.draw(batch)
        critic_loss, error, q = self.critic_loss(batch, noise)
        self.descend("critic", critic_loss, cfg.max_grad_norm)
        actor_loss = self.actor_loss(batch, noise)
        self.descend("actor", actor_loss, cfg.max_grad_norm)
        if move_targets:
            polyak_(self.target_critic, self.critic, cfg.tau)
            polyak_(self.target_actor, self.actor, cfg.tau)
        if not cfg.target_memory:
            polyak_(self.target_critic.backbone.memories, self.critic.backbone.memories, 1.0)
            polyak_(self.target_actor.backbone.memories, self.actor.backbone.memories, 1.0)
        metrics = {"loss/critic": critic_loss.detach(), "loss/actor": actor_loss.detach(), "q/mean": q}
        return Updated(metrics, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """The randomness of one update: noisy layers and dropout, where there are any."""
        rows = batch.mask.numel()
        return {
            "actor": self.actor.draw(self.random("actor")),
            "target_actor": self.target_actor.draw(self.random("critic")),
            "critic": self.critic.draw(rows, self.random("critic")),
            "target_critic": self.target_critic.draw(rows, self.random("critic")),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[(Q(s, a) - r - discount * Q'(s', mu'(s')))^2]; also the errors [T, B] and the mean of Q"""
        with torch.no_grad():
            action = self.target_actor(batch.next, noise["target_actor"])
            value = self.target_critic(batch.next, action, noise["target_critic"])[0]  # [T, B]
            target = batch.reward + batch.discount * value
        q = self.critic(batch.now, batch.action, noise["critic"])[0]
        error = q - target
        loss = (error.square() * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square() * batch.weight).mean()
        return loss, error.detach().abs(), q.detach().mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> Tensor:
        """-E[Q(s, mu(s))]"""
        action = self.actor(batch.now, noise["actor"])
        return -(self.critic(batch.now, action)[0] * batch.share).mean()
