"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269) on top of soft actor-critic.

Each of N critics says M quantiles of the return. All N * M quantiles of the target critics at (s', a') are pooled and
sorted, and the N * d largest are dropped: z_(1) <= ... <= z_(K),  K = N * (M - d).
critics:      minimise the quantile Huber loss of every theta_i^m against all y_k,
              y_k = r + discount * (z_(k) - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - mean of all quantiles at (s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
The defaults (5 critics, 25 quantiles, 2 dropped for each critic) are the paper's and CO-GYM's.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import ActorCriticConfig
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.noise import random_action
from whorl.nets.actor import Actor, SquashedHead, bounded
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import EntropyConfig, Temperature, undecayed
from whorl.ops.losses import sorted_quantile_huber
from whorl.ops.targets import polyak_
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
    """Truncated quantile critics: overestimation is cut off at the top of a pooled distribution."""

    Config = TQCConfig
    cfg: TQCConfig
    acts_with = ("observations", "actor")
    tau: Tensor

    def __init__(self, spec: Spec, cfg: TQCConfig) -> None:
        super().__init__(spec, cfg)
        if cfg.top_quantiles_to_drop >= cfg.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop is {cfg.top_quantiles_to_drop}, but a critic has {cfg.n_quantiles} quantiles; use at most "
                f"{cfg.n_quantiles - 1}"
            )
        size = bounded(spec, "tqc")
        self.target_entropy = cfg.target(size)
        self.observations = Preprocessor(spec, cfg)
        self.critic = QEnsemble("critic", spec, cfg, cfg.n_critics, (cfg.n_quantiles,), actions=size)
        self.actor = Actor(
            "actor",
            spec,
            cfg,
            lambda width: SquashedHead(width, size, cfg.log_std_range),
            self.critic.backbone,
        )
        self.temperature = Temperature(cfg.alpha, cfg.tune_alpha)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        midpoints = (torch.arange(cfg.n_quantiles) + 0.5) / cfg.n_quantiles
        self.register_buffer(
            "tau", midpoints.repeat(cfg.n_critics), persistent=False
        )  # [critics * quantiles]
        given: dict[str, Any] = {"eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.critic_lr, **given)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr, **given)
        if cfg.tune_alpha:
            given["weight_decay"] = 0.0  # not left to the optimizer's own default: AdamW has one
            self.add_optimizer("alpha", self.temperature, undecayed(cfg.optimizer), cfg.alpha_lr, **given)

    def initial_memory(self, num_envs: int) -> Tree:
        nets = (self.actor, self.critic)
        return {k: v for net in nets for k, v in net.initial_memory(num_envs, self.device).items()}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random and not memory:
            return Acted(random_action(self.spec, obs, context.generator), memory)
        seen, reset = self.observations(obs), context.reset
        noise = {} if context.greedy else self.actor.draw(context.generator)
        policy, after = self.actor.step(seen, memory, reset, noise)
        after = {**after, **self.critic.advance(seen, memory, reset)}
        if context.random:
            return Acted(random_action(self.spec, obs, context.generator), after)
        action = policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))
        return Acted(action, after)

    def value(self, rows: Rows) -> Tensor:
        """The mean of all quantiles at the mode, of rows [T, B]."""
        return self.critic(rows, self.actor(rows).mode()).mean((0, -1))

    def update(self, batch: Batch) -> Updated:
        number = self.updates + 1
        return self.step(
            batch,
            train_actor=number % self.cfg.policy_delay == 0,
            move_targets=number % self.cfg.target_update_interval == 0,
        )

    @captured
    def step(self, batch: Batch, *, train_actor: bool, move_targets: bool) -> Updated:
        cfg = self.cfg
        self.anneal()
        batch = self.observations.learn(batch, self.random("critic"))
        batch = self.critic.unrolled(self.actor.unrolled(batch))
        noise = self.draw(batch)
        loss, error, q = self.critic_loss(batch, noise)
        self.descend("critic", loss, cfg.max_grad_norm)
        metrics = {"loss/critic": loss.detach(), "q/mean": q}
        if train_actor:
            loss, log_prob = self.actor_loss(batch, noise)
            self.descend("actor", loss, cfg.max_grad_norm)
            metrics |= {"loss/actor": loss.detach(), "policy/entropy": -log_prob}
            if cfg.tune_alpha:
                self.descend("alpha", -self.temperature.log_alpha * (log_prob + self.target_entropy))
            metrics["policy/alpha"] = self.temperature().detach()
        if move_targets:
            polyak_(self.target_critic, self.critic, cfg.tau)
        if not cfg.target_memory:
            polyak_(self.target_critic.backbone.memories, self.critic.backbone.memories, 1.0)
        return Updated(metrics, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """The randomness of one update: actions; noisy layers and dropout, where there are any."""
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
        """The quantile Huber loss, mean over quantiles and critics; the errors of the means [T, B]; the mean of Q"""
        with torch.no_grad():
            action, log_prob = self.actor(batch.next, noise["next_layers"]).sample_with_log_prob(
                noise["next_action"]
            )
            pooled = self.target_critic(
                batch.next, action, noise["target_critic"]
            )  # [critics, T, B, quantiles]
            kept = truncated(pooled, self.cfg.top_quantiles_to_drop)  # [T, B, K]
            soft = kept - (self.temperature() * log_prob).unsqueeze(-1)
            # A discount is never negative: targets stay sorted.
            target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft
        quantile = self.critic(batch.now, batch.action, noise["critic"]).movedim(0, -2).flatten(-2)
        loss = (sorted_quantile_huber(quantile, self.tau, target) * batch.weight).mean() / len(self.tau)
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (quantile.square().mean(-1) * batch.weight).mean()
        mean = quantile.detach().mean(-1)
        return loss, (mean - target.mean(-1)).abs(), mean.mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """E[alpha log pi(a|s) - mean of all quantiles at (s, a)]; also E[log pi]"""
        action, log_prob = self.actor(batch.now, noise["layers"]).sample_with_log_prob(noise["action"])
        q = self.critic(batch.now, action, noise["actor_critic"]).mean((0, -1))
        alpha = self.temperature().detach()
        loss = ((alpha * log_prob - q) * batch.share).mean()
        return loss, (log_prob.detach() * batch.share).mean()


def truncated(quantile: Tensor, drop: int) -> Tensor:
    """All quantiles [critics, T, B, M] pooled and sorted, without the `critics * drop` largest: [T, B, K]."""
    pooled = quantile.movedim(0, -2).flatten(-2).sort(-1).values
    return pooled[..., : pooled.shape[-1] - len(quantile) * drop]
