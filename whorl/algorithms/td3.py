"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv:1802.09477).

critics:  minimise sum_i E[(Q_i(s, a) - y)^2],  y = r + discount * min_i Q'_i(s', a')                      (eq. 14)
          a' = clip(mu'(s') + clip(eps, -c, c), -1, 1),  eps ~ N(0, sigma)                                 (eq. 15)
actor:    maximise E[Q_1(s, mu(s))], every `policy_delay`-th update; the targets move then, and only then

Differs from the paper: the twin critics are one batched ensemble.
"""

import copy
from dataclasses import dataclass
from typing import Any

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
from whorl.settings.schema import Limit, NonNegative, PositiveCount


@dataclass(frozen=True)
class TD3Config(NoiseConfig, ActorCriticConfig):
    policy_delay: PositiveCount = 2
    """critic updates per actor update"""
    target_update_interval: PositiveCount = 2
    """updates between updates of the target networks"""
    target_noise: NonNegative = 0.2
    """standard deviation of the noise on target actions"""
    target_noise_clip: Limit = 0.5
    """bound of the noise on target actions"""


class TD3(Agent):
    """Twin delayed DDPG: two critics, a delayed actor, smoothed targets."""

    Config = TD3Config
    cfg: TD3Config
    acts_with = ("observations", "actor", "noise")

    def __init__(self, spec: Spec, cfg: TD3Config) -> None:
        super().__init__(spec, cfg)
        size = bounded(spec, "td3")
        self.observations = Preprocessor(spec, cfg)
        self.noise = ActionNoise(spec, size, cfg)
        self.critic = QEnsemble("critic", spec, cfg, 2, actions=size)
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
        """min_i Q_i(s, mu(s)) of rows [T, B]."""
        return self.critic(rows, self.actor(rows)).amin(0)

    def update(self, batch: Batch) -> Updated:
        number = self.updates + 1
        return self.step(
            batch,
            train_actor=number % self.cfg.policy_delay == 0,
            move_targets=number % self.cfg.target_update_interval == 0,
        )

    @captured
    def step(self, batch: Batch, *, train_actor: bool, move_targets: bool) -> Updated:
        cfg = self.cfg
        self.anneal()
        batch = self.observations.learn(batch, self.random("critic"))
        noise = self.draw(batch)
        loss, error, q = self.critic_loss(batch, noise)
        self.descend("critic", loss, cfg.max_grad_norm)
        metrics = {"loss/critic": loss.detach(), "q/mean": q}
        if train_actor:
            loss = self.actor_loss(batch, noise)
            self.descend("actor", loss, cfg.max_grad_norm)
            metrics["loss/actor"] = loss.detach()
        if move_targets:
            polyak_(self.target_critic, self.critic, cfg.tau)
            polyak_(self.target_actor, self.actor, cfg.tau)
        if not cfg.target_memory:
            polyak_(self.target_critic.backbone.memories, self.critic.backbone.memories, 1.0)
            polyak_(self.target_actor.backbone.memories, self.actor.backbone.memories, 1.0)
        return Updated(metrics, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """The randomness of one update: target smoothing; noisy layers and dropout, where there are any."""
        rows, critic = batch.mask.numel(), self.random("critic")
        return {
            "smoothing": torch.randn(batch.action.shape, generator=critic, device=self.device),
            "actor": self.actor.draw(self.random("actor")),
            "target_actor": self.target_actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(rows, critic),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """sum_i E[(Q_i(s, a) - r - discount * min_j Q'_j(s', a'))^2]; also the errors [T, B] and the mean of Q"""
        cfg = self.cfg
        with torch.no_grad():
            smoothing = (noise["smoothing"] * cfg.target_noise).clamp(
                -cfg.target_noise_clip, cfg.target_noise_clip
            )
            action = (self.target_actor(batch.next, noise["target_actor"]) + smoothing).clamp(-1, 1)
            value = self.target_critic(batch.next, action, noise["target_critic"]).amin(0)  # [T, B]
            target = batch.reward + batch.discount * value
        q = self.critic(batch.now, batch.action, noise["critic"])  # [2, T, B]
        error = q - target
        loss = (error.square().sum(0) * batch.weight).mean()
        if cfg.q_regularization:
            loss = loss + cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        return loss, error.detach().abs().mean(0), q.detach().mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> Tensor:
        """-E[Q_1(s, mu(s))]"""
        action = self.actor(batch.now, noise["actor"])
        return -(self.critic.first(batch.now, action) * batch.share).mean()
