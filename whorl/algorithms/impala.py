"""Importance weighted actor-learner (Espeholt et al. 2018, arXiv:1802.01561): A2C from rollouts of an older policy.

actor:   maximise E[log pi(a|s) * A] + ent_coef * H,  A_t = rho_t (r_t + discount_t v_{t+1} - V(s_t))
critic:  minimise E[(V(s) - v)^2] / 2, v held fixed
v_t = V(s_t) + rho_t delta_t + discount_t lam c_t (v_{t+1} - V(s_{t+1})),
delta_t = r_t + discount_t V(s_{t+1}) - V(s_t)
rho_t = min(rho_clip, pi(a_t|s_t) / mu(a_t|s_t)),  c_t = min(c_clip, the same ratio)
mu is the policy that acted. Where it is pi itself, v is the n-step return, and this is A2C.

Differs from the paper: actor and critic share nothing, as in `a2c`; losses are means over rows, not sums.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core import tree
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.normalize import Observations, ReturnScale
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import blank, explained_variance, masked_mean
from whorl.ops.returns import vtrace
from whorl.settings.schema import Fraction, LearningRate, Limit, NonNegative, Optimizer


@dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    gamma: Fraction = 0.99
    """discount factor"""
    gae_lambda: Fraction = 1.0
    """lambda of V-trace, a factor of its coefficients c"""
    rho_clip: NonNegative = 1.0
    """upper bound of the importance weights rho of the TD errors"""
    c_clip: NonNegative = 1.0
    """upper bound of the importance weights c, which carry TD errors back in time"""
    ent_coef: NonNegative = 0.01
    """entropy coefficient"""
    normalize_obs: bool = False
    """normalise float observations by running statistics"""
    normalize_reward: bool = False
    """divide rewards by the standard deviation of the discounted return"""
    optimizer: Optimizer = Part("RMSprop", {"alpha": 0.99})
    """optimizer of actor and critic: a class of torch.optim or an import path, with options"""
    actor_lr: LearningRate = 7e-4
    """learning rate of the actor"""
    critic_lr: LearningRate = 7e-4
    """learning rate of the critic"""
    max_grad_norm: Limit = 0.5
    """maximum norm of the gradients of each network; 0: no clipping"""


class IMPALA(Agent):
    """IMPALA: actors that need not wait, and V-trace to take back what that costs."""

    Config = IMPALAConfig
    acts_with = ("observations", "actor")
    corrects_off_policy = True
    cfg: IMPALAConfig
    lr_actor: Tensor

    def __init__(self, spec: Spec, cfg: IMPALAConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Observations(
            spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
        )
        self.rewards = ReturnScale(
            spec.num_envs, cfg.normalize_reward, cfg.reward_clip_range if cfg.clip_reward else 0
        )
        self.actor = Policy("actor", spec, cfg)
        self.critic = Value("critic", spec, cfg)
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
        after = {**after, **self.critic.backbone.advance(obs, memory, context.reset)}
        return Acted(action, after, {"log_prob": policy.log_prob(action)})

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        self.rewards.merge_(batch.reward, batch.keep, batch.mask, self.cfg.gamma)
        self.anneal()
        raw = batch.obs
        batch = batch.replace(obs=self.observations(raw))
        value = self.critic(batch.all)  # [T+1, B]
        log_prob, entropy = self.judge(batch)
        advantage, target, ratio = self.trace(batch, value.detach(), log_prob.detach())
        loss = -masked_mean(log_prob * advantage, batch.mask)
        norm = self.minimize("actor", loss - self.cfg.ent_coef * entropy, self.cfg.max_grad_norm)
        fit = masked_mean(0.5 * (value[:-1] - target).square(), batch.mask)
        critic_norm = self.minimize("critic", fit, self.cfg.max_grad_norm)
        self.observations.merge_(tree.index(raw, slice(0, -1)), torch.ones_like(batch.mask))
        metrics = {
            "loss/actor": loss.detach(),
            "loss/critic": fit.detach(),
            "gradient/actor": norm,
            "gradient/critic": critic_norm,
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
            "policy/ratio": ratio,
            "value/explained_variance": explained_variance(value[:-1].detach(), target, batch.mask),
        }
        return Updated(metrics)

    @pure
    def judge(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log pi(a|s) of each row [T, B], and the mean entropy"""
        policy = self.actor(batch.now)
        # Whatever stands in rows that are no transition must not reach the gradient, not even as 0 * nan.
        action = tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action))
        return policy.log_prob(action), masked_mean(policy.entropy().expand_as(batch.mask), batch.mask)

    @pure
    def trace(self, batch: Batch, value: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage and value target of each row [T, B], 0 on rows that are no transition; the mean ratio"""
        cfg = self.cfg
        acted = blank(batch.extras["log_prob"], batch.mask)
        ratio = (blank(log_prob, batch.mask) - acted).clamp(-30, 30).exp()
        reward = self.rewards(batch.reward)
        target, advantage = vtrace(
            reward, batch.discount, value, batch.keep, ratio, cfg.rho_clip, cfg.c_clip, cfg.gae_lambda
        )
        return blank(advantage, batch.mask), blank(target, batch.mask), masked_mean(ratio, batch.mask)
