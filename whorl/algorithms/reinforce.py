"""REINFORCE (Williams 1992, Machine Learning 8): one step along the Monte-Carlo policy gradient per rollout.

policy:    maximise E[log pi(a|s) * (G - b(s))],  G_t = r_t + gamma * r_{t+1} + ... up to the episode's end
baseline:  b = V learned by least squares on G; without it b = 0, and returns are centred over the rollout instead

G never crosses an episode's end. What it should hold where the data stop first is a choice:
- An episode may still be open when the rollout ends. To drop its rows would select by outcome: near the rollout's end
  only failures would be left. So rows are left out by place alone: the last `lookahead` rows of a rollout lend their
  rewards to earlier rows but are not learned from, and every row that is has seen at least that far.
- Without a baseline nothing stands for what comes after a truncation or the rollout's end: G stops there. The
  objective is then the return within the time limit. With a baseline V is added in these two places, and there only.

Differs from the paper: no gamma^t in front of each row's gradient, as in nearly all later work.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.normalize import Observations, ReturnScale
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import blank, explained_variance, masked_mean, masked_normalize
from whorl.ops.returns import discounted_return
from whorl.settings.schema import Count, Fraction, NonNegative, Range


@dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    gamma: Fraction = 0.99
    """discount factor"""
    baseline: bool = False
    """subtract a learned state value from the return"""
    baseline_steps: Annotated[int, Range(1, 10**6)] = 10
    """gradient steps of the baseline per rollout"""
    lookahead: Count = 64
    """learn only from steps that are followed by at least this many in the rollout"""
    normalize_returns: bool = True
    """normalise the factors of the log-probabilities over the rollout"""
    ent_coef: NonNegative = 0.0
    """entropy coefficient"""
    normalize_reward: bool = False
    """divide rewards by the standard deviation of the discounted return"""


class Reinforce(Agent):
    """The Monte-Carlo policy gradient, with or without a learned baseline."""

    Config = ReinforceConfig
    cfg: ReinforceConfig
    lr_actor: Tensor
    lr_critic: Tensor

    def __init__(self, spec: Spec, cfg: ReinforceConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Observations(
            spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
        )
        self.rewards = ReturnScale(
            spec.num_envs, cfg.normalize_reward, cfg.reward_clip_range if cfg.clip_reward else 0
        )
        self.actor = Policy("actor", spec, cfg)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, eps=cfg.adam_eps)
        self.nets: list[Policy | Value] = [self.actor]
        if cfg.baseline:
            self.critic = Value("critic", spec, cfg)
            self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, eps=cfg.adam_eps)
            self.nets.append(self.critic)

    def check(self, rows: int) -> None:
        steps = rows // self.spec.num_envs
        if self.cfg.lookahead >= steps:
            raise ConfigError(
                f"lookahead {self.cfg.lookahead} leaves none of the {steps} rows of a rollout to learn from; "
                f"use {steps // 2}, or more num_steps"
            )

    @property
    def stride(self) -> int:
        """Nets with memory are unrolled over the whole rollout: any length will do, `chunk` is not read."""
        return 1

    def initial_memory(self, num_envs: int) -> Tree:
        return {
            k: v for net in self.nets for k, v in net.backbone.initial_memory(num_envs, self.device).items()
        }

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        obs = self.observations(obs)
        policy, after = self.actor.step(obs, memory, context.reset)
        action = policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))
        for net in self.nets[1:]:
            after = {**after, **net.backbone.advance(obs, memory, context.reset)}
        return Acted(action, after)

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        self.rewards.merge_(batch.reward, batch.keep, batch.mask, self.cfg.gamma)
        self.anneal()
        raw = batch.obs
        batch = batch.replace(obs=self.observations(raw))
        learned = self.learned_rows(batch.mask)
        returns, value = self.estimate(batch)
        steps = [lambda: self.improve_policy(batch, returns - value, learned)]
        if self.cfg.baseline:
            steps.append(lambda: self.fit_baseline(batch, returns, learned))
        found = self.run_parallel(*steps)
        # After learning: the statistics that acted are the ones that learned.
        self.observations.merge_(tree.index(raw, slice(0, -1)), torch.ones_like(batch.mask))
        metrics = {name: metric for part in found for name, metric in part.items()}
        if self.cfg.baseline:
            metrics["value/explained_variance"] = explained_variance(value, returns, learned)
        return Updated(metrics)

    def learned_rows(self, mask: Tensor) -> Tensor:
        """The mask [T, B] without the rows that see less than `lookahead` rows ahead."""
        learned = mask.clone()
        learned[mask.shape[0] - self.cfg.lookahead :] = 0
        return learned

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return to go and baseline of each row [T, B]; both 0 on rows that are no transition."""
        if self.cfg.baseline:
            value = self.critic(batch.all)  # [T+1, B]
        else:
            value = torch.zeros_like(batch.reset, dtype=batch.reward.dtype)
        returns = discounted_return(self.rewards(batch.reward), batch.discount, batch.keep, value)
        return blank(returns, batch.mask), blank(value[:-1], batch.mask)

    def improve_policy(self, batch: Batch, advantage: Tensor, learned: Tensor) -> dict[str, Tensor]:
        """The policy's step."""
        loss, entropy = self.actor_loss(batch, advantage, learned)
        norm = self.minimize("actor", loss, self.cfg.max_grad_norm)
        return {
            "loss/actor": loss.detach(),
            "gradient/actor": norm,
            "policy/entropy": entropy.detach(),
            "policy/learning_rate": self.lr_actor.clone(),
        }

    @pure
    def actor_loss(self, batch: Batch, advantage: Tensor, learned: Tensor) -> tuple[Tensor, Tensor]:
        """-E[log pi(a|s) * (G - b(s))] - ent_coef * H"""
        policy = self.actor(batch.now)
        if self.cfg.normalize_returns:
            advantage = masked_normalize(advantage, learned)
        # Whatever stands in rows that are no transition must not reach the gradient, not even as 0 * nan.
        action = tree.where(batch.mask > 0, batch.action, tree.map(torch.zeros_like, batch.action))
        entropy = masked_mean(policy.entropy().expand_as(learned), learned)
        loss = -masked_mean(policy.log_prob(action) * advantage, learned)
        return loss - self.cfg.ent_coef * entropy, entropy

    def fit_baseline(self, batch: Batch, returns: Tensor, learned: Tensor) -> dict[str, Tensor]:
        """The baseline's steps: E[(V(s) - G)^2] / 2"""
        for _ in range(self.cfg.baseline_steps):
            loss = masked_mean(0.5 * (self.critic(batch.now) - returns).square(), learned)
            norm = self.minimize("critic", loss, self.cfg.max_grad_norm)
        return {"loss/critic": loss.detach(), "gradient/critic": norm}
