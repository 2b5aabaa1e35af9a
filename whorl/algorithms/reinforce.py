"""REINFORCE (Williams 1992, Machine Learning 8): one step along the Monte-Carlo policy gradient per rollout.

policy:    maximise E[log pi(a|s) * (G - b(s))],  G_t = r_t + gamma * r_{t+1} + ... up to the end of the episode
baseline:  b = V fitted to G by least squares; without it b = 0
With `normalize_returns`, the default, G - b is centred and scaled over the rollout.

G never crosses the end of an episode. Two cases are not determined by the paper:
- An episode may be unfinished when the rollout ends. Dropping its rows would select by outcome: near the end of the
  rollout only short episodes would remain. Rows are therefore excluded by position alone: the last `lookahead` rows of
  a rollout contribute their rewards to earlier rows but are not learned from.
- Without a baseline, G stops at a truncation and at the end of the rollout; the objective is then the return within the
  time limit. With a baseline, V is added at these two places only.
With reward streams V has an output per stream, and G - b is the weighted sum over streams.

Differs from the paper: no factor gamma^t in each row's gradient, as in nearly all later work.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.normalize import normalizers
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import blank, explained_variance, masked_mean, masked_normalize, per_stream
from whorl.ops.returns import discounted_return
from whorl.settings.schema import Count, Fraction, NonNegative, Range


@dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    unused: ClassVar[tuple[str, ...]] = ("chunk_length",)
    gamma: Fraction = 0.99
    """discount factor"""
    baseline: bool = False
    """subtract a learned state value from the return"""
    baseline_steps: Annotated[int, Range(1, 10**6)] = 10
    """gradient steps of the baseline per rollout"""
    lookahead: Count = 64
    """learn only from steps that are followed by at least this many in the rollout"""
    normalize_returns: bool = True
    """normalise returns, with a baseline advantages, over the rollout"""
    ent_coef: NonNegative = 0.0
    """entropy coefficient"""
    normalize_reward: bool = False
    """divide rewards by the standard deviation of the discounted return"""


class Reinforce(Agent):
    """The Monte-Carlo policy gradient, optionally with a learned baseline."""

    Config = ReinforceConfig
    cfg: ReinforceConfig
    separate_streams = True
    lr_actor: Tensor
    stride = 1  # the whole rollout is unrolled at once

    def __init__(self, spec: Spec, cfg: ReinforceConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.actor = Policy("actor", spec, cfg)
        self.add_optimizers(actor=cfg.actor_lr)
        if cfg.baseline:
            self.critic = Value("critic", spec, cfg)
            self.add_optimizers(critic=cfg.critic_lr)

    def check(self, rows: int) -> None:
        steps = rows // self.spec.num_envs
        if self.cfg.lookahead >= steps:
            raise ConfigError(
                f"lookahead is {self.cfg.lookahead}, which excludes all {steps} rows of a rollout from learning; use "
                f"{steps // 2}, or increase num_steps"
            )

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=False)

    @captured
    def update(self, rollout: Batch) -> Updated:
        batch = self.begin_update(rollout)
        learned = self.learned_rows(batch.mask)
        returns, value = self.estimate(batch)
        advantage = self.sum_streams(returns - value)
        steps = [lambda: self.improve_policy(batch, advantage, learned)]
        if self.cfg.baseline:
            steps.append(lambda: self.fit_baseline(batch, returns, learned))
        found = self.run_parallel(*steps)
        self.end_update(rollout)
        metrics = {name: metric for part in found for name, metric in part.items()}
        if self.cfg.baseline:
            fit = explained_variance(value, returns, per_stream(learned, returns))
            metrics["value/explained_variance"] = fit
        return Updated(metrics)

    def learned_rows(self, mask: Tensor) -> Tensor:
        """The mask [T, B] without the rows that are followed by fewer than `lookahead` rows."""
        learned = mask.clone()
        learned[mask.shape[0] - self.cfg.lookahead :] = 0
        return learned

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return G and baseline b of each row [T, B] (or [T, B, streams]), 0 on masked rows."""
        if self.cfg.baseline:
            value = self.critic(batch.all)  # [T+1, B]
        else:
            value = batch.reward.new_zeros(len(batch.reward) + 1, *batch.reward.shape[1:])
        returns = discounted_return(batch.reward, batch.discount, batch.keep, value)
        mask = per_stream(batch.mask, returns)
        return blank(returns, mask), blank(value[:-1], mask)

    def improve_policy(self, batch: Batch, advantage: Tensor, learned: Tensor) -> dict[str, Tensor]:
        """The policy's step."""
        loss, entropy = self.actor_loss(batch, advantage, learned)
        norm = self.minimize("actor", loss, self.cfg.max_grad_norm, measure=True)
        return {
            "loss/actor": loss.detach(),
            "gradient/actor": norm,
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
        }

    @pure
    def actor_loss(self, batch: Batch, advantage: Tensor, learned: Tensor) -> tuple[Tensor, Tensor]:
        """-E[log pi(a|s) * (G - b(s))] - ent_coef * H; the mean entropy H"""
        policy = self.actor(batch.now)
        if self.cfg.normalize_returns:
            advantage = masked_normalize(advantage, learned)
        entropy = masked_mean(policy.entropy().expand_as(learned), learned)
        loss = -masked_mean(policy.log_prob(batch.action) * advantage, learned)
        return loss - self.cfg.ent_coef * entropy, entropy

    def fit_baseline(self, batch: Batch, returns: Tensor, learned: Tensor) -> dict[str, Tensor]:
        """The baseline's steps: E[(V(s) - G)^2] / 2"""
        learned = per_stream(learned, returns)
        for _ in range(self.cfg.baseline_steps):
            loss = masked_mean(0.5 * (self.critic(batch.now) - returns).square(), learned)
            norm = self.minimize("critic", loss, self.cfg.max_grad_norm, measure=True)
        return {"loss/critic": loss.detach(), "gradient/critic": norm}
