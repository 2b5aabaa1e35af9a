"""Phasic policy gradient (Cobbe et al. 2021, arXiv:2009.04416): PPO and periodic auxiliary phases that distil values.

policy phase, once per rollout:
    actor:   maximise E[min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A)] + ent_coef * H
    critic:  minimise E[(V(s) - target)^2] / 2,  target = A + V
auxiliary phase, after every `aux_every` policy phases and over all of their rollouts:
    actor:   minimise E[(V_aux(s) - target)^2] / 2 + bc_coef * E[KL(pi_old || pi)]
    critic:  minimise E[(V(s) - target)^2] / 2
V_aux is a second head on the actor's backbone: it trains the policy's features to predict values while the KL term
keeps the policy unchanged. pi_old is the policy at the start of the phase, a frozen copy of its weights, so the
divergence starts at exactly 0 for every action space and every memory. With reward streams V and V_aux have an output
per stream, A is the weighted sum of their advantages, and value losses are their mean.

Normalisers change between rollouts. The history keeps raw observations, which the auxiliary phase normalises with the
statistics at its start, for pi_old and pi alike; targets are kept unscaled and scaled in the same way. Recurrent states
are those of acting.

Differs from the paper: the auxiliary phase trains the critic with the critic's own optimizer; the minibatch of that
phase is the size nearest to batch_size * aux_batch_factor that divides the history (the smaller of two equally near);
the paper makes one pass over each rollout (n_epochs = 1).
"""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core import collectives, tree
from whorl.core.spec import MASK_KEY, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import Rollouts, check_batch_size, minibatches
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.layers import orthogonal_
from whorl.nets.normalize import EPSILON, normalizers
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    masked_mean,
    masked_normalize,
    per_stream,
    squared,
)
from whorl.ops.returns import gae
from whorl.ops.targets import hard_update_
from whorl.settings.schema import Count, Fraction, LearningRate, NonNegative, Positive, PositiveLimit, Range


@dataclass(frozen=True)
class PPGConfig(OnPolicyConfig):
    gamma: Fraction = 0.99
    """discount factor"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    n_epochs: Annotated[int, Range(1, 10**6)] = 3
    """passes over each rollout"""
    batch_size: Annotated[int, Range(1, 10**7)] = 128
    """steps per minibatch; must divide num_envs * num_steps"""
    clip_range: PositiveLimit = 0.2
    """clipping of the probability ratio"""
    ent_coef: NonNegative = 0.0
    """entropy coefficient"""
    normalize_advantage: bool = True
    """normalise advantages over each minibatch"""
    clip_value: bool = False
    """clip the critic's prediction around its value before the update (policy phase)"""
    clip_range_vf: PositiveLimit = 0.2
    """clipping of the critic's prediction, with clip_value"""
    aux_every: Count = 32
    """policy phases before each auxiliary phase; 0: no auxiliary phase"""
    aux_epochs: Annotated[int, Range(0, 10**6)] = 6
    """passes of the auxiliary phase over all rollouts since the last one"""
    aux_batch_factor: Positive = 1.2
    """minibatch size of the auxiliary phase in units of batch_size, rounded to a divisor of the rows"""
    aux_lr: LearningRate = 7e-4
    """learning rate of the actor in the auxiliary phase"""
    bc_coef: NonNegative = 1.0
    """weight of the KL divergence from the old policy in the auxiliary phase"""


class PPG(Agent):
    """Phasic policy gradient: PPO with an auxiliary phase that distils values into the policy's features."""

    Config = PPGConfig
    cfg: PPGConfig
    separate_streams = True
    lr_actor: Tensor

    def __init__(self, spec: Spec, cfg: PPGConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.actor = Policy("actor", spec, cfg)
        self.auxiliary_value = orthogonal_(nn.Linear(self.actor.backbone.size, 1 + len(spec.streams)), 1.0)
        self.critic = Value("critic", spec, cfg)
        self.old_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.add_optimizers(actor=cfg.actor_lr, critic=cfg.critic_lr)
        student = (self.actor, self.auxiliary_value)
        self.add_optimizer("auxiliary", student, cfg.optimizer, cfg.aux_lr, **self.optimizer_options())

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, self.stride)

    def experience(self, generator: torch.Generator) -> Rollouts:
        return Rollouts(self.discounting(), self.cfg.aux_every, "auxiliary", self.device)

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=True)

    @captured
    def update(self, rollout: Batch) -> Updated:
        """The policy phase."""
        batch = self.begin_update(rollout)
        advantage, target, value = self.estimate(batch)
        actor, critic = self.run_parallel(
            lambda: self.improve_policy(batch, advantage), lambda: self.fit_value(batch, target, value)
        )
        self.end_update(rollout)
        fit = {"value/explained_variance": explained_variance(value, target, per_stream(batch.mask, value))}
        return Updated({**actor, **critic, **fit}, kept={"target": target * self.reward_unit()})

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage [T, B], value target and value [T, B] (or [T, B, streams]) of each row, 0 on masked rows."""
        value = self.critic(batch.all)  # [T+1, B]
        advantage = gae(batch.reward, batch.discount, value, batch.keep, self.cfg.gae_lambda)
        mask = per_stream(batch.mask, advantage)
        advantage, value = blank(advantage, mask), blank(value[:-1], mask)
        return self.sum_streams(advantage), advantage + value, value

    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's passes over the rollout."""
        cfg = self.cfg
        columns = {
            "action": batch.action,
            "log_prob": blank(batch.extras["log_prob"], batch.mask),
            "advantage": advantage,
            "mask": batch.mask,
        }
        found = []
        for epoch in range(cfg.n_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("actor")):
                loss, parts = self.actor_loss(rows, data)
                norm = self.minimize("actor", loss, cfg.max_grad_norm, measure=True)
                if epoch == cfg.n_epochs - 1:
                    found.append(torch.stack([loss.detach(), norm, *parts]))
        loss, norm, entropy, kl, clipped = torch.stack(found).mean(0).unbind()
        return {
            "loss/actor": loss,
            "gradient/actor": norm,
            "policy/entropy": entropy,
            "policy/kl": kl,
            "policy/clip_fraction": clipped,
            "policy/learning_rate": self.lr_actor.clone(),
        }

    @pure
    def actor_loss(self, rows: Rows, data: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """-E[min(ratio A, clip(ratio) A)] - ent_coef * H; entropy, divergence and fraction of clipped rows"""
        mask = data["mask"]
        policy = self.actor(rows)
        log_ratio = policy.log_prob(data["action"]) - data["log_prob"]
        advantage = data["advantage"]
        if self.cfg.normalize_advantage:
            advantage = masked_normalize(advantage, mask)
        entropy = masked_mean(policy.entropy().expand_as(mask), mask)
        loss = -masked_mean(clipped_surrogate(log_ratio, advantage, self.cfg.clip_range), mask)
        with torch.no_grad():
            ratio = log_ratio.exp()
            kl = masked_mean(ratio - 1 - log_ratio, mask)
            clipped = masked_mean(((ratio - 1).abs() > self.cfg.clip_range).float(), mask)
        return loss - self.cfg.ent_coef * entropy, (entropy.detach(), kl, clipped)

    def fit_value(self, batch: Batch, target: Tensor, value: Tensor) -> dict[str, Tensor]:
        """The critic's passes over the rollout."""
        columns = {"target": target, "value": value, "mask": per_stream(batch.mask, target)}
        found = []
        for epoch in range(self.cfg.n_epochs):
            for rows, data in minibatches(batch, columns, self.cfg.batch_size, self.random("critic")):
                loss = self.critic_loss(rows, data)
                norm = self.minimize("critic", loss, self.cfg.max_grad_norm, measure=True)
                if epoch == self.cfg.n_epochs - 1:
                    found.append(torch.stack([loss.detach(), norm]))
        loss, norm = torch.stack(found).mean(0).unbind()
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_loss(self, rows: Rows, data: dict[str, Tensor]) -> Tensor:
        """E[(V(s) - target)^2] / 2, in the policy phase optionally with V clipped around its old value"""
        value, target = self.critic(rows), data["target"]
        if self.cfg.clip_value and "value" in data:
            error = clipped_value_loss(value, data["value"], target, self.cfg.clip_range_vf)
        else:
            error = squared(value, target)
        return masked_mean(error, data["mask"])

    def auxiliary(self, batch: Batch) -> Updated:
        """The auxiliary phase, over the rows [T, B * aux_every] and targets of all rollouts since the last one.

        A history can have thousands of minibatches, so one minibatch is captured as a graph, not the whole phase.
        """
        hard_update_(self.old_actor, self.actor)
        columns = {"target": batch.extras["target"] / self.reward_unit(), "mask": batch.mask}
        size = self.auxiliary_batch_size(batch)
        passes = []
        for _ in range(self.cfg.aux_epochs):
            found = []
            for rows, data in minibatches(batch, columns, size, self.random("auxiliary")):
                metrics = self.distil(_as_batch(rows, data)).metrics
                found.append(torch.stack(list(metrics.values())))
            passes.append(torch.stack(found).mean(0))
        return Updated(dict(zip(metrics, passes[-1].unbind())) if passes else {})

    def auxiliary_batch_size(self, batch: Batch) -> int:
        """The number of rows nearest to batch_size * aux_batch_factor that divides the history into whole chunks."""
        steps, num_envs = batch.shape
        stride = steps // len(tree.first(batch.memories)) if batch.memories else 1
        nominal = self.cfg.batch_size * self.cfg.aux_batch_factor
        chunks = steps * num_envs // stride
        unit = stride * collectives.learners()
        fitting = [n * unit for n in range(1, chunks + 1) if chunks % n == 0]
        return min(fitting, key=lambda n: (abs(n - nominal), n))

    @captured
    def distil(self, batch: Batch) -> Updated:
        """One minibatch of the auxiliary phase."""
        batch = batch.replace(obs=self.observations(batch.obs))
        actor, critic = self.run_parallel(
            lambda: self.distil_into_actor(batch), lambda: self.refit_value(batch)
        )
        return Updated({**actor, **critic})

    def distil_into_actor(self, batch: Batch) -> dict[str, Tensor]:
        loss, error, kl = self.auxiliary_loss(batch.now, {**batch.extras, "mask": batch.mask})
        self.minimize("auxiliary", loss, self.cfg.max_grad_norm)
        return {"loss/auxiliary": error.detach(), "policy/auxiliary_kl": kl.detach()}

    def refit_value(self, batch: Batch) -> dict[str, Tensor]:
        loss = self.critic_loss(
            batch.now, {**batch.extras, "mask": per_stream(batch.mask, batch.extras["target"])}
        )
        self.minimize("critic", loss, self.cfg.max_grad_norm)
        return {"loss/auxiliary_critic": loss.detach()}

    @pure
    def auxiliary_loss(self, rows: Rows, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """E[(V_aux(s) - target)^2] / 2 + bc_coef * E[KL(pi_old || pi)], and its two parts"""
        allowed = rows.selected[MASK_KEY] if self.spec.masked else None
        features = self.actor.backbone(rows)  # [R, B, size]
        value = self.auxiliary_value(features)
        value = value if self.spec.streams else value[..., 0]
        with torch.no_grad():
            old = self.old_actor(rows)
        kl = masked_mean(old.kl(self.actor.head(features, allowed)), data["mask"])
        error = masked_mean(0.5 * (value - data["target"]).square(), per_stream(data["mask"], value))
        return error + self.cfg.bc_coef * kl, error, kl

    def reward_unit(self) -> Tensor:
        """The standard deviation that rewards are divided by, [] or [streams]: a value times this is unscaled."""
        variance = self.rewards.statistics.var
        unit = (variance + EPSILON).sqrt() if self.rewards.enabled else torch.ones_like(variance)
        streams = len(self.spec.streams)
        return torch.cat((unit.reshape(1), unit.new_ones(streams))) if streams else unit


def _as_batch(rows: Rows, data: dict[str, Tensor]) -> Batch:
    """A minibatch of rows as a batch, without actions and rewards."""
    none = torch.zeros_like(data["mask"])
    return Batch(
        obs=rows.obs,
        reset=rows.reset,
        action={},
        reward=none,
        discount=none,
        keep=none,
        mask=data["mask"],
        memory=rows.memory,
        last=rows.last,
        extras={"target": data["target"]},
    )
