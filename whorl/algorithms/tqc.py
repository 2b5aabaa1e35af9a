"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269) on top of soft actor-critic.

Each of N critics has M quantiles of the return. All N * M quantiles of the target critics at (s', a') are pooled and
sorted, and the N * d largest are dropped: z_(1) <= ... <= z_(K),  K = N * (M - d).
critics:      minimise the quantile Huber loss of every theta_i^m against all y_k,
              y_k = r + discount * (z_(k) - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - mean of all quantiles at (s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
The defaults (5 critics, 25 quantiles, 2 dropped per critic) are those of the paper, which drops 5 on Hopper and 0 on
HalfCheetah; its critics of 3 x 512 units are in the presets of the MuJoCo tasks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_actor
from whorl.nets.actor import Actor, SquashedHead, bounded
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import EntropyConfig, Temperature, undecayed
from whorl.ops.losses import sorted_quantile_huber
from whorl.settings.schema import Count, PositiveCount, Range, Size


@dataclass(frozen=True)
class TQCConfig(EntropyConfig, ActorCriticConfig):
    n_critics: Annotated[int, Range(1, 1000)] = 5
    """number of critics"""
    n_quantiles: Size = 25
    """quantiles per critic"""
    top_quantiles_to_drop: Count = 2
    """largest quantiles dropped from the target, per critic"""
    policy_delay: PositiveCount = 1
    """critic updates per actor update"""


class TQC(Agent):
    """Truncated quantile critics: targets drop the largest quantiles of a pooled distribution."""

    Config = TQCConfig
    cfg: TQCConfig
    acts_with = ("observations", "actor")
    shares_unroll = ("actor", "critic")
    tau: Tensor

    def __init__(self, spec: Spec, cfg: TQCConfig) -> None:
        super().__init__(spec, cfg)
        if cfg.top_quantiles_to_drop >= cfg.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop is {cfg.top_quantiles_to_drop}, but a critic has {cfg.n_quantiles} quantiles; "
                f"use at most {cfg.n_quantiles - 1}"
            )
        size = bounded(spec, "tqc")
        self.target_entropy = cfg.target(size)
        self.observations = Preprocessor(spec, cfg)
        self.critic = QEnsemble("critic", spec, cfg, cfg.n_critics, (cfg.n_quantiles,), actions=size)
        head = partial(SquashedHead, size=size, bound=cfg.log_std_range)
        self.actor = Actor("actor", spec, cfg, head, self.critic.backbone)
        self.temperature = Temperature(cfg.alpha, cfg.tune_alpha)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        midpoints = (torch.arange(cfg.n_quantiles) + 0.5) / cfg.n_quantiles
        self.register_buffer(
            "tau", midpoints.repeat(cfg.n_critics), persistent=False
        )  # [critics * quantiles]
        self.add_optimizers(critic=cfg.critic_lr, actor=cfg.actor_lr)
        if cfg.tune_alpha:
            self.add_optimizer(
                "alpha",
                self.temperature,
                undecayed(cfg.optimizer),
                cfg.alpha_lr,
                **self.optimizer_options(0.0),
            )

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_actor(self, obs, memory, context)

    def value(self, rows: Rows) -> Tensor:
        """The mean of all quantiles at the mode of the policy, of rows [T, B]."""
        return self.critic(rows, self.actor(rows).mode()).mean((0, -1))

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(self, batch, train_actor=train_actor, move_targets=self.targets.due(self.updates))

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        """Steps of the actor and of the temperature."""
        loss, log_prob = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        if self.cfg.tune_alpha:
            self.minimize("alpha", -self.temperature.log_alpha * (log_prob + self.target_entropy))
        alpha = self.temperature().detach()
        return {"loss/actor": loss.detach(), "policy/entropy": -log_prob, "policy/alpha": alpha}

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions, noisy layers and dropout."""
        rows, critic, actor = batch.mask.numel(), self.random("critic"), self.random("actor")
        return {
            "action": torch.randn(batch.action.shape, generator=actor, device=self.device),
            "next_action": torch.randn(batch.action.shape, generator=critic, device=self.device),
            "layers": self.actor.draw(actor),
            "next_layers": self.actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(rows, critic),
            "actor_critic": self.critic.draw(rows, actor),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """The quantile Huber loss, mean over quantiles and critics; the TD errors of the means [T, B]; the mean of Q"""
        with torch.no_grad():
            policy = self.actor(batch.next, noise["next_layers"])
            action, log_prob = policy.sample_with_log_prob(noise["next_action"])
            z = self.target_critic(batch.next, action, noise["target_critic"])  # [critics, T, B, quantiles]
            kept = truncated(z, self.cfg.top_quantiles_to_drop)  # [T, B, K]
            soft = kept - (self.temperature() * log_prob).unsqueeze(-1)
            # Discounts are not negative, so targets stay sorted.
            target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft
        quantile = self.critic(batch.now, batch.action, noise["critic"]).movedim(0, -2).flatten(-2)
        loss = (sorted_quantile_huber(quantile, self.tau, target) * batch.weight).mean() / len(self.tau)
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (quantile.square().mean(-1) * batch.weight).mean()
        mean = quantile.detach().mean(-1)
        return loss, (mean - target.mean(-1)).abs(), mean.mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """E[alpha log pi(a|s) - mean of all quantiles at (s, a)]; E[log pi]"""
        action, log_prob = self.actor(batch.now, noise["layers"]).sample_with_log_prob(noise["action"])
        q = self.critic(batch.now, action, noise["actor_critic"]).mean((0, -1))
        alpha = self.temperature().detach()
        loss = ((alpha * log_prob - q) * batch.share).mean()
        return loss, (log_prob.detach() * batch.share).mean()


def truncated(quantile: Tensor, drop: int) -> Tensor:
    """All quantiles [critics, T, B, M] pooled and sorted, without the `critics * drop` largest: [T, B, K]."""
    pooled = quantile.movedim(0, -2).flatten(-2).sort(-1).values
    return pooled[..., : pooled.shape[-1] - len(quantile) * drop]
