"""Phasic policy gradient (Cobbe et al. 2021, arXiv:2009.04416): PPO, then every so often a distillation of values.

policy phase, once per rollout:
    actor:   maximise E[min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A)] + ent_coef * H
    critic:  minimise E[(V(s) - target)^2] / 2,  target = A + V
auxiliary phase, after every `aux_every` policy phases and over all of their rollouts:
    actor:   minimise E[(V_aux(s) - target)^2] / 2 + bc_coef * E[KL(pi_old || pi)]
    critic:  minimise E[(V(s) - target)^2] / 2
V_aux is a second head on the actor's body: what the critic knows shapes the policy's features while the KL term holds
the policy where it was. pi_old is the policy at the start of the phase, kept as a frozen copy of its weights, so the
divergence starts at exactly 0 for every kind of action and of memory.

Normalisers move between rollouts. The history keeps raw observations, and the auxiliary phase reads all of them with
the statistics it finds at its start, pi_old and pi alike; targets are kept in the environment's own unit and scaled
likewise. States of a memory are those that were met while acting.

Differs from the paper: the auxiliary phase trains the critic with the critic's own optimizer; the minibatch of that
phase is the size nearest to batch_size * aux_batch_factor that divides the history (the smaller of two equally near);
the paper makes one pass over each rollout (epochs = 1).
"""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.core import collectives, tree
from whorl.core.spec import MASK_KEY, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import Rollouts, check_batch_size, minibatches
from whorl.nets.layers import orthogonal_
from whorl.nets.normalize import EPSILON, Observations, ReturnScale
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    masked_mean,
    masked_normalize,
    squared,
)
from whorl.ops.returns import gae
from whorl.ops.targets import hard_update_
from whorl.settings.families import NetworkConfig


@dataclass(frozen=True)
class PPGConfig(NetworkConfig):
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to zero over the budget"""
    gamma: float = 0.995
    """discount per step"""
    gae_lambda: float = 0.95
    """lambda of the generalised advantage estimate"""
    n_epochs: int = 3
    """passes over each rollout"""
    batch_size: int = 512
    """rows per minibatch; must divide environments * num_steps"""
    clip_range: float = 0.2
    """how far the probability ratio may move before its gradient is cut"""
    ent_coef: float = 0.0
    """weight of the entropy bonus"""
    normalize_advantage: bool = True
    """centre and scale advantages over each minibatch"""
    clip_value: bool = False
    """clip the critic's step around its old prediction (policy phase)"""
    clip_range_vf: float = 0.2
    """how far, if so"""
    aux_every: int = 32
    """policy phases before each auxiliary phase; 0: no auxiliary phase"""
    aux_epochs: int = 6
    """passes of the auxiliary phase over all rollouts since the last one"""
    aux_batch_factor: float = 1.2
    """minibatch of the auxiliary phase in units of batch_size; rounded to a divisor of the history"""
    aux_lr: float = 3e-4
    """the actor's learning rate in the auxiliary phase"""
    bc_coef: float = 1.0
    """weight of the divergence from the old policy in the auxiliary phase"""


class PPG(Agent):
    """Phasic policy gradient: PPO with an auxiliary phase that distils values into the policy's features."""

    Config = PPGConfig
    cfg: PPGConfig
    lr_actor: Tensor
    lr_critic: Tensor
    lr_auxiliary: Tensor

    def __init__(self, spec: Spec, cfg: PPGConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Observations(
            spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
        )
        self.rewards = ReturnScale(
            spec.num_envs, cfg.normalize_reward, cfg.reward_clip_range if cfg.clip_reward else 0
        )
        self.actor = Policy("actor", spec, cfg)
        self.auxiliary_value = orthogonal_(nn.Linear(self.actor.backbone.size, 1), 1.0)
        self.critic = Value("critic", spec, cfg)
        self.old_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, eps=cfg.adam_eps)
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, eps=cfg.adam_eps)
        student = (self.actor, self.auxiliary_value)
        self.add_optimizer("auxiliary", student, cfg.optimizer, cfg.aux_lr, eps=cfg.adam_eps)

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, self.stride)

    def experience(self, generator: torch.Generator) -> Rollouts:
        return Rollouts(self.discounting(), self.cfg.aux_every, "auxiliary", self.device)

    def initial_memory(self, num_envs: int) -> Tree:
        nets = (self.actor, self.critic)
        return {k: v for net in nets for k, v in net.backbone.initial_memory(num_envs, self.device).items()}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        obs = self.observations(obs)
        policy, after = self.actor.step(obs, memory, context.reset)
        action = policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))
        after = {**after, **self.critic.backbone.advance(obs, memory, context.reset)}
        return Acted(action, after, {"log_prob": policy.log_prob(action)})

    def update(self, batch: Batch) -> Updated:
        """The policy phase."""
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        self.rewards.merge_(batch.reward, batch.keep, batch.mask, self.cfg.gamma)
        if self.cfg.lr_schedule == "linear":
            self.anneal()
        raw = batch.obs
        batch = batch.replace(obs=self.observations(raw))
        advantage, target, value = self.estimate(batch)
        actor, critic = self.run_parallel(
            lambda: self.improve_policy(batch, advantage), lambda: self.fit_value(batch, target, value)
        )
        # After learning: the statistics that acted are the ones that learned.
        self.observations.merge_(tree.index(raw, slice(0, -1)), torch.ones_like(batch.mask))
        fit = {"value/explained_variance": explained_variance(value, target, batch.mask)}
        return Updated({**actor, **critic, **fit}, kept={"target": target * self.reward_unit()})

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage, value target and value of each row [T, B], 0 on rows that are no transition."""
        value = self.critic(batch.all)  # [T+1, B]
        advantage = gae(self.rewards(batch.reward), batch.discount, value, batch.keep, self.cfg.gae_lambda)
        advantage, value = blank(advantage, batch.mask), blank(value[:-1], batch.mask)
        return advantage, advantage + value, value

    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's passes over the rollout."""
        cfg = self.cfg
        # Whatever stands in rows that are no transition must not reach the gradient, not even as 0 * nan.
        columns = {
            "action": tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action)),
            "log_prob": blank(batch.extras["log_prob"], batch.mask),
            "advantage": advantage,
            "mask": batch.mask,
        }
        found = []
        for epoch in range(cfg.n_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("actor")):
                loss, parts = self.actor_loss(rows, data)
                norm = self.minimize("actor", loss, cfg.max_grad_norm)
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
        """-E[min(ratio A, clip(ratio) A)] - ent_coef * H; also entropy, divergence and share of clipped rows"""
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
        columns = {"target": target, "value": value, "mask": batch.mask}
        found = []
        for epoch in range(self.cfg.n_epochs):
            for rows, data in minibatches(batch, columns, self.cfg.batch_size, self.random("critic")):
                loss = self.critic_loss(rows, data)
                norm = self.minimize("critic", loss, self.cfg.max_grad_norm)
                if epoch == self.cfg.n_epochs - 1:
                    found.append(torch.stack([loss.detach(), norm]))
        loss, norm = torch.stack(found).mean(0).unbind()
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_loss(self, rows: Rows, data: dict[str, Tensor]) -> Tensor:
        """E[(V(s) - target)^2] / 2, in the policy phase optionally with the step clipped around the old value"""
        value, target = self.critic(rows), data["target"]
        if self.cfg.clip_value and "value" in data:
            error = clipped_value_loss(value, data["value"], target, self.cfg.clip_range_vf)
        else:
            error = squared(value, target)
        return masked_mean(error, data["mask"])

    def auxiliary(self, batch: Batch) -> Updated:
        """The auxiliary phase, over the rows [T, B * aux_every] and targets of all rollouts since the last one.

        A history can be thousands of minibatches long, so the graph that is captured is that of one of them.
        """
        hard_update_(self.old_actor, self.actor)
        batch = batch.replace(obs=self.observations(batch.obs))
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
        """The number of rows nearest to batch_size * aux_batch_factor that divides the history in whole chunks."""
        steps, num_envs = batch.shape
        stride = steps // len(tree.first(batch.memories)) if batch.memories else 1
        wanted = self.cfg.batch_size * self.cfg.aux_batch_factor
        chunks = steps * num_envs // stride
        least = stride * collectives.learners()
        fitting = [n * least for n in range(1, chunks + 1) if chunks % n == 0]
        return min(fitting, key=lambda n: (abs(n - wanted), n))

    @captured
    def distil(self, batch: Batch) -> Updated:
        """One minibatch of the auxiliary phase."""
        actor, critic = self.run_parallel(
            lambda: self.distil_into_actor(batch), lambda: self.refit_value(batch)
        )
        return Updated({**actor, **critic})

    def distil_into_actor(self, batch: Batch) -> dict[str, Tensor]:
        loss, error, kl = self.auxiliary_loss(batch.now, {**batch.extras, "mask": batch.mask})
        self.minimize("auxiliary", loss, self.cfg.max_grad_norm)
        return {"loss/auxiliary": error.detach(), "policy/auxiliary_kl": kl.detach()}

    def refit_value(self, batch: Batch) -> dict[str, Tensor]:
        loss = self.critic_loss(batch.now, {**batch.extras, "mask": batch.mask})
        self.minimize("critic", loss, self.cfg.max_grad_norm)
        return {"loss/auxiliary_critic": loss.detach()}

    @pure
    def auxiliary_loss(self, rows: Rows, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """E[(V_aux(s) - target)^2] / 2 + bc_coef * E[KL(pi_old || pi)], and its two parts"""
        allowed = rows.selected[MASK_KEY] if self.spec.masked else None
        features = self.actor.backbone(rows)  # [R, B, size]
        value = self.auxiliary_value(features)[..., 0]
        with torch.no_grad():
            old = self.old_actor(rows)
        kl = masked_mean(old.kl(self.actor.head(features, allowed)), data["mask"])
        error = masked_mean(0.5 * (value - data["target"]).square(), data["mask"])
        return error + self.cfg.bc_coef * kl, error, kl

    def reward_unit(self) -> Tensor:
        """The deviation that rewards are divided by: a value times this is in the environment's own unit."""
        variance = self.rewards.statistics.var
        return (variance + EPSILON).sqrt() if self.rewards.enabled else torch.ones_like(variance)


def _as_batch(rows: Rows, data: dict[str, Tensor]) -> Batch:
    """A minibatch of rows as a batch of its own, without actions and rewards."""
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
