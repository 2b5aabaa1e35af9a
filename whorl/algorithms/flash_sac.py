"""FlashSAC (arXiv:2604.04539): soft actor-critic for large batches, with bounded weights, features and gradients.

critics:      minimise -sum_i E[sum_k m_k log p_ik(s, a)],  m = projection onto the atoms z of
              r + discount * (z - alpha log pi(a'|s')) with p' of the target critic with the lowest mean
actor:        minimise E[alpha log pi(a|s) - min_i Q_i(s, a)], every `policy_delay`-th update
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
targets:      theta' <- tau * theta + (1 - tau) * theta'
weights:      after each step the weights of each unit are scaled to norm 1, scale and shift of norms to sqrt(columns)
rewards:      r / max(std(G), max|G| / v_max), G the discounted return of r
(s, a) and (s', a') go through the critics, and s and s' through the actor, as one batch, so that batch normalisation
sees the statistics of both; target critics too. a', acting and the Q in the actor's loss use running statistics. The
policy's noise is kept for k steps while acting, P(k) proportional to k^-2.

Differs from the paper's code: critics are updated before the actor; the loss of the temperature is linear in
log(alpha); each environment draws its own k, also at the start of an episode. An encoder of images precedes all layers
and is trained by the critics. There is no memory: the rows of a sequence are not independent samples from which a layer
could estimate its statistics.
"""

from collections.abc import Mapping
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
from whorl.data.replay import clipped
from whorl.explore.noise import HeldNoise, random_action
from whorl.nets.actor import bounded
from whorl.nets.atoms import AtomsConfig, ReturnAtoms, advice_on_clipping
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.bounded import BoundedNet, Moments
from whorl.nets.memory import MemoryConfig
from whorl.nets.normalize import BoundedReturnScale
from whorl.nets.preprocessor import Preprocessor, reward_limit
from whorl.nets.temperature import EntropyConfig, Temperature
from whorl.ops.distributions import TanhNormal
from whorl.ops.targets import polyak_
from whorl.settings.schema import Fraction, LogStdRange, NonNegative, Number, PositiveCount, Range


@dataclass(frozen=True)
class FlashSACConfig(EntropyConfig, AtomsConfig, ActorCriticConfig):
    unused = (
        *("actor_hidden_sizes", "critic_hidden_sizes", "activation", "actor_network", "critic_network"),
        *("actor_head", "critic_head", "noisy", "privileged_obs"),
        *(field.name for field in fields(MemoryConfig)),
        *("share_memory", "target_memory", "stored_memory", "refresh_memory", "sequence_length", "burn_in"),
        *("sequence_stride", "whole_episodes", "priority_eta"),
    )
    batch_size: Annotated[int, Range(2, 10**7)] = 2_048
    """transitions per update"""
    tau: Fraction = 0.01
    """coefficient of the soft update of the target critics; 1: copy"""
    actor_width: PositiveCount = 128
    """features of the actor"""
    critic_width: PositiveCount = 256
    """features of each critic"""
    blocks: Annotated[int, Range(0, 1000)] = 2
    """inverted residual blocks of actor and critics, each four times as wide inside"""
    ensemble_q_num: Annotated[int, Range(1, 1000)] = 2
    """number of critics"""
    n_atoms: Annotated[int, Range(2, 100_000)] = 101
    """atoms of the distribution of the return that critics predict"""
    v_min: Annotated[float, Range(-(10**9), 10**9)] = -5.0
    """lowest atom"""
    v_max: Annotated[float, Range(-(10**9), 10**9)] = 5.0
    """highest atom"""
    normalize_reward: bool = True
    """divide rewards by the standard deviation of the discounted return, or by its largest size / v_max, if larger"""
    policy_delay: PositiveCount = 2
    """critic updates per actor update"""
    alpha: NonNegative = 0.01
    """entropy coefficient: its initial value, or its value if it is not tuned"""
    entropy_per_dimension: Number = -0.478
    """target entropy per dimension of the action, scaled to [-1, 1] (-0.478: of a Gaussian with deviation 0.15)"""
    log_std_range: LogStdRange = (-10.0, 2.0)
    """bounds of the policy's log standard deviation, reached by a tanh"""
    noise_steps: PositiveCount = 16
    """maximum number of steps for which the policy's noise is kept while acting; 1: new noise in each step"""


class FlashSAC(Agent):
    """FlashSAC: soft actor-critic with bounded weights, features and gradients, for large batches."""

    Config = FlashSACConfig
    cfg: FlashSACConfig
    acts_with = ("observations", "backbone", "actor", "noise")

    def __init__(self, spec: Spec, cfg: FlashSACConfig) -> None:
        super().__init__(spec, cfg)
        size = bounded(spec, "flash_sac")
        if cfg.normalize_reward and cfg.v_max <= 0:
            raise ConfigError(
                f"v_max is {cfg.v_max:g}, but normalize_reward scales returns to it; use a positive v_max"
            )
        self.target_entropy = cfg.target(size)
        self.observations, self.noise = Preprocessor(spec, cfg), HeldNoise(size, cfg.noise_steps)
        self.rewards = BoundedReturnScale(spec.num_envs, cfg.normalize_reward, cfg.v_max)
        self.backbone = Backbone(
            "critic", spec.observation, BackboneSettings((), "relu", Part("mlp"), cfg.encoder)
        )
        self.atoms = ReturnAtoms(cfg)
        seen = self.backbone.size
        critics = (cfg.ensemble_q_num, seen + size, cfg.critic_width, cfg.blocks, cfg.n_atoms)
        self.critic, self.target_critic = BoundedNet(*critics), BoundedNet(*critics).requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.actor = BoundedNet(1, seen, cfg.actor_width, cfg.blocks, 2 * size)
        self.temperature = Temperature(cfg.alpha, cfg.tune_alpha)
        nets = (self.backbone, self.critic)
        self.add_optimizer("critic", nets, cfg.optimizer, cfg.critic_lr, **self.optimizer_options())
        self.add_optimizers(actor=cfg.actor_lr)
        if cfg.tune_alpha:
            # Options are meant for the networks, not for the temperature.
            part = Part(cfg.optimizer.name)
            self.add_optimizer("alpha", self.temperature, part, cfg.alpha_lr, **self.optimizer_options(0.0))

    def initial_memory(self, num_envs: int) -> Tree:
        return self.noise.initial(num_envs)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random:
            return Acted(random_action(self.spec, obs, context.generator), memory)
        features, _ = self.backbone.step(self.observations(obs), {}, context.reset)
        policy = self.policy(self.actor(features))
        if context.greedy:
            return Acted(policy.mode(), memory)
        noise, held = self.noise(policy.noise(context.generator), memory, context)
        return Acted(policy.sample(noise), {**memory, **held})

    def policy(self, outputs: Tensor) -> TanhNormal:
        """The distribution that the actor's outputs [1, ..., 2 * size] parametrise."""
        mean, log_std = outputs[0].chunk(2, -1)
        low, high = self.cfg.log_std_range
        return TanhNormal(mean, low + (high - low) / 2 * (1 + log_std.tanh()))

    def value(self, rows: Rows) -> Tensor:
        """min_i Q_i at the mode of the policy, of rows [T, B]."""
        features = self.backbone(rows)
        return self.q(features, self.policy(self.actor(features)).mode())

    @torch.no_grad()
    def receive(self, rollout: Batch) -> Batch:
        rollout = super().receive(rollout)
        self.observe_rewards(rollout)
        return rollout

    def observe_rewards(self, rollout: Batch) -> None:
        """Follow the return of what is learned: of clipped rewards, with those of components, scaled."""
        stored = clipped(rollout, reward_limit(self.cfg)).reward
        reward = self.observations.scaled(self.discounting().reward(stored))
        reward, keep, mask = (v.to(self.device) for v in (reward, rollout.keep, rollout.mask))
        self.rewards.merge_(reward, keep, mask, self.cfg.gamma)

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        move = (self.updates + 1) % self.cfg.target_update_interval == 0
        return self.step(batch, train_actor=train_actor, move_targets=move)

    @captured
    def step(self, batch: Batch, *, train_actor: bool, move_targets: bool) -> Updated:
        batch = self.scaled(self.prepare_batch(batch))
        noise = self.draw(batch)
        loss, error, q, metrics, moments = self.critic_loss(batch, noise)
        self.minimize("critic", loss, self.cfg.max_grad_norm)
        self.critic.merge_(moments)
        self.critic.project_()
        metrics |= {"loss/critic": loss.detach(), "q/mean": q}
        if train_actor:
            loss, log_prob, moments = self.actor_loss(batch, noise)
            self.minimize("actor", loss, self.cfg.max_grad_norm)
            self.actor.merge_(moments)
            self.actor.project_()
            metrics |= {"loss/actor": loss.detach(), "policy/entropy": -log_prob}
            if self.cfg.tune_alpha:
                too_low = log_prob + self.target_entropy
                self.minimize("alpha", ByHand((-too_low,)))  # the derivative of -log(alpha) * too_low
            metrics["policy/alpha"] = self.temperature().detach()
        if move_targets:
            polyak_(self.target_critic, self.critic, self.cfg.tau)
        return Updated(metrics, priority=error)

    def scaled(self, batch: Batch) -> Batch:
        """The batch with rewards divided by the size of returns."""
        return batch.replace(reward=self.rewards(batch.reward))

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions."""
        shape, device = batch.action.shape, self.device
        return {
            "action": torch.randn(shape, generator=self.random("actor"), device=device),
            "next_action": torch.randn(shape, generator=self.random("critic"), device=device),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Any, ...]:
        """-sum_i E[sum_k m_k log p_ik(s, a)]; the divergences [T, B]; the mean of Q; how much of the targets was
        clipped; the statistics of the batch"""
        both, log_prob = self.joined(batch, noise)
        with torch.no_grad():
            after = self.target_critic.learn(both)[0].chunk(2, 1)[1]  # [critics, T, B, atoms]
        answers, moments = self.critic.learn(both)
        loss, divergence, q, metrics = self.losses(answers.chunk(2, 1)[0], after, batch, log_prob)
        return loss, divergence, q, metrics, moments

    def joined(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """(s, a) followed by (s', a') [2T, B, ...], and log pi(a'|s') [T, B]."""
        features = self.backbone(batch.all)  # [T+1, B, ...]
        now, after = features[:-1], features[1:]
        with torch.no_grad():
            action, log_prob = self.policy(self.actor(after)).sample_with_log_prob(noise["next_action"])
        return torch.cat((torch.cat((now, after)), torch.cat((batch.action, action))), -1), log_prob

    def losses(
        self, answers: Tensor, after: Tensor, batch: Batch, log_prob: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The loss of logits [critics, T, B, atoms] of (s, a), with those of the target critics for (s', a')."""
        bonus = -self.temperature().detach() * log_prob
        prob = self.atoms.lowest(after)
        target, outside = self.atoms.target(prob, batch.reward + batch.discount * bonus, batch.discount)
        losses, divergence = self.atoms.losses(answers, target)  # [critics, T, B]
        q = self.atoms.mean(answers)
        loss = (losses.sum(0) * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        return loss, divergence.mean(0), q.detach().mean(), self.atoms.metrics(outside, batch)

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, list[Moments]]:
        """E[alpha log pi(a|s) - min_i Q_i(s, a)]; E[log pi]; the statistics of the batch"""
        with torch.no_grad():
            features = self.backbone(batch.all)
        outputs, moments = self.actor.learn(features)
        action, log_prob = self.policy(outputs[:, :-1]).sample_with_log_prob(noise["action"])
        q = self.q(features[:-1], action)
        alpha = self.temperature().detach()
        loss = ((alpha * log_prob - q) * batch.share).mean()
        return loss, (log_prob.detach() * batch.share).mean(), moments

    def q(self, features: Tensor, action: Tensor) -> Tensor:
        """min_i Q_i with running statistics [T, B]."""
        return self.atoms.mean(self.critic(torch.cat((features, action), -1))).amin(0)

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        batch = self.scaled(self.observations.learn(batch, self.random("critic")))
        both, log_prob = self.joined(batch, self.draw(batch))
        # With running statistics: masked rows are among these and must not enter batch statistics.
        now, after = self.critic(both).chunk(2, 1)[0], self.target_critic(both).chunk(2, 1)[1]
        return self.losses(now, after, batch, log_prob)[1]

    def advice(self, metrics: Mapping[str, float]) -> str | None:
        return advice_on_clipping(self.cfg, metrics)
