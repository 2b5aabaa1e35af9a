"""Importance weighted actor-learner (Espeholt et al. 2018, arXiv:1802.01561): A2C with rollouts of an older policy.

actor:   maximise E[log pi(a|s) * A] + ent_coef * H,  A_t = rho_t (r_t + discount_t v_{t+1} - V(s_t))
critic:  minimise E[(V(s) - v)^2] / 2, v held fixed
v_t = V(s_t) + rho_t delta_t + discount_t lam c_t (v_{t+1} - V(s_{t+1})),
delta_t = r_t + discount_t V(s_{t+1}) - V(s_t)
rho_t = min(rho_clip, pi(a_t|s_t) / mu(a_t|s_t)),  c_t = min(c_clip, the same ratio)
mu is the policy that acted. If it is pi itself, v is the n-step return, and this is A2C. With reward streams V has an
output per stream, A is the weighted sum of their advantages, and the critic's loss is their mean.

With `shared_trunk` (the paper's networks) one step minimises actor's loss + value_coef * critic's loss.

Differs from the paper: by default actor and critic share no parameters; losses are means over rows, not sums.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import SharedTrunkConfig
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.normalize import normalizers
from whorl.nets.policy import policy_and_value
from whorl.ops.losses import blank, explained_variance, masked_mean, per_stream
from whorl.ops.returns import vtrace
from whorl.settings.schema import Fraction, NonNegative, Optimizer


@dataclass(frozen=True)
class IMPALAConfig(SharedTrunkConfig):
    unused: ClassVar[tuple[str, ...]] = ("chunk_length",)
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


class IMPALA(Agent):
    """IMPALA: V-trace corrects for actors that use older weights."""

    Config = IMPALAConfig
    acts_with = ("observations", "actor")
    corrects_off_policy = True
    cfg: IMPALAConfig
    separate_streams = True
    lr_actor: Tensor
    stride = 1  # the whole rollout is unrolled at once

    def __init__(self, spec: Spec, cfg: IMPALAConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.actor, self.critic = policy_and_value(spec, cfg, cfg.shared_trunk)
        if cfg.shared_trunk:
            self.add_shared_optimizer("actor", "critic", lr=cfg.actor_lr)
        else:
            self.add_optimizers(actor=cfg.actor_lr, critic=cfg.critic_lr)

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=True)

    @captured
    def update(self, rollout: Batch) -> Updated:
        batch, cfg = self.begin_update(rollout), self.cfg
        features = self.critic.backbone(batch.all)  # [T+1, B, size]
        v = self.critic.of(features)  # [T+1, B]
        if cfg.shared_trunk:
            log_prob, entropy = self.evaluate(self.actor.of(features[:-1], batch.now), batch)
        else:
            log_prob, entropy = self.actor_pass(batch)
        advantage, target, ratio = self.trace(batch, v.detach(), log_prob.detach())
        loss = -masked_mean(log_prob * advantage, batch.mask)
        mask = per_stream(batch.mask, target)
        critic_loss = masked_mean(0.5 * (v[:-1] - target).square(), mask)
        norms = self.improve(loss - cfg.ent_coef * entropy, critic_loss)
        self.end_update(rollout)
        metrics = {
            **norms,
            "loss/actor": loss.detach(),
            "loss/critic": critic_loss.detach(),
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
            "policy/ratio": ratio,
            "value/explained_variance": explained_variance(v[:-1].detach(), target, mask),
        }
        return Updated(metrics)

    def improve(self, loss: Tensor, critic_loss: Tensor) -> dict[str, Tensor]:
        """A step of each network, or one of both; the norms of the gradients."""
        limit = self.cfg.max_grad_norm
        if self.cfg.shared_trunk:
            total = loss + self.cfg.value_coef * critic_loss
            return {"gradient/actor": self.minimize("actor", total, limit, measure=True)}
        return {
            "gradient/actor": self.minimize("actor", loss, limit, measure=True),
            "gradient/critic": self.minimize("critic", critic_loss, limit, measure=True),
        }

    @pure
    def actor_pass(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`evaluate` with an actor of its own."""
        return self.evaluate(self.actor(batch.now), batch)

    def evaluate(self, policy: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """log pi(a|s) of each row [T, B], and the mean entropy"""
        return policy.log_prob(batch.action), masked_mean(policy.entropy().expand_as(batch.mask), batch.mask)

    @pure
    def trace(self, batch: Batch, value: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage [T, B] and value target [T, B] (or [T, B, streams]), 0 on masked rows; the mean ratio"""
        cfg = self.cfg
        log_mu = blank(batch.extras["log_prob"], batch.mask)
        ratio = (blank(log_prob, batch.mask) - log_mu).clamp(-30, 30).exp()
        target, advantage = vtrace(
            *(batch.reward, batch.discount, value, batch.keep, per_stream(ratio, batch.reward)),
            *(cfg.rho_clip, cfg.c_clip, cfg.gae_lambda),
        )
        mask = per_stream(batch.mask, target)
        advantage = self.sum_streams(blank(advantage, mask))
        return advantage, blank(target, mask), masked_mean(ratio, batch.mask)
