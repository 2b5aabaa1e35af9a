"""Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783): one gradient step per rollout.

actor:   maximise E[log pi(a|s) * A] + ent_coef * H
critic:  minimise E[(V(s) - (A + V(s)))^2] / 2, the bracket held fixed
A = generalised advantage estimate (Schulman et al. 2015, arXiv:1506.02438). gae_lambda = 1 is the paper's n-step return
up to the end of the rollout; gae_lambda = 0 is the one-step TD error of the classic actor-critic. With reward streams V
has an output per stream, A is the weighted sum of their advantages, and the critic's loss is their mean.

With `shared_trunk` (the paper's networks) one step minimises actor's loss + value_coef * critic's loss.

Differs from the paper: environments step synchronously (A2C); by default actor and critic share no parameters, so their
losses need no relative weight and both steps run at the same time; RMSprop adds its epsilon outside the root, as torch
does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.by_hand import losses_by_hand
from whorl.agents.families import SharedTrunkConfig
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.losses import value_loss
from whorl.nets.normalize import normalizers
from whorl.nets.policy import policy_and_value
from whorl.ops.losses import (
    blank,
    explained_variance,
    masked_mean,
    masked_normalize,
    per_stream,
    row_weight,
)
from whorl.ops.returns import gae
from whorl.settings.schema import Fraction, NonNegative, Optimizer


@dataclass(frozen=True)
class A2CConfig(SharedTrunkConfig):
    unused: ClassVar[tuple[str, ...]] = ("chunk_length",)
    gamma: Fraction = 0.99
    """discount factor"""
    gae_lambda: Fraction = 1.0
    """lambda of generalised advantage estimation; 1: n-step return of the rollout, 0: one-step TD error"""
    ent_coef: NonNegative = 0.01
    """entropy coefficient"""
    normalize_advantage: bool = False
    """normalise advantages over the rollout"""
    critic_loss: Part = Part("squared")
    """loss of the critic per element: squared, huber, or the import path of a function of (value, target)"""
    optimizer: Optimizer = Part("RMSprop", {"alpha": 0.99})
    """optimizer of actor and critic: a class of torch.optim or an import path, with options"""


class A2C(Agent):
    """Advantage actor-critic: one policy gradient step per rollout."""

    Config = A2CConfig
    acts_with = ("observations", "actor")
    cfg: A2CConfig
    separate_streams = True
    lr_actor: Tensor
    stride = 1  # the whole rollout is unrolled at once

    def __init__(self, spec: Spec, cfg: A2CConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.value_loss = value_loss(cfg.critic_loss)
        self.actor, self.critic = policy_and_value(spec, cfg, cfg.shared_trunk)
        if cfg.shared_trunk:
            self.add_shared_optimizer("actor", "critic", lr=cfg.actor_lr)
        else:
            self.add_optimizers(actor=cfg.actor_lr, critic=cfg.critic_lr)

    def prepare(self, device: torch.device | str, seeds: Callable[[str], torch.Generator]) -> "A2C":
        super().prepare(device, seeds)
        self.by_hand = losses_by_hand(self, A2C, critic_in=("evaluate", "fit_value"))
        return self

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=False)

    @captured
    def update(self, rollout: Batch) -> Updated:
        batch = self.begin_update(rollout)
        features, value = self.evaluate(batch)  # [T+1, B, size], [T+1, B]
        advantage, target = self.estimate(batch, value.detach())
        if self.cfg.shared_trunk:
            metrics = self.improve_both(batch, features, value, advantage, target)
        else:
            # The critic first: its backward pass runs on the stream of `evaluate`, whose memory it frees.
            critic, actor = self.run_parallel(
                lambda: self.fit_value(batch, value, target), lambda: self.improve_policy(batch, advantage)
            )
            metrics = {**actor, **critic}
        self.end_update(rollout)
        fit = explained_variance(value[:-1].detach(), target, per_stream(batch.mask, target))
        return Updated({**metrics, "value/explained_variance": fit})

    def evaluate(self, batch: Batch) -> tuple[Any, Tensor]:
        """Features of the critic's network, which a shared trunk's actor reads too, and V, of all rows."""
        if "critic" in self.by_hand:
            return None, self.by_hand["critic"].values(batch.all)
        features = self.critic.backbone(batch.all)
        return features, self.critic.of(features)

    @pure
    def estimate(self, batch: Batch, value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage [T, B] and value target [T, B] (or [T, B, streams]) of each row, 0 on masked rows."""
        advantage = gae(batch.reward, batch.discount, value, batch.keep, self.cfg.gae_lambda)
        advantage = blank(advantage, per_stream(batch.mask, advantage))
        target = advantage + value[:-1]
        advantage = self.sum_streams(advantage)
        if self.cfg.normalize_advantage:
            advantage = masked_normalize(advantage, batch.mask)
        return advantage, target

    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's step."""
        total, loss, entropy = self.actor_pass(batch, advantage)
        norm = self.minimize("actor", total, self.cfg.max_grad_norm, measure=True)
        return {
            "loss/actor": loss,
            "gradient/actor": norm,
            "policy/entropy": entropy,
            "policy/learning_rate": self.lr_actor.clone(),
        }

    @pure
    def actor_pass(self, batch: Batch, advantage: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The actor's loss, once more without gradient, and the mean entropy of a rollout."""
        if "actor" in self.by_hand:
            weight = row_weight(batch.mask)
            data = {"action": batch.action, "advantage": advantage, "weight": weight}
            gradients, loss, _, entropy = self.by_hand["actor"](batch.now, data, measure=True)
            return gradients, loss, (entropy * weight).mean()
        loss, entropy = self.actor_loss(self.actor(batch.now), batch, advantage)
        return loss, loss.detach(), entropy.detach()

    def actor_loss(self, policy: Any, batch: Batch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """-E[log pi(a|s) * A] - ent_coef * H; the mean entropy H"""
        entropy = masked_mean(policy.entropy().expand_as(batch.mask), batch.mask)
        loss = -masked_mean(policy.log_prob(batch.action) * advantage, batch.mask)
        return loss - self.cfg.ent_coef * entropy, entropy

    def fit_value(self, batch: Batch, value: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The critic's step."""
        total, loss = self.critic_pass(batch, value, target)
        norm = self.minimize("critic", total, self.cfg.max_grad_norm, measure=True)
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_pass(self, batch: Batch, value: Tensor, target: Tensor) -> tuple[Any, Tensor]:
        """The critic's loss on a rollout, and once more without gradient."""
        if "critic" in self.by_hand:
            return self.by_hand["critic"].loss(value, target, row_weight(batch.mask))
        loss = self.critic_loss(batch, value, target)
        return loss, loss.detach()

    @pure
    def critic_loss(self, batch: Batch, value: Tensor, target: Tensor) -> Tensor:
        """E[(V(s) - target)^2] / 2 or another loss"""
        error = self.value_loss(value[:-1], target)
        return masked_mean(error, per_stream(batch.mask, error))

    def improve_both(
        self, batch: Batch, features: Tensor, value: Tensor, advantage: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """The step of a shared trunk, which computed `features`."""
        loss, entropy = self.actor_loss(self.actor.of(features[:-1], batch.now), batch, advantage)
        critic_loss = self.critic_loss(batch, value, target)
        total = loss + self.cfg.value_coef * critic_loss
        norm = self.minimize("actor", total, self.cfg.max_grad_norm, measure=True)
        return {
            "loss/actor": loss.detach(),
            "loss/critic": critic_loss.detach(),
            "gradient/actor": norm,
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
        }
