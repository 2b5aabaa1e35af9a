"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

actor:   maximise E[min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A)] + ent_coef * H, ratio = pi(a|s) / pi_old(a|s)
critic:  minimise E[(V(s) - target)^2] / 2
A = generalised advantage estimate (Schulman et al. 2015, arXiv:1506.02438); target = A + V, or the bootstrapped
discounted return (lambda = 1). With reward streams V has an output per stream, A is the weighted sum of their
advantages, and the critic's loss is their mean.

With `shared_trunk` (the paper's networks for images) each step minimises actor's loss + value_coef * critic's loss.

With `overlap_rollouts` the rows are by the policy before pi_old. Their advantages are multiplied by the ratio of the
two, at most 1 (the decoupled objective, Hilton et al. 2021, arXiv:2110.00641). With memory, whose states are older,
and with advantages normalised over minibatches, pi_old is the policy that acted.

Differs from the paper: by default actor and critic share no parameters, so their passes over the rollout run at the
same time (D2AC, CO-GYM); log ratios are clamped at 30; values are computed when the rollout is learned from, not while
acting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.by_hand import losses_by_hand
from whorl.agents.families import SharedTrunkConfig
from whorl.core import collectives
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import check_batch_size, minibatches
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.losses import value_loss
from whorl.nets.normalize import normalizers
from whorl.nets.policy import policy_and_value
from whorl.ops.losses import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    masked_normalize,
    per_stream,
    row_weight,
)
from whorl.ops.returns import discounted_return, gae
from whorl.settings.schema import (
    AdaptiveSchedule,
    Fraction,
    Limit,
    NonNegative,
    PositiveLimit,
    Range,
    Renamed,
)


@dataclass(frozen=True)
class PPOConfig(SharedTrunkConfig):
    gamma: Fraction = 0.99
    """discount factor"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    n_epochs: Annotated[int, Range(1, 10**6)] = 10
    """passes over each rollout"""
    batch_size: Annotated[int, Range(1, 10**7)] = 128
    """steps per minibatch; must divide num_envs * num_steps"""
    clip_range: PositiveLimit = 0.2
    """clipping of the probability ratio"""
    ent_coef: NonNegative = 0.0
    """entropy coefficient"""
    normalize_advantage: Annotated[
        Literal["rollout", "minibatch", "none"], Renamed({True: "minibatch", False: "none"})
    ] = "rollout"
    """normalise advantages over the rollout, over each minibatch, or not at all"""
    value_target: Literal["gae", "return"] = "gae"
    """target of the critic: advantage + value, or the bootstrapped return of the rollout (as in CO-GYM)"""
    clip_value: bool = False
    """clip the critic's prediction around its value before the update"""
    clip_range_vf: PositiveLimit = 0.2
    """clipping of the critic's prediction, with clip_value"""
    critic_loss: Part = Part("squared")
    """loss of the critic per element: squared, huber, or the import path of a function of (value, target)"""
    lr_schedule: AdaptiveSchedule = Part("constant")
    """learning rates over the run: constant, linear (to zero), cosine, warmup, a registered function of progress, or kl
    (the actor's rate adapts to the KL divergence of each epoch)"""
    target_kl: PositiveLimit = 0.01
    """with lr_schedule kl: the actor's rate is divided by 1.2 above twice this KL divergence, and multiplied by 1.2
    below half of it"""
    final_kl: Fraction = 1.0
    """with lr_schedule kl: factor of target_kl at the end of the run, reached linearly"""
    kl_cut: Limit = 0.0
    """stop the actor's updates (with shared_trunk all updates) for the rest of the rollout once the KL divergence
    exceeds this; 0: never"""
    overlap_rollouts: bool = False
    """where workers act: collect the next rollout while learning from this one, with the policy before this update"""


class PPO(Agent):
    """Proximal policy optimisation: several passes over each rollout with a clipped objective."""

    Config = PPOConfig
    acts_with = ("observations", "actor")
    cfg: PPOConfig
    separate_streams = True
    lr_actor: Tensor

    def __init__(self, spec: Spec, cfg: PPOConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.actor, self.critic = policy_and_value(spec, cfg, cfg.shared_trunk)
        self.value_loss = value_loss(cfg.critic_loss)
        self.adapts_to_kl = Part.of(cfg.lr_schedule).name == "kl"
        if cfg.shared_trunk:
            self.add_shared_optimizer("actor", "critic", lr=cfg.actor_lr)
        else:
            self.add_optimizers(actor=cfg.actor_lr, critic=cfg.critic_lr)

    def prepare(self, device: torch.device | str, seeds: Callable[[str], torch.Generator]) -> "PPO":
        super().prepare(device, seeds)
        self.by_hand = losses_by_hand(self, PPO, self.cfg.clip_range, self.cfg.clip_value)
        return self

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, self.stride)

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=True)

    @captured
    def update(self, rollout: Batch) -> Updated:
        batch = self.begin_update(rollout)
        advantage, target, value = self.estimate(batch)
        actor, critic = self.columns_of(batch, advantage, target, value)
        if self.cfg.shared_trunk:
            metrics = self.improve_policy(batch, {**actor, **critic})
        else:
            found = self.run_parallel(
                lambda: self.improve_policy(batch, actor), lambda: self.fit_value(batch, critic)
            )
            metrics = {**found[0], **found[1]}
        self.end_update(rollout)
        fit = explained_variance(value, target, per_stream(batch.mask, value))
        return Updated({**metrics, "value/explained_variance": fit})

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage [T, B], value target and value [T, B] (or [T, B, streams]) of each row."""
        cfg, reward = self.cfg, batch.reward
        value = self.critic(batch.all)  # [T+1, B]
        mask = per_stream(batch.mask, reward)
        advantage = blank(gae(reward, batch.discount, value, batch.keep, cfg.gae_lambda), mask)
        if cfg.value_target == "gae":
            target = advantage + value[:-1]
        else:
            target = blank(discounted_return(reward, batch.discount, batch.keep, value), mask)
        advantage = self.sum_streams(advantage)
        if cfg.normalize_advantage == "rollout":
            advantage = masked_normalize(advantage, batch.mask)
        return advantage, target, value[:-1]

    def columns_of(
        self, batch: Batch, advantage: Tensor, target: Tensor, value: Tensor
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the losses of actor and critic read of each row besides observations."""
        weight, log_prob = row_weight(batch.mask), batch.extras["log_prob"]
        if self.cfg.overlap_rollouts and not batch.memories and self.cfg.normalize_advantage != "minibatch":
            log_prob, advantage = self.decoupled(batch, advantage)
        actor = {
            "action": batch.action,
            "log_prob": blank(log_prob, batch.mask),
            "advantage": advantage,
            "weight": weight,
        }
        return actor, {"target": target, "value": value, "value_weight": per_stream(weight, target)}

    @pure
    @torch.no_grad()
    def decoupled(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """log pi_old, and min(pi_old / pi_acted, 1) * A, for rows of an older policy pi_acted than pi_old."""
        log_prob = self.actor(batch.now).log_prob(batch.action)
        acted = blank(batch.extras["log_prob"], batch.mask)
        return log_prob, advantage * (log_prob - acted).clamp(max=0).exp()

    def improve_policy(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Tensor]:
        """The actor's passes over the rollout; with a shared trunk the critic's, too."""
        cfg = self.cfg
        adaptive = self.adapts_to_kl or cfg.kl_cut > 0
        gate = torch.ones((), device=self.device)
        metrics: dict[str, Tensor] = {}
        for epoch in range(cfg.n_epochs):
            found = []
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("actor")):
                measure = adaptive or epoch == cfg.n_epochs - 1
                one_pass = self.shared_pass if cfg.shared_trunk else self.actor_pass
                total, loss, log_ratio, entropy, *critic = one_pass(rows, data, measure)
                norm = self.minimize(
                    "actor", total, cfg.max_grad_norm, gate if cfg.kl_cut > 0 else None, measure=True
                )
                if measure:
                    distance = self.distance(log_ratio, entropy, data)
                    found.append(torch.stack([loss, norm, *distance, *critic]))
            if found:
                # With several learners, all must take the same decisions.
                loss, norm, entropy, kl, clipped, *critic_losses = collectives.mean(
                    torch.stack(found).mean(0)
                ).unbind()
                metrics = {
                    "loss/actor": loss,
                    "gradient/actor": norm,
                    "policy/entropy": entropy,
                    "policy/kl": kl,
                    "policy/clip_fraction": clipped,
                    "policy/learning_rate": self.lr_actor.clone(),
                }
                if cfg.shared_trunk:
                    metrics["loss/critic"] = critic_losses[0]
                if cfg.kl_cut > 0:
                    gate = gate * (kl < cfg.kl_cut)
                if self.adapts_to_kl:
                    target = cfg.target_kl * (1 - (1 - cfg.final_kl) * self.progress)
                    faster = torch.where(kl < target / 2, 1.2, 1.0)
                    self.lr_actor.mul_(torch.where(kl > target * 2, 1 / 1.2, faster)).clamp_(1e-6, 1e-2)
        return metrics

    @pure
    def actor_pass(self, rows: Rows, data: dict[str, Tensor], measure: bool) -> tuple[Any, ...]:
        """The actor's loss, once more without gradient, the log ratio and the entropy of rows."""
        if "actor" in self.by_hand:
            return self.by_hand["actor"](rows, data, measure)
        loss, log_ratio, entropy = self.actor_loss(self.actor(rows), data, measure)
        return loss, loss.detach(), log_ratio, entropy

    @pure
    def shared_pass(self, rows: Rows, data: dict[str, Tensor], measure: bool) -> tuple[Tensor, ...]:
        """Actor's loss + value_coef * critic's loss, both losses apart, the log ratio and the entropy of rows."""
        features = self.actor.backbone(rows)
        loss, log_ratio, entropy = self.actor_loss(self.actor.of(features, rows), data, measure)
        critic_loss = self.critic_loss(self.critic.of(features), data)
        total = loss + self.cfg.value_coef * critic_loss
        return total, loss.detach(), log_ratio, entropy, critic_loss.detach()

    def actor_loss(
        self, policy: Any, data: dict[str, Tensor], measure: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """-E[min(ratio A, clip(ratio) A)] - ent_coef * H; the log ratio; the entropy, if `measure`"""
        log_ratio = policy.log_prob(data["action"]) - data["log_prob"]
        advantage, weight = data["advantage"], data["weight"]
        if self.cfg.normalize_advantage == "minibatch":
            advantage = masked_normalize(advantage, weight)
        loss = -(clipped_surrogate(log_ratio, advantage, self.cfg.clip_range) * weight).mean()
        entropy = policy.entropy() if measure or self.cfg.ent_coef else log_ratio
        if self.cfg.ent_coef:
            loss = loss - self.cfg.ent_coef * (entropy * weight).mean()
        return loss, log_ratio, entropy

    @torch.no_grad()
    def distance(
        self, log_ratio: Tensor, entropy: Tensor, data: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Entropy, KL(old || new) by the estimator (ratio - 1) - log ratio, and the fraction of clipped rows."""
        weight = data["weight"]
        log_ratio = blank(log_ratio, weight)  # exp may overflow on masked rows
        past = log_ratio.expm1()
        clipped = (past.abs() > self.cfg.clip_range) * weight
        return (entropy * weight).mean(), ((past - log_ratio) * weight).mean(), clipped.mean()

    def fit_value(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Tensor]:
        """The critic's passes over the rollout."""
        cfg = self.cfg
        found = []
        for epoch in range(cfg.n_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("critic")):
                total, loss = self.critic_pass(rows, data)
                norm = self.minimize("critic", total, cfg.max_grad_norm, measure=True)
                if epoch == cfg.n_epochs - 1:
                    found.append(torch.stack([loss, norm]))
        loss, norm = torch.stack(found).mean(0).unbind()
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_pass(self, rows: Rows, data: dict[str, Tensor]) -> tuple[Any, Tensor]:
        """The critic's loss on rows, and once more without gradient."""
        if "critic" in self.by_hand:
            return self.by_hand["critic"](rows, data)
        loss = self.critic_loss(self.critic(rows), data)
        return loss, loss.detach()

    def critic_loss(self, value: Tensor, data: dict[str, Tensor]) -> Tensor:
        """E[(V(s) - target)^2] / 2 or another loss, optionally with V clipped around its old value"""
        target = data["target"]
        if self.cfg.clip_value:
            error = clipped_value_loss(value, data["value"], target, self.cfg.clip_range_vf, self.value_loss)
        else:
            error = self.value_loss(value, target)
        return (error * data["value_weight"]).mean()
