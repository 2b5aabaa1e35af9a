"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971).

critic:   minimise E[(Q(s, a) - y)^2],  y = r + discount * Q'(s', mu'(s'))
actor:    maximise E[Q(s, mu(s))]
targets:  theta' <- tau * theta + (1 - tau) * theta' for both

Two versions: Lillicrap's concatenates the action in the critic's second layer, explores with an Ornstein-Uhlenbeck
process and decays the critic's weights; Fujimoto's ("our DDPG" of arXiv:1802.09477) concatenates it in the first layer
and explores with Gaussian noise. Differs from Lillicrap: no batch normalisation (`normalize_obs` has running
statistics), orthogonal initialisation.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_with_noise
from whorl.explore.noise import ActionNoise, NoiseConfig
from whorl.nets.actor import bounded, deterministic_actor
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.settings.schema import LearningRate, NonNegative


@dataclass(frozen=True)
class DDPGConfig(NoiseConfig, ActorCriticConfig):
    actor_lr: LearningRate = 1e-3
    """learning rate of the actor"""
    critic_lr: LearningRate = 1e-3
    """learning rate of the critics"""
    action_joins: Literal["first", "second"] = "first"
    """layer of the critic that reads the action: first (Fujimoto et al. 2018) or second (Lillicrap et al. 2015)"""
    critic_weight_decay: NonNegative = 0.0
    """weight decay of the critic, added to weight_decay (Lillicrap et al. 2015: 0.01)"""


class DDPG(Agent):
    """Deep deterministic policy gradient: an actor that maximises its critic's Q value."""

    Config = DDPGConfig
    cfg: DDPGConfig
    acts_with = ("observations", "actor", "noise")

    def __init__(self, spec: Spec, cfg: DDPGConfig) -> None:
        super().__init__(spec, cfg)
        size = bounded(spec, "ddpg")
        self.observations, self.noise = Preprocessor(spec, cfg), ActionNoise(spec, size, cfg)
        self.critic = QEnsemble("critic", spec, cfg, 1, actions=size, join=int(cfg.action_joins == "second"))
        self.actor = deterministic_actor(spec, cfg, size, self.critic.backbone)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.target_actor = self.targets.add(self.actor, self.actor.target(self.target_critic.backbone))
        decay = self.optimizer_options(cfg.weight_decay + cfg.critic_weight_decay)
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, **decay)
        self.add_optimizers(actor=cfg.actor_lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return {**self.noise.initial(num_envs), **super().initial_memory(num_envs)}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_with_noise(self, obs, memory, context)

    def value(self, rows: Rows) -> Tensor:
        """Q(s, mu(s)) of rows [T, B]."""
        return self.critic(rows, self.actor(rows))[0]

    def update(self, batch: Batch) -> Updated:
        move_targets = self.targets.due(self.updates)
        return replay_step(self, batch, train_actor=True, move_targets=move_targets)

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        loss = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        return {"loss/actor": loss.detach()}

    def draw(self, batch: Batch) -> Tree:
        """Noise of noisy layers and dropout."""
        rows = batch.mask.numel()
        return {
            "actor": self.actor.draw(self.random("actor")),
            "target_actor": self.target_actor.draw(self.random("critic")),
            "critic": self.critic.draw(rows, self.random("critic")),
            "target_critic": self.target_critic.draw(rows, self.random("critic")),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[(Q(s, a) - r - discount * Q'(s', mu'(s')))^2]; the TD errors [T, B]; the mean of Q"""
        with torch.no_grad():
            action = self.target_actor(batch.next, noise["target_actor"])
            value = self.target_critic(batch.next, action, noise["target_critic"])[0]  # [T, B]
            target = batch.reward + batch.discount * value
        q = self.critic(batch.now, batch.action, noise["critic"])[0]
        error = q - target
        loss = (error.square() * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square() * batch.weight).mean()
        return loss, error.detach().abs(), (q.detach() * batch.share).mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> Tensor:
        """-E[Q(s, mu(s))]"""
        action = self.actor(batch.now, noise["actor"])
        return -(self.critic(batch.now, action)[0] * batch.share).mean()
