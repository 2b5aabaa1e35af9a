"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269) on top of soft actor-critic.

Each of N critics has M quantiles of the return. All N * M quantiles of the target critics at (s', a') are pooled and
sorted, and the N * d largest are dropped: z_(1) <= ... <= z_(K),  K = N * (M - d).
critics:      minimise the quantile Huber loss of every theta_i^m against all y_k,
              y_k = r + discount * (z_(k) - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - mean of all quantiles at (s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
Discrete actions and the discrete part of mixed ones are not sampled (`whorl.nets.soft_actions`): the critics' loss is
sum_d pi(d|s') times the loss against the y_k of a' = (d, c), truncated for each d apart, the actor's loss likewise.
The defaults (5 critics, 25 quantiles, 2 dropped per critic) are those of the paper, which drops 5 on Hopper and 0 on
HalfCheetah; its critics of 3 x 512 units are in the presets of the MuJoCo tasks.
"""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.correction import CorrectionConfig, NStepTargets
from whorl.agents.families import ActorCriticConfig
from whorl.agents.optimizers import ByHand
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_soft_actor, acting_tensors_with_critic
from whorl.explore.noise import AddedNoise, AddedNoiseConfig
from whorl.nets.actor import Actor
from whorl.nets.layers import last_of
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.soft_actions import SoftActions, SoftActionsConfig
from whorl.nets.temperature import without_weight_decay
from whorl.ops.drawn import Drawn
from whorl.ops.losses import sorted_quantile_huber
from whorl.settings.schema import Count, PositiveCount, Range, Size


@dataclass(frozen=True)
class TQCConfig(SoftActionsConfig, AddedNoiseConfig, CorrectionConfig, ActorCriticConfig):
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
    acts_with = ("observations", "actor", "noise")
    shares_unroll = ("actor", "critic")
    tau: Tensor

    def __init__(self, spec: Spec, cfg: TQCConfig) -> None:
        super().__init__(spec, cfg)
        if cfg.top_quantiles_to_drop >= cfg.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop is {cfg.top_quantiles_to_drop}, but a critic has {cfg.n_quantiles} quantiles; "
                f"use at most {cfg.n_quantiles - 1}"
            )
        self.observations = Preprocessor(spec, cfg)
        self.actions = SoftActions(spec, cfg, "tqc", sums=False)
        self.returns = NStepTargets(cfg, self.observations, self.actions)
        self.noise = AddedNoise(spec, cfg)
        if self.noise.on and self.returns.columns:
            raise ConfigError(
                "use_n_step_is needs the probabilities of actions, which action_noise changes; leave one of them out"
            )
        ensemble = (cfg.n_critics, (*self.actions.outputs, cfg.n_quantiles), self.actions.inputs)
        self.critic = QEnsemble("critic", spec, cfg, *ensemble)
        head = partial(self.actions.head, last=last_of(cfg.actor_head))
        self.actor = Actor("actor", spec, cfg, head, self.critic.backbone)
        self.actions.check_memory(self.critic)
        self.temperature = self.actions.temperature()
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
                without_weight_decay(cfg.optimizer),
                cfg.alpha_lr,
                **self.optimizer_options(0.0),
            )

    def initial_memory(self, num_envs: int) -> Tree:
        return {**self.noise.initial(num_envs), **super().initial_memory(num_envs)}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_soft_actor(self, obs, memory, context)

    def acting_tensors(self) -> list[Tensor]:
        return acting_tensors_with_critic(self, super().acting_tensors())

    def q_of_choices(self, rows: Rows, reads: Tensor) -> Tensor:
        return rank_values(self.critic(rows, reads))

    def value(self, rows: Rows) -> Tensor:
        """The mean of all quantiles of rows [T, B], at the mode of the policy where actions are continuous."""
        drawn = self.actor(rows).drawn()
        values = rank_values(self.critic(rows, drawn.reads))
        return self.actions.chosen(drawn, values, self.temperature, 0.0).mean(values[0])

    def columns(self) -> dict[str, Array]:
        return {**super().columns(), **self.returns.columns}

    def refreshed(self, batch: Batch) -> dict[str, Tree]:
        found = self.returns.refreshed(self.actor, batch.replace(obs=self.observations(batch.obs)))
        return {**super().refreshed(batch), **found}

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(self, batch, train_actor=train_actor, move_targets=self.targets.due(self.updates))

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        """Steps of the actor and of the temperature."""
        loss, log_prob, target = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        if self.cfg.tune_alpha:
            too_low = log_prob + target
            self.minimize("alpha", ByHand((-too_low,)))  # the derivative of -log(alpha) * too_low
        return {"loss/actor": loss.detach(), **self.actions.metrics(log_prob, self.temperature().detach())}

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions, noisy layers and dropout."""
        rows, critic, actor = batch.mask.numel(), self.random("critic"), self.random("actor")
        after = self.returns.shape(batch)
        found: dict[str, Any] = {}
        if self.actions.parts.size:
            found["action"] = self.actions.noise(batch.shape, actor)
            found["next_action"] = self.actions.noise(after, critic)
        return {
            **found,
            "layers": self.actor.draw(actor),
            "next_layers": self.actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(prod(after) * self.actions.passes, critic),
            "actor_critic": self.critic.draw(rows * self.actions.passes, actor),
        }

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """The quantile Huber loss, mean over quantiles and critics; the TD errors of the means [T, B]; the mean of Q"""
        with torch.no_grad():
            rows = self.returns.rows(batch)
            policy = self.actor(rows, noise["next_layers"])
            drawn = policy.drawn(noise.get("next_action"))
            z = self.target_critic(rows, drawn.reads, noise["target_critic"])
            kept = truncated(z, self.cfg.top_quantiles_to_drop)  # [T, B, K], or [T, B, choices, K]
            drawn = self.actions.chosen(drawn, rank_values(z), self.temperature, 0.0)
            soft = kept - self.temperature.cost(drawn.log_prob_each).unsqueeze(-1)
            value = drawn.mean(soft.mean(-1))
            reward, discount, soft = self.returns.corrected(batch, soft, value, policy, self.temperature)
            drawn = drawn.first(len(soft))
            # Discounts are not negative, so targets stay sorted.
            target = tree.expand(reward, soft) + tree.expand(discount, soft) * soft
        values = self.critic(batch.now, self.actions.read(batch.action), noise["critic"])
        quantile = self.actions.pick(values, batch.action, after=1).movedim(0, -2).flatten(-2)
        row = self.quantile_loss(quantile, drawn, target)  # [T, B]
        if self.cfg.clip_epsilon:
            with torch.no_grad():
                old = self.target_critic(batch.now, self.actions.read(batch.action), noise["critic"])
                old = self.actions.pick(old, batch.action, after=1).movedim(0, -2).flatten(-2)
            near = old + (quantile - old).clamp(-self.cfg.clip_epsilon, self.cfg.clip_epsilon)
            row = torch.maximum(row, self.quantile_loss(near, drawn, target))
        loss = (row * batch.weight).mean() / len(self.tau)
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (quantile.square().mean(-1) * batch.weight).mean()
        mean = quantile.detach().mean(-1)
        return loss, (mean - drawn.mean(target.mean(-1))).abs(), (mean * batch.share).mean()

    def quantile_loss(self, quantile: Tensor, drawn: Drawn, target: Tensor) -> Tensor:
        """The loss [T, B] of quantiles [T, B, N * M], averaged over the choices of targets [T, B, choices, K]."""
        if target.dim() > quantile.dim():
            quantile = quantile.unsqueeze(-2).expand(*target.shape[:-1], -1)
        return drawn.mean(sorted_quantile_huber(quantile, self.tau, target))

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor | float]:
        """E[alpha log pi(a|s) - mean of all quantiles at (s, a)]; E[log pi]; the target entropy"""
        drawn = self.actor(batch.now, noise["layers"]).drawn(noise.get("action"))
        with torch.set_grad_enabled(drawn.reads is not None):
            values = self.critic(batch.now, drawn.reads, noise["actor_critic"])
        values = rank_values(values)
        drawn = self.actions.chosen(drawn, values, self.temperature)
        q, log_prob = drawn.mean(values[0]), drawn.log_prob
        loss = ((self.temperature.cost(log_prob) - q) * batch.share).mean()
        mean = (log_prob.detach() * batch.share).mean((-2, -1))
        return loss, mean, self.actions.entropy_target(batch, drawn)


def rank_values(quantile: Tensor) -> Tensor:
    """The mean of all quantiles [critics, ..., M] as one critic's value [1, ...]: what the actor maximises, and what
    greedy choices are ranked by, in targets too (`discrete_dqn_like`)."""
    return quantile.mean((0, -1)).unsqueeze(0)


def truncated(quantile: Tensor, drop: int) -> Tensor:
    """All quantiles [critics, ..., M] pooled and sorted, without the `critics * drop` largest: [..., K]."""
    pooled = quantile.movedim(0, -2).flatten(-2).sort(-1).values
    return pooled[..., : pooled.shape[-1] - len(quantile) * drop]
