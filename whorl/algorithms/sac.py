"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for continuous, discrete and mixed actions.

critics:      minimise sum_i E[(Q_i(s, a) - y)^2],  y = r + discount * (min_{i in M} Q'_i(s', a') - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - min_i Q_i(s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
Continuous actions c are samples of the policy, a squashed Gaussian; log pi is the log-density of the canonical action
in [-1, 1]. Discrete actions d need no samples (Christodoulou 2019, arXiv:1910.07207): critics have a value for each,
and Q and log pi above are their expectations under pi. With both, pi(d, c) = pi(d) pi(c), or pi(d) pi(c|d) (Delalleau
et al. 2019, arXiv:1912.11077). Each kind has a temperature then, and alpha log pi above is
sum_d pi(d) (alpha_d log pi(d) + alpha_c log pi(c|d)); see `whorl.nets.soft_actions`.
M is a random subset of the ensemble, sampled in each update (REDQ, Chen et al. 2021, arXiv:2101.05982).
With `n_atoms` the critics predict the distribution of the return (see `whorl.nets.atoms`): y is the distribution of the
critic in M with the lowest mean, moved by r and the entropy bonus, and the loss is the cross entropy, for continuous
actions only.
cql_weight:   the critics' loss grows by cql_weight * sum_i E[log sum_a exp Q_i(s, a) - Q_i(s, a_data)], so that actions
              that the data lack are not overestimated (CQL(H), Kumar et al. 2020, arXiv:2006.04779, eq. 4). Over
              continuous actions the sum is the integral, estimated by importance sampling from N uniform actions and N
              of the policy: log 1/(2N) sum_k exp(Q_i(s, a_k) - log density(a_k))                       (appendix F)
cql_target_gap: the weight w is a Lagrange multiplier, tuned by max_w w * (mean_i term_i - cql_target_gap)  (appendix F)

Differs from the paper: the loss of the temperature is linear in log(alpha), as in most implementations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import log, prod
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.correction import CorrectionConfig, NStepTargets
from whorl.agents.families import ActorCriticConfig
from whorl.agents.optimizers import ByHand
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Continuous, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_soft_actor, acting_tensors_with_critic
from whorl.explore.noise import AddedNoise, AddedNoiseConfig
from whorl.nets.actor import Actor
from whorl.nets.atoms import AtomsConfig, ReturnAtoms, advice_on_clipping
from whorl.nets.layers import last_of
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.soft_actions import SoftActions, SoftActionsConfig
from whorl.nets.temperature import Temperature, without_weight_decay
from whorl.ops.distributions import MASKED_LOGIT
from whorl.ops.drawn import Drawn
from whorl.ops.losses import clipped_value_loss
from whorl.settings.schema import NonNegative, PositiveCount, Range


@dataclass(frozen=True)
class SACConfig(SoftActionsConfig, AddedNoiseConfig, CorrectionConfig, AtomsConfig, ActorCriticConfig):
    ensemble_q_num: Annotated[int, Range(1, 1000)] = 2
    """number of critics"""
    ensemble_q_sample: Annotated[int, Range(1, 1000)] = 2
    """critics whose minimum is the target, a random subset in each update"""
    actor_q: Literal["min", "mean", "sample"] = "min"
    """Q estimate that the actor maximises: minimum or mean over all critics, or minimum over a random subset"""
    policy_delay: PositiveCount = 1
    """critic updates per actor update"""
    backup_entropy: bool = True
    """include the entropy bonus in the critics' targets; false: the actor alone is rewarded for entropy (CQL, RLPD)"""
    cql_weight: NonNegative = 0.0
    """weight of the conservative term in the critics' loss, for learning from a dataset (CQL: 5); 0: off"""
    cql_actions: PositiveCount = 10
    """with cql_weight, for continuous actions: random actions, and as many of the policy, that estimate the term"""
    cql_target_gap: NonNegative = 0.0
    """with cql_weight: the weight starts there and is tuned so that the conservative term of a critic is at most this,
    as in CQL with a Lagrange multiplier (5 or 10 in the paper); 0: the weight is fixed"""


class SAC(Agent):
    """Soft actor-critic: maximises the return plus the entropy of the policy."""

    Config = SACConfig
    cfg: SACConfig
    acts_with = ("observations", "actor", "noise")
    shares_unroll = ("actor", "critic")

    def __init__(self, spec: Spec, cfg: SACConfig) -> None:
        super().__init__(spec, cfg)
        if cfg.ensemble_q_sample > cfg.ensemble_q_num:
            raise ConfigError(
                f"ensemble_q_sample is {cfg.ensemble_q_sample}, but there are {cfg.ensemble_q_num} critics; use "
                f"at most {cfg.ensemble_q_num}, or increase ensemble_q_num"
            )
        self.observations = Preprocessor(spec, cfg)
        self.actions = SoftActions(spec, cfg, "sac")
        self.returns = NStepTargets(cfg, self.observations, self.actions)
        self.noise = AddedNoise(spec, cfg)
        if cfg.cql_weight:
            self.actions.check_one_kind("cql_weight")
        elif cfg.cql_target_gap:
            raise ConfigError(
                f"cql_target_gap is {cfg.cql_target_gap:g}, but cql_weight is 0; set cql_weight to the weight to start "
                "with, or leave cql_target_gap out"
            )
        if self.noise.on and self.returns.columns:
            raise ConfigError(
                "use_n_step_is needs the probabilities of actions, which action_noise changes; leave one of them out"
            )
        if not cfg.backup_entropy and self.returns.corrects:
            raise ConfigError(
                "V-trace adds the entropy of every step to the targets, but backup_entropy is false; leave one of "
                "them out"
            )
        self.atoms = ReturnAtoms(cfg)
        if self.atoms.on:
            _check_atoms(spec, cfg)
        ensemble = (cfg.ensemble_q_num, self.actions.outputs + self.atoms.outputs, self.actions.inputs)
        self.critic = QEnsemble("critic", spec, cfg, *ensemble)
        head = partial(self.actions.head, last=last_of(cfg.actor_head))
        self.actor = Actor("actor", spec, cfg, head, self.critic.backbone)
        self.actions.check_memory(self.critic)
        self.temperature = self.actions.temperature()
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_optimizers(critic=cfg.critic_lr, actor=cfg.actor_lr)
        if cfg.tune_alpha:
            self.add_optimizer(
                "alpha",
                self.temperature,
                without_weight_decay(cfg.optimizer),
                cfg.alpha_lr,
                **self.optimizer_options(0.0),
            )
        if cfg.cql_target_gap:
            self.cql_multiplier = Temperature(cfg.cql_weight, True)
            options = self.optimizer_options(0.0)
            self.add_optimizer(
                "cql", self.cql_multiplier, without_weight_decay(cfg.optimizer), cfg.critic_lr, **options
            )

    def initial_memory(self, num_envs: int) -> Tree:
        return {**self.noise.initial(num_envs), **super().initial_memory(num_envs)}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_soft_actor(self, obs, memory, context)

    def acting_tensors(self) -> list[Tensor]:
        return acting_tensors_with_critic(self, super().acting_tensors())

    def q_of_choices(self, rows: Rows, reads: Tensor) -> Tensor:
        return self.critic(rows, reads)

    def value(self, rows: Rows) -> Tensor:
        """E[min_i Q_i(s, a)] of rows [T, B]; at the mode of the policy where actions are continuous."""
        drawn = self.actor(rows).drawn()
        values = self.atoms.mean(self.critic(rows, drawn.reads))
        drawn = self.actions.chosen(drawn, values, self.temperature, 0.0)
        return self.actions.expected(drawn, values, partial(torch.amin, dim=0))

    def columns(self) -> dict[str, Array]:
        return {**super().columns(), **self.returns.columns}

    def refreshed(self, batch: Batch) -> dict[str, Tree]:
        found = self.returns.refreshed(self.actor, batch.replace(obs=self.observations(batch.obs)))
        return {**super().refreshed(batch), **found}

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(
            self,
            batch,
            train_actor=train_actor,
            move_targets=self.targets.due(self.updates),
            tune_weight=self.cfg.cql_target_gap > 0,
        )

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        """Steps of the actor and of the temperature."""
        loss, log_prob, target = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        if self.cfg.tune_alpha:
            too_low = log_prob + target
            self.minimize("alpha", ByHand((-too_low,)))  # the derivative of -log(alpha) * too_low
        return {"loss/actor": loss.detach(), **self.actions.metrics(log_prob, self.temperature().detach())}

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions, subsets of critics, noisy layers and dropout."""
        rows, critic, actor = batch.mask.numel(), self.random("critic"), self.random("actor")
        after = self.returns.shape(batch)
        ensemble = self.cfg.ensemble_q_num
        found: dict[str, Any] = {
            "layers": self.actor.draw(actor),
            "next_layers": self.actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(prod(after) * self.actions.passes, critic),
            "actor_critic": self.critic.draw(rows * self.actions.passes, actor),
        }
        if self.actions.parts.size:
            found["action"] = self.actions.noise(batch.shape, actor)
            found["next_action"] = self.actions.noise(after, critic)
        if self.cfg.cql_weight and self.actions.parts.size:
            shape = (*batch.shape, self.cfg.cql_actions, self.actions.parts.size)
            found["cql_uniform"] = torch.rand(shape, generator=critic, device=self.device) * 2 - 1
            found["cql_policy"] = torch.randn(shape, generator=critic, device=self.device)
        if self.cfg.ensemble_q_sample < ensemble:
            found["target_subset"] = torch.rand(ensemble, generator=critic, device=self.device)
            found["actor_subset"] = torch.rand(ensemble, generator=actor, device=self.device)
        return found

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Any, ...]:
        """sum_i E[(Q_i(s, a) - r - discount * (min_j Q'_j - alpha log pi))^2]; the TD errors [T, B]; the mean of Q"""
        if self.atoms.on:
            return self.distribution_loss(batch, noise)
        with torch.no_grad():
            rows = self.returns.rows(batch)
            policy = self.actor(rows, noise["next_layers"])
            drawn = policy.drawn(noise.get("next_action"))
            values = self.target_critic(rows, drawn.reads, noise["target_critic"], self.target_subset(noise))
            drawn = self.actions.chosen(drawn, values, self.temperature, 0.0)
            value = self.actions.expected(
                drawn, values, partial(self.min_over_subset, noise=noise, which="target")
            )
            soft = value + self.entropy_bonus(drawn)
            reward, discount, soft = self.returns.corrected(batch, soft, soft, policy, self.temperature)
            target = reward + discount * soft
        values = self.critic(batch.now, self.actions.read(batch.action), noise["critic"])
        q = self.actions.pick(values, batch.action)  # [critics, T, B]
        error = q - target
        squares = error.square()
        if self.cfg.clip_epsilon:
            with torch.no_grad():
                old = self.target_critic(batch.now, self.actions.read(batch.action), noise["critic"])
                old = self.actions.pick(old, batch.action)
            squares = 2 * clipped_value_loss(q, old, target.expand_as(q), self.cfg.clip_epsilon)
        loss = (squares.sum(0) * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        found = loss, error.detach().abs().mean(0), (q.detach() * batch.share).mean()
        if not self.cfg.cql_weight:
            return found
        gap = ((self.log_sum_exp(batch, values, noise) - q).sum(0) * batch.weight).mean()
        weight = self.cql_multiplier().detach() if self.cfg.cql_target_gap else self.cfg.cql_weight
        return loss + weight * gap, *found[1:], {"q/conservative_gap": gap.detach()}

    def entropy_bonus(self, drawn: Drawn) -> Tensor | float:
        """Entropy bonus of the targets: -alpha log pi, or nothing without `backup_entropy`."""
        return -self.temperature.cost(drawn.log_prob) if self.cfg.backup_entropy else 0.0

    def tune_weight(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """A step of the conservative term's weight up w * (mean_i term_i - cql_target_gap)."""
        excess = found["q/conservative_gap"] / self.cfg.ensemble_q_num - self.cfg.cql_target_gap
        self.minimize("cql", -self.cql_multiplier() * excess)
        with torch.no_grad():
            self.cql_multiplier.log_alpha.clamp_(max=log(1e6))  # as the authors do
        return {"q/conservative_weight": self.cql_multiplier().detach()}

    def log_sum_exp(self, batch: Batch, values: Tensor, noise: Tree) -> Tensor:
        """log sum_a exp Q_i(s, a) over all actions [critics, T, B]; `values` are those of all discrete ones."""
        if not self.actions.parts.size:
            if self.actions.masked:
                # Not -inf: a final observation may allow no action, and 0 * inf would be nan.
                values = values.masked_fill(batch.now.selected[MASK_KEY] == 0, MASKED_LOGIT)
            return values.logsumexp(-1)
        with torch.no_grad():
            policy = self.actor(batch.now, noise["next_layers"])
            own, log_prob = self.actions.several(policy, noise["cql_policy"])  # [T, B, N, size], [T, B, N]
            action = torch.cat((noise["cql_uniform"], own), -2)
            uniform = torch.full_like(log_prob, -log(2) * self.actions.parts.size)
            log_density = torch.cat((uniform, log_prob), -1)  # [T, B, 2N]
        q = self.critic(batch.now, action)  # [critics, T, B, 2N]
        return (q - log_density).logsumexp(-1) - log(q.shape[-1])

    @pure
    def distribution_loss(self, batch: Batch, noise: Tree) -> tuple[Any, ...]:
        """-sum_i E[sum_k m_k log p_ik(s, a)], m the projection of r + discount * (z - alpha log pi); the divergences
        [T, B]; the mean of Q; how much of the targets was clipped"""
        cfg = self.cfg
        with torch.no_grad():
            drawn = self.actor(batch.next, noise["next_layers"]).drawn(noise["next_action"])
            subset = self.target_subset(noise)
            after = self.target_critic(batch.next, drawn.reads, noise["target_critic"], subset)
            prob = self.atoms.lowest(self.subset(after, noise, "target"))  # [T, B, atoms]
            bonus = self.entropy_bonus(drawn)
            target, outside = self.atoms.target(prob, batch.reward + batch.discount * bonus, batch.discount)
        answers = self.critic(batch.now, self.actions.read(batch.action), noise["critic"])
        losses, divergence = self.atoms.losses(answers, target)  # [critics, T, B]
        q = self.atoms.mean(answers)
        loss = (losses.sum(0) * batch.weight).mean()
        if cfg.q_regularization:
            loss = loss + cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        mean = (q.detach() * batch.share).mean()
        return loss, divergence.mean(0), mean, self.atoms.metrics(outside, batch)

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor | float]:
        """E[alpha log pi(a|s) - Q(s, a)]; E[log pi]; the target entropy"""
        drawn = self.actor(batch.now, noise["layers"]).drawn(noise.get("action"))
        with torch.set_grad_enabled(drawn.reads is not None):
            values = self.atoms.mean(self.critic(batch.now, drawn.reads, noise["actor_critic"]))
        drawn = self.actions.chosen(drawn, values, self.temperature)
        q = self.actions.expected(drawn, values, partial(self.actor_q, noise=noise))
        log_prob = drawn.log_prob
        loss = ((self.temperature.cost(log_prob) - q) * batch.share).mean()
        mean = (log_prob.detach() * batch.share).mean((-2, -1))
        return loss, mean, self.actions.entropy_target(batch, drawn)

    def actor_q(self, values: Tensor, noise: Tree) -> Tensor:
        """The Q estimate that the actor maximises: [critics, ...] -> [...]."""
        if self.cfg.actor_q == "mean":
            return values.mean(0)
        return values.amin(0) if self.cfg.actor_q == "min" else self.min_over_subset(values, noise, "actor")

    def min_over_subset(self, values: Tensor, noise: Tree, which: str) -> Tensor:
        """The minimum over a random subset of the critics: [critics, ...] -> [...]."""
        return self.subset(values, noise, which).amin(0)

    def subset(self, values: Tensor, noise: Tree, which: str) -> Tensor:
        """Values of a random subset of the critics: [critics, ...] -> [ensemble_q_sample, ...]."""
        if self.cfg.ensemble_q_sample == len(values):
            return values
        return values.index_select(0, self._subset(noise, which))

    def target_subset(self, noise: Tree) -> Tensor | None:
        """The target critics to evaluate; None: all, because all count or greedy choices read all."""
        if self.cfg.ensemble_q_sample == self.cfg.ensemble_q_num or self.actions.greedy:
            return None
        return self._subset(noise, "target")

    def _subset(self, noise: Tree, which: str) -> Tensor:
        return noise[f"{which}_subset"].topk(self.cfg.ensemble_q_sample).indices

    def advice(self, metrics: Mapping[str, float]) -> str | None:
        return advice_on_clipping(self.cfg, metrics)


def _check_atoms(spec: Spec, cfg: SACConfig) -> None:
    if not isinstance(spec.action, Continuous):
        raise ConfigError(
            "n_atoms needs continuous actions alone; leave it out, or use c51 for discrete ones"
        )
    for key in ("use_n_step_is", "clip_epsilon", "cql_weight"):
        if getattr(cfg, key):
            raise ConfigError(
                f"n_atoms and {key} are both set, but {key} is about mean values; leave one out"
            )
    if not cfg.use_replay_buffer:
        raise ConfigError("n_atoms needs the replay buffer; leave it out, or set use_replay_buffer to true")
