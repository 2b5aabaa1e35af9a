"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with two independent learners.

actor:   maximise E[min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A)] + ent_coef * H, ratio = pi(a|s) / pi_old(a|s)
critic:  minimise E[(V(s) - target)^2] / 2
A = generalised advantage estimate (Schulman et al. 2015, arXiv:1506.02438); target = A + V, or the bootstrapped
discounted return of the segment (lambda = 1).

Differs from the paper: actor and critic share nothing, so their passes over the rollout run at the same time (D2AC,
CO-GYM); log ratios are clamped at 30; values are computed when the rollout is learned from, not while acting.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.core import collectives, tree
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import check_batch_size, minibatches
from whorl.nets.losses import value_loss
from whorl.nets.normalize import Observations, ReturnScale
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    masked_normalize,
    row_weight,
)
from whorl.ops.returns import discounted_return, gae
from whorl.settings.families import NetworkConfig


@dataclass(frozen=True)
class PPOConfig(NetworkConfig):
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
    normalize_advantage: Literal["rollout", "minibatch", "none"] = "rollout"
    """over what advantages are centred and scaled"""
    value_target: Literal["gae", "return"] = "gae"
    """what the critic learns: advantage + value, or the bootstrapped return of the segment (as CO-GYM does)"""
    clip_value: bool = False
    """clip the critic's step around its old prediction"""
    clip_range_vf: float = 0.2
    """how far, if so"""
    critic_loss: Part = Part("squared")
    """the critic's error per element: squared, huber, or an import path of a function of (value, target)"""
    lr_schedule: Literal["constant", "linear", "kl"] = "constant"
    """constant, linear to zero over the budget, or the actor's rate adapted to the KL divergence per pass"""
    target_kl: float = 0.01
    """with lr_schedule kl: the rate is divided by 1.2 above twice this divergence, multiplied by it below half of it"""
    final_kl: float = 1.0
    """with lr_schedule kl: share of target_kl that is left at the end of the budget, reached linearly"""
    kl_cut: float = 0.0
    """the actor stands still for the rest of the epoch once the divergence passes this; 0: never"""


class PPO(Agent):
    """Proximal policy optimisation: clipped policy steps over several passes."""

    Config = PPOConfig
    acts_with = ("observations", "actor")
    separate_streams = True
    cfg: PPOConfig
    lr_actor: Tensor
    lr_critic: Tensor

    def __init__(self, spec: Spec, cfg: PPOConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Observations(
            spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
        )
        self.rewards = ReturnScale(
            spec.num_envs, cfg.normalize_reward, cfg.reward_clip_range if cfg.clip_reward else 0
        )
        self.actor = Policy("actor", spec, cfg)
        self.critic = Value("critic", spec, cfg, 1 + len(spec.streams))
        self.value_loss = value_loss(cfg.critic_loss)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, eps=cfg.adam_eps)
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, eps=cfg.adam_eps)

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, self.stride)

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
        fit = {"value/explained_variance": explained_variance(value, target, batch.stream_mask)}
        return Updated({**actor, **critic, **fit})

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage [T, B], value target and value of each row ([T, B], with reward streams [T, B, 1 + S])."""
        cfg = self.cfg
        value = self.critic(batch.all)  # [T+1, B]
        reward = self.rewards(batch.reward)
        advantage = blank(gae(reward, batch.discount, value, batch.keep, cfg.gae_lambda), batch.stream_mask)
        if cfg.value_target == "gae":
            target = advantage + value[:-1]
        else:
            target = blank(discounted_return(reward, batch.discount, batch.keep, value), batch.stream_mask)
        advantage = self.mixed(advantage)
        if cfg.normalize_advantage == "rollout":
            advantage = masked_normalize(advantage, batch.mask)
        return advantage, target, value[:-1]

    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's passes over the rollout."""
        cfg = self.cfg
        # Whatever stands in rows that are no transition must not reach the gradient, not even as 0 * nan.
        columns = {
            "action": tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action)),
            "log_prob": blank(batch.extras["log_prob"], batch.mask),
            "advantage": advantage,
            "weight": row_weight(batch.mask),
        }
        adaptive = cfg.lr_schedule == "kl" or cfg.kl_cut > 0
        open_gate = torch.ones((), device=self.device)
        metrics: dict[str, Tensor] = {}
        for epoch in range(cfg.n_epochs):
            found = []
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("actor")):
                measure = adaptive or epoch == cfg.n_epochs - 1
                loss, log_ratio, entropy = self.actor_loss(rows, data, measure)
                norm = self.minimize("actor", loss, cfg.max_grad_norm, open_gate if cfg.kl_cut > 0 else None)
                if measure:
                    found.append(torch.stack([loss.detach(), norm, *self.distance(log_ratio, entropy, data)]))
            if found:
                # What one of several learners decides by, all of them must.
                loss, norm, entropy, kl, clipped = collectives.mean(torch.stack(found).mean(0)).unbind()
                metrics = {
                    "loss/actor": loss,
                    "gradient/actor": norm,
                    "policy/entropy": entropy,
                    "policy/kl": kl,
                    "policy/clip_fraction": clipped,
                    "policy/learning_rate": self.lr_actor.clone(),
                }
                if cfg.kl_cut > 0:
                    open_gate = open_gate * (kl < cfg.kl_cut)
                if cfg.lr_schedule == "kl":
                    target = cfg.target_kl * (1 - (1 - cfg.final_kl) * self.progress)
                    faster = torch.where(kl < target / 2, 1.2, 1.0)
                    self.lr_actor.mul_(torch.where(kl > target * 2, 1 / 1.2, faster)).clamp_(1e-6, 1e-2)
        return metrics

    @pure
    def actor_loss(self, rows: Rows, data: dict[str, Tensor], measure: bool) -> tuple[Tensor, Tensor, Tensor]:
        """-E[min(ratio A, clip(ratio) A)] - ent_coef * H; also the log ratio and, if wanted, the entropy"""
        policy = self.actor(rows)
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
        """Entropy, KL(old || new) by the estimator (ratio - 1) - log ratio, and the share of clipped rows."""
        past, weight = log_ratio.expm1(), data["weight"]
        clipped = (past.abs() > self.cfg.clip_range) * weight
        return (entropy * weight).mean(), ((past - log_ratio) * weight).mean(), clipped.mean()

    def fit_value(self, batch: Batch, target: Tensor, value: Tensor) -> dict[str, Tensor]:
        """The critic's passes over the rollout."""
        cfg = self.cfg
        columns = {"target": target, "value": value, "weight": row_weight(batch.mask)}
        found = []
        for epoch in range(cfg.n_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("critic")):
                loss = self.critic_loss(rows, data)
                norm = self.minimize("critic", loss, cfg.max_grad_norm)
                if epoch == cfg.n_epochs - 1:
                    found.append(torch.stack([loss.detach(), norm]))
        loss, norm = torch.stack(found).mean(0).unbind()
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_loss(self, rows: Rows, data: dict[str, Tensor]) -> Tensor:
        """E[(V(s) - target)^2] / 2 or another loss, optionally with the step clipped around the old value"""
        value, target = self.critic(rows), data["target"]
        if self.cfg.clip_value:
            error = clipped_value_loss(value, data["value"], target, self.cfg.clip_range_vf, self.value_loss)
        else:
            error = self.value_loss(value, target)
        if self.spec.streams:
            error = error.sum(-1)
        return (error * data["weight"]).mean()
