"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv:1802.09477).

critics:  minimise sum_i E[(Q_i(s, a) - y)^2],  y = r + discount * min_i Q'_i(s', a')                      (eq. 14)
          a' = clip(mu'(s') + clip(eps, -c, c), -1, 1),  eps ~ N(0, sigma)                                 (eq. 15)
actor:    maximise E[Q_1(s, mu(s))], every `policy_delay`-th update
targets:  theta' <- tau * theta + (1 - tau) * theta' for all, every `target_update_interval`-th update; in the paper
          they move together with the actor, so set both intervals alike
bc_alpha: the actor maximises E[lambda Q_1(s, mu(s)) - |mu(s) - a|^2 / dimensions], with the actions a of a dataset and
          lambda = bc_alpha / E|Q_1(s, mu(s))|                 (TD3+BC, Fujimoto and Gu 2021, arXiv:2106.06860, eq. 4-5)

With `n_atoms` the critics predict the distribution of the return (see `whorl.nets.atoms`): y is the distribution of the
critic with the lowest mean, moved by r and the discount, and the loss is the cross entropy. With large batches from
thousands of environments, noise of another size in each of them, and no target actor, this is FastTD3 (Seo et al. 2025,
arXiv:2505.22642).

Differs from the paper: the twin critics are one batched ensemble.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core import collectives
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_with_noise
from whorl.explore.noise import ActionNoise, NoiseConfig
from whorl.nets.actor import bounded, deterministic_actor
from whorl.nets.atoms import AtomsConfig, ReturnAtoms, advice_on_clipping
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.settings.schema import LearningRate, Limit, NonNegative, PositiveCount


@dataclass(frozen=True)
class TD3Config(NoiseConfig, AtomsConfig, ActorCriticConfig):
    actor_lr: LearningRate = 1e-3
    """learning rate of the actor"""
    critic_lr: LearningRate = 1e-3
    """learning rate of the critics"""
    policy_delay: PositiveCount = 2
    """critic updates per actor update"""
    target_update_interval: PositiveCount = 2
    """updates between updates of the target networks"""
    target_noise: NonNegative = 0.2
    """standard deviation of the noise on target actions"""
    target_noise_clip: Limit = 0.5
    """bound of the noise on target actions"""
    target_actor: bool = True
    """target actions come from a target network of the actor; false: from the actor itself (FastTD3)"""
    actor_q: Literal["first", "min", "mean"] = "first"
    """Q estimate that the actor maximises: that of the first critic, or minimum or mean of both (FastTD3: min)"""
    bc_alpha: NonNegative = 0.0
    """TD3+BC's alpha (2.5): the actor maximises alpha Q / mean |Q| minus the squared distance to the data's actions;
    0: Q alone"""


class TD3(Agent):
    """Twin delayed DDPG: two critics, delayed actor updates, smoothed target actions."""

    Config = TD3Config
    cfg: TD3Config
    acts_with = ("observations", "actor", "noise")

    def __init__(self, spec: Spec, cfg: TD3Config) -> None:
        super().__init__(spec, cfg)
        size = bounded(spec, "td3", others="bc or iql" if cfg.bc_alpha else "")
        self.observations, self.noise = Preprocessor(spec, cfg), ActionNoise(spec, size, cfg)
        self.atoms = ReturnAtoms(cfg)
        self.critic = QEnsemble("critic", spec, cfg, 2, self.atoms.outputs, actions=size)
        self.actor = deterministic_actor(spec, cfg, size, self.critic.backbone)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        if cfg.target_actor:
            self.target_actor = self.targets.add(self.actor, self.actor.target(self.target_critic.backbone))
        self.add_optimizers(critic=cfg.critic_lr, actor=cfg.actor_lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return {**self.noise.initial(num_envs), **super().initial_memory(num_envs)}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_with_noise(self, obs, memory, context)

    def value(self, rows: Rows) -> Tensor:
        """min_i Q_i(s, mu(s)) of rows [T, B]."""
        return self.q_of(rows, self.actor(rows)).amin(0)

    def q_of(self, rows: Rows, action: Tensor) -> Tensor:
        """Q_i(s, a) [critics, T, B] of actions [T, B, size]."""
        return self.atoms.mean(self.critic(rows, action))

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(self, batch, train_actor=train_actor, move_targets=self.targets.due(self.updates))

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        loss = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        return {"loss/actor": loss.detach()}

    def draw(self, batch: Batch) -> Tree:
        """Noise of target actions, noisy layers and dropout."""
        rows, critic = batch.mask.numel(), self.random("critic")
        return {
            "smoothing": torch.randn(batch.action.shape, generator=critic, device=self.device),
            "actor": self.actor.draw(self.random("actor")),
            "target_actor": self.actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(rows, critic),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Any, ...]:
        """sum_i E[(Q_i(s, a) - r - discount * min_j Q'_j(s', a'))^2]; the TD errors [T, B]; the mean of Q; with atoms
        the cross entropies, the divergences, the mean, and how much of the targets was clipped"""
        cfg, bound = self.cfg, self.cfg.target_noise_clip
        with torch.no_grad():
            smoothing = (noise["smoothing"] * cfg.target_noise).clamp(-bound, bound)
            policy = self.target_actor if cfg.target_actor else self.actor
            action = (policy(batch.next, noise["target_actor"]) + smoothing).clamp(-1, 1)
            after = self.target_critic(
                batch.next, action, noise["target_critic"]
            )  # [2, T, B], [2, T, B, atoms]
        answers = self.critic(batch.now, batch.action, noise["critic"])
        metrics = []
        if self.atoms.on:
            target, outside = self.atoms.target(self.atoms.lowest(after), batch.reward, batch.discount)
            losses, error = self.atoms.losses(answers, target)
            metrics.append(self.atoms.metrics(outside, batch))
        else:
            error = answers - (batch.reward + batch.discount * after.amin(0))
            losses = error.square()
        q = self.atoms.mean(answers)
        loss = (losses.sum(0) * batch.weight).mean()
        if cfg.q_regularization:
            loss = loss + cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        return loss, error.detach().abs().mean(0), (q.detach() * batch.share).mean(), *metrics

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> Tensor:
        """-E[Q(s, mu(s))] of the first critic, or minimum or mean of both; with `bc_alpha` E[|mu(s) - a|^2 / dimensions
        - lambda Q]"""
        action = self.actor(batch.now, noise["actor"])
        if self.cfg.actor_q == "first":
            q = self.atoms.mean(self.critic.first(batch.now, action))
        else:
            both = self.q_of(batch.now, action)
            q = both.amin(0) if self.cfg.actor_q == "min" else both.mean(0)
        loss = -(q * batch.share).mean()
        if not self.cfg.bc_alpha:
            return loss
        weight = self.cfg.bc_alpha / collectives.mean((q.detach().abs() * batch.share).mean())
        distance = (action - batch.action).square().mean(-1)
        return weight * loss + (distance * batch.share).mean()

    def advice(self, metrics: Mapping[str, float]) -> str | None:
        return advice_on_clipping(self.cfg, metrics)
