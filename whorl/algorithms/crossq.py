"""CrossQ (Bhatt et al. 2024, arXiv:1902.05605v4): soft actor-critic with batch normalisation, without target networks.

critics:      minimise sum_i E[(Q_i(s, a) - y)^2],  y = r + discount * (min_i Q_i(s', a') - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - min_i Q_i(s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
(s, a) and (s', a') go through the critics as one batch: each layer is normalised by the statistics of their mixture. In
the gradient y is a constant, but the statistics are not. Actor and critics are batch-renormalised at their input and
after each hidden layer. The actor's loss uses batch statistics; a', acting and the Q in the actor's loss use running
ones.

Differs from the paper: an encoder of images precedes all layers and is trained by the critics. Differs from its code:
the loss of the temperature is linear in log(alpha), as in most implementations, and values are renormalised by Ioffe's
equation, without the code's second epsilon. There are no target networks: `tau` and `target_update_interval` are
ignored with a warning. There is no memory: the rows of a sequence are not independent samples from which a layer could
estimate its statistics.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.optimizers import ByHand
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import sample
from whorl.explore.noise import random_action
from whorl.nets.actor import bounded
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.memory import MemoryConfig
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.renorm import Moments, RenormMLP
from whorl.nets.temperature import EntropyConfig, Temperature
from whorl.ops.distributions import TanhNormal
from whorl.settings.schema import Count, Fraction, HiddenSizes, LearningRate, Optimizer, PositiveCount, Range


@dataclass(frozen=True)
class CrossQConfig(EntropyConfig, ActorCriticConfig):
    unused = (
        *("tau", "target_update_interval", "actor_head", "critic_head"),
        *(field.name for field in fields(MemoryConfig)),
        *("share_memory", "target_memory", "stored_memory", "refresh_memory", "sequence_length", "burn_in"),
        *("sequence_stride", "whole_episodes", "priority_eta", "privileged_obs"),
    )
    learning_starts: Count = 5_000
    """environment steps before the first update"""
    random_steps: Count = 5_000
    """environment steps at the start with uniformly random actions"""
    critic_hidden_sizes: HiddenSizes = (2048, 2048)
    """hidden layer sizes of each critic"""
    optimizer: Optimizer = Part("Adam", {"betas": [0.5, 0.999]})
    """optimizer of all networks: a class of torch.optim or an import path, with options"""
    actor_lr: LearningRate = 1e-3
    """learning rate of the actor"""
    critic_lr: LearningRate = 1e-3
    """learning rate of the critics"""
    alpha_lr: LearningRate = 1e-3
    """learning rate of the entropy coefficient"""
    ensemble_q_num: Annotated[int, Range(1, 1000)] = 2
    """number of critics"""
    policy_delay: PositiveCount = 3
    """critic updates per actor update"""
    renorm_momentum: Fraction = 0.99
    """factor of the old running statistics at each update of a network"""
    renorm_warmup: Count = 100_000
    """updates of a network with plain batch normalisation, before batch renormalisation"""


class CrossQ(Agent):
    """CrossQ: batch normalisation instead of target networks."""

    Config = CrossQConfig
    cfg: CrossQConfig
    acts_with = ("observations", "backbone", "actor")

    def __init__(self, spec: Spec, cfg: CrossQConfig) -> None:
        super().__init__(spec, cfg)
        _check(cfg)
        size = bounded(spec, "crossq")
        self.target_entropy = cfg.target(size)
        self.observations = Preprocessor(spec, cfg)
        self.backbone = Backbone(
            "critic", spec.observation, BackboneSettings((), cfg.activation, Part("mlp"), cfg.encoder)
        )
        norm: dict[str, Any] = {"momentum": cfg.renorm_momentum, "warmup": cfg.renorm_warmup}
        seen = self.backbone.size
        self.critic = RenormMLP(
            cfg.ensemble_q_num, seen + size, cfg.critic_hidden_sizes, 1, cfg.activation, **norm
        )
        self.actor = RenormMLP(1, seen, cfg.actor_hidden_sizes, 2 * size, cfg.activation, **norm)
        self.temperature = Temperature(cfg.alpha, cfg.tune_alpha)
        nets = (self.backbone, self.critic)
        self.add_optimizer("critic", nets, cfg.optimizer, cfg.critic_lr, **self.optimizer_options())
        self.add_optimizers(actor=cfg.actor_lr)
        if cfg.tune_alpha:
            # Options such as the low momentum are meant for the networks, not for the temperature.
            part = Part(cfg.optimizer.name)
            self.add_optimizer("alpha", self.temperature, part, cfg.alpha_lr, **self.optimizer_options(0.0))

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random:
            return Acted(random_action(self.spec, obs, context.generator), memory)
        features, _ = self.backbone.step(self.observations(obs), memory, context.reset)
        return Acted(sample(self.policy(self.actor(features)), context), memory)

    def policy(self, outputs: Tensor) -> TanhNormal:
        """The distribution that the actor's outputs [1, ..., 2 * size] parametrise."""
        mean, log_std = outputs[0].chunk(2, -1)
        return TanhNormal(mean, log_std.clamp(*self.cfg.log_std_range))

    def value(self, rows: Rows) -> Tensor:
        """min_i Q_i at the mode of the policy, of rows [T, B]."""
        features = self.backbone(rows)
        return self.q(features, self.policy(self.actor(features)).mode())

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, train_actor=(self.updates + 1) % self.cfg.policy_delay == 0)

    @captured
    def step(self, batch: Batch, *, train_actor: bool) -> Updated:
        batch = self.prepare_batch(batch)
        noise = self.draw(batch)
        loss, error, q, moments = self.critic_loss(batch, noise)
        self.minimize("critic", loss, self.cfg.max_grad_norm)
        self.critic.merge_(moments)
        metrics = {"loss/critic": loss.detach(), "q/mean": q}
        if train_actor:
            loss, log_prob, moments = self.actor_loss(batch, noise)
            self.minimize("actor", loss, self.cfg.max_grad_norm)
            self.actor.merge_(moments)
            metrics |= {"loss/actor": loss.detach(), "policy/entropy": -log_prob}
            if self.cfg.tune_alpha:
                too_low = log_prob + self.target_entropy
                self.minimize("alpha", ByHand((-too_low,)))  # the derivative of -log(alpha) * too_low
            metrics["policy/alpha"] = self.temperature().detach()
        return Updated(metrics, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions."""
        shape, device = batch.action.shape, self.device
        return {
            "action": torch.randn(shape, generator=self.random("actor"), device=device),
            "next_action": torch.randn(shape, generator=self.random("critic"), device=device),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor, list[Moments]]:
        """sum_i E[(Q_i(s, a) - y)^2]; the TD errors [T, B]; the mean of Q; the statistics of the batch"""
        both, log_prob = self.joined(batch, noise)
        values, moments = self.critic.learn(both)  # [critics, 2T, B, 1]
        q, target = self.q_and_target(values, batch, log_prob)
        error = q - target
        loss = (error.square().sum(0) * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        return loss, error.detach().abs().mean(0), q.detach().mean(), moments

    def joined(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """(s, a) followed by (s', a') [2T, B, ...], and log pi(a'|s') [T, B]."""
        features = self.backbone(batch.all)  # [T+1, B, ...]
        now, after = features[:-1], features[1:]
        with torch.no_grad():
            action, log_prob = self.policy(self.actor(after)).sample_with_log_prob(noise["next_action"])
        return torch.cat((torch.cat((now, after)), torch.cat((batch.action, action))), -1), log_prob

    def q_and_target(self, values: Tensor, batch: Batch, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Q_i(s, a) [critics, T, B], and y [T, B] from Q_i(s', a')."""
        q, after = values[..., 0].chunk(2, 1)  # [critics, T, B]
        with torch.no_grad():
            soft_value = after.amin(0) - self.temperature() * log_prob
            return q, batch.reward + batch.discount * soft_value

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, list[Moments]]:
        """E[alpha log pi(a|s) - min_i Q_i(s, a)]; E[log pi]; the statistics of the batch"""
        with torch.no_grad():
            features = self.backbone(batch.now)
        outputs, moments = self.actor.learn(features)
        action, log_prob = self.policy(outputs).sample_with_log_prob(noise["action"])
        q = self.q(features, action)
        alpha = self.temperature().detach()
        loss = ((alpha * log_prob - q) * batch.share).mean()
        return loss, (log_prob.detach() * batch.share).mean(), moments

    def q(self, features: Tensor, action: Tensor) -> Tensor:
        """min_i Q_i with running statistics [T, B]."""
        return self.critic(torch.cat((features, action), -1))[..., 0].amin(0)

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        batch = self.observations.learn(batch, self.random("critic"))
        both, log_prob = self.joined(batch, self.draw(batch))
        # With running statistics: masked rows are among these and must not enter batch statistics.
        q, target = self.q_and_target(self.critic(both), batch, log_prob)
        return (q - target).abs().mean(0)


def _check(cfg: CrossQConfig) -> None:
    for key, network in (("actor_network", cfg.actor_network), ("critic_network", cfg.critic_network)):
        if network != Part("mlp"):
            raise ConfigError(
                f"{key} is {network.plain()}, but crossq always uses batch-renormalised MLPs; leave it out and set "
                "actor_hidden_sizes or critic_hidden_sizes, or use sac"
            )
    if cfg.batch_size < 2:
        raise ConfigError(
            f"batch_size is {cfg.batch_size}, but batch statistics need at least 2 rows; use 2 or more"
        )
    if cfg.noisy:
        raise ConfigError("noisy is true, but crossq has no noisy layers; leave it out, or use sac")
