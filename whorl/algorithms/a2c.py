"""Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783): one gradient step per rollout.

actor:   maximise E[log pi(a|s) * A] + ent_coef * H
critic:  minimise E[(V(s) - (A + V(s)))^2] / 2, the bracket held fixed
A = generalised advantage estimate (Schulman et al. 2015, arXiv:1506.02438). lam = 1 is the paper's return of all
rewards up to the rollout's end plus a bootstrap; lam = 0 the one-step error of the classic actor-critic.

Differs from the paper: environments step together instead of racing (A2C); actor and critic share nothing, so there is no
weight between their losses and they learn at the same time; RMSprop adds its epsilon outside the root, as torch does.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.core import tree
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.normalize import Observations, ReturnScale
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import blank, explained_variance, masked_mean, masked_normalize
from whorl.ops.returns import gae
from whorl.settings.families import NetworkConfig


@dataclass(frozen=True)
class A2CConfig(NetworkConfig):
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to zero over the budget"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 1.0
    """lambda of the advantage estimate; 1: the rollout's n-step return, 0: the one-step error"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    normalize_advantage: bool = False
    """centre and scale advantages over the rollout"""
    optimizer: Part = Part("RMSprop", {"alpha": 0.99})
    """the optimizer of both; a name out of torch.optim or an import path, with options"""
    actor_lr: float = 7e-4
    """the actor's learning rate"""
    critic_lr: float = 7e-4
    """the critic's learning rate"""
    max_grad_norm: float = 0.5
    """gradients of each net are scaled down to this norm; 0: never"""


class A2C(Agent):
    """Advantage actor-critic: one step along the policy gradient per rollout."""

    Config = A2CConfig
    acts_with = ("observations", "actor")
    separate_streams = True
    cfg: A2CConfig
    lr_actor: Tensor
    lr_critic: Tensor

    def __init__(self, spec: Spec, cfg: A2CConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Observations(
            spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
        )
        self.rewards = ReturnScale(
            spec.num_envs, cfg.normalize_reward, cfg.reward_clip_range if cfg.clip_reward else 0
        )
        self.actor = Policy("actor", spec, cfg)
        self.critic = Value("critic", spec, cfg, 1 + len(spec.streams))
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, eps=cfg.adam_eps)
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, eps=cfg.adam_eps)

    @property
    def stride(self) -> int:
        """Nets with memory are unrolled over the whole rollout: any length will do, `chunk` is not read."""
        return 1

    def initial_memory(self, num_envs: int) -> Tree:
        nets = (self.actor, self.critic)
        return {k: v for net in nets for k, v in net.backbone.initial_memory(num_envs, self.device).items()}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        obs = self.observations(obs)
        policy, after = self.actor.step(obs, memory, context.reset)
        action = policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))
        return Acted(action, {**after, **self.critic.backbone.advance(obs, memory, context.reset)})

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        self.rewards.merge_(batch.reward, batch.keep, batch.mask, self.cfg.gamma)
        if self.cfg.lr_schedule == "linear":
            self.anneal()
        raw = batch.obs
        batch = batch.replace(obs=self.observations(raw))
        value = self.critic(batch.all)  # [T+1, B]
        advantage, target = self.estimate(batch, value.detach())
        actor, critic = self.run_parallel(
            lambda: self.improve_policy(batch, advantage), lambda: self.fit_value(batch, value, target)
        )
        # After learning: the statistics that acted are the ones that learned.
        self.observations.merge_(tree.index(raw, slice(0, -1)), torch.ones_like(batch.mask))
        fit = {"value/explained_variance": explained_variance(value[:-1].detach(), target, batch.stream_mask)}
        return Updated({**actor, **critic, **fit})

    @pure
    def estimate(self, batch: Batch, value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage [T, B] and value target ([T, B] or, with reward streams, [T, B, 1 + S]), 0 on masked rows."""
        advantage = gae(self.rewards(batch.reward), batch.discount, value, batch.keep, self.cfg.gae_lambda)
        advantage = blank(advantage, batch.stream_mask)
        target = advantage + value[:-1]
        advantage = self.mixed(advantage)
        if self.cfg.normalize_advantage:
            advantage = masked_normalize(advantage, batch.mask)
        return advantage, target

    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's step."""
        loss, entropy = self.actor_loss(batch, advantage)
        norm = self.minimize("actor", loss, self.cfg.max_grad_norm)
        return {
            "loss/actor": loss.detach(),
            "gradient/actor": norm,
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
        }

    @pure
    def actor_loss(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """-E[log pi(a|s) * A] - ent_coef * H"""
        policy = self.actor(batch.now)
        # Whatever stands in rows that are no transition must not reach the gradient, not even as 0 * nan.
        action = tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action))
        entropy = masked_mean(policy.entropy().expand_as(batch.mask), batch.mask)
        loss = -masked_mean(policy.log_prob(action) * advantage, batch.mask)
        return loss - self.cfg.ent_coef * entropy, entropy

    def fit_value(self, batch: Batch, value: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The critic's step."""
        error = (value[:-1] - target).square()
        loss = masked_mean(0.5 * (error.sum(-1) if self.spec.streams else error), batch.mask)
        norm = self.minimize("critic", loss, self.cfg.max_grad_norm)
        return {"loss/critic": loss.detach(), "gradient/critic": norm}
