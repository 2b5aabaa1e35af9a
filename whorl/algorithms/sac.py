"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for continuous and for discrete actions.

critics:      minimise sum_i E[(Q_i(s, a) - y)^2],  y = r + discount * (min_{i in M} Q'_i(s', a') - alpha log pi(a'|s'))
actor:        minimise E[alpha log pi(a|s) - min_i Q_i(s, a)]
temperature:  minimise -log(alpha) * E[log pi(a|s) + target_entropy]
a, a' are samples of the policy, a squashed Gaussian; log pi is the log-density of the canonical action in [-1, 1].
Discrete actions need no samples (Christodoulou 2019, arXiv:1910.07207): a critic has a value for each action, and Q and
log pi above are their expectations under pi.
M is a random subset of the ensemble, sampled in each update (REDQ, Chen et al. 2021, arXiv:2101.05982).

Differs from the paper: the loss of the temperature is linear in log(alpha), as in most implementations.
"""

from dataclasses import dataclass
from math import log
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_actor
from whorl.nets.actor import Actor, SquashedHead, bounded
from whorl.nets.policy import CategoricalHead
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import EntropyConfig, Temperature, undecayed
from whorl.settings.schema import Fraction, PositiveCount, Range


@dataclass(frozen=True)
class SACConfig(EntropyConfig, ActorCriticConfig):
    entropy_ratio: Fraction = 0.5
    """discrete actions: target entropy as a fraction of the uniform policy's entropy"""
    ensemble_q_num: Annotated[int, Range(1, 1000)] = 2
    """number of critics"""
    ensemble_q_sample: Annotated[int, Range(1, 1000)] = 2
    """critics whose minimum is the target, a random subset in each update"""
    actor_q: Literal["min", "mean", "sample"] = "min"
    """Q estimate that the actor maximises: minimum or mean over all critics, or minimum over a random subset"""
    policy_delay: PositiveCount = 1
    """critic updates per actor update"""


class SAC(Agent):
    """Soft actor-critic: maximises the return plus the entropy of the policy."""

    Config = SACConfig
    cfg: SACConfig
    acts_with = ("observations", "actor")
    shares_unroll = ("actor", "critic")

    def __init__(self, spec: Spec, cfg: SACConfig) -> None:
        super().__init__(spec, cfg)
        if cfg.ensemble_q_sample > cfg.ensemble_q_num:
            raise ConfigError(
                f"ensemble_q_sample is {cfg.ensemble_q_sample}, but there are {cfg.ensemble_q_num} critics; use "
                f"at most {cfg.ensemble_q_num}, or increase ensemble_q_num"
            )
        self.discrete = isinstance(spec.action, Discrete)
        self.observations = Preprocessor(spec, cfg)
        if self.discrete:
            choices = spec.action.n
            self.critic = QEnsemble("critic", spec, cfg, cfg.ensemble_q_num, (choices,))
            auto = cfg.target_entropy == "auto"
            self.target_entropy = cfg.entropy_ratio * log(choices) if auto else float(cfg.target_entropy)
            self.per_row = auto and spec.masked
        else:
            size = bounded(spec, "sac", "continuous or discrete")
            self.critic = QEnsemble("critic", spec, cfg, cfg.ensemble_q_num, actions=size)
            self.target_entropy, self.per_row = cfg.target(size), False
        self.actor = Actor("actor", spec, cfg, self._head, self.critic.backbone)
        self.temperature = Temperature(cfg.alpha, cfg.tune_alpha)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_optimizers(critic=cfg.critic_lr, actor=cfg.actor_lr)
        if cfg.tune_alpha:
            self.add_optimizer(
                "alpha",
                self.temperature,
                undecayed(cfg.optimizer),
                cfg.alpha_lr,
                **self.optimizer_options(0.0),
            )

    def _head(self, width: int) -> nn.Module:
        if self.discrete:
            return CategoricalHead(width, (self.spec.action.n,), single=True)
        return SquashedHead(width, self.spec.action.size, self.cfg.log_std_range)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_actor(self, obs, memory, context)

    def value(self, rows: Rows) -> Tensor:
        """E[min_i Q_i(s, a)] of rows [T, B]; at the mode of the policy if actions are continuous."""
        policy = self.actor(rows)
        if self.discrete:
            return expectation(policy, self.critic(rows).amin(0))[0]
        return self.critic(rows, policy.mode()).amin(0)

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(self, batch, train_actor=train_actor, move_targets=self.targets.due(self.updates))

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        """Steps of the actor and of the temperature."""
        loss, log_prob = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        if self.cfg.tune_alpha:
            self.minimize("alpha", -self.temperature.log_alpha * (log_prob + self.entropy_target(batch)))
        alpha = self.temperature().detach()
        return {"loss/actor": loss.detach(), "policy/entropy": -log_prob, "policy/alpha": alpha}

    def entropy_target(self, batch: Batch) -> Tensor | float:
        """The target entropy; with action masks, the mean over rows of a fraction of each row's maximum entropy."""
        if not self.per_row:
            return self.target_entropy
        allowed = (batch.now.selected[MASK_KEY] > 0).sum(-1).clamp(min=1)  # [T, B]
        return self.cfg.entropy_ratio * (allowed.log() * batch.share).mean()

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions, subsets of critics, noisy layers and dropout."""
        rows, critic, actor = batch.mask.numel(), self.random("critic"), self.random("actor")
        ensemble = self.cfg.ensemble_q_num
        found: dict[str, Any] = {
            "layers": self.actor.draw(actor),
            "next_layers": self.actor.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(rows, critic),
            "actor_critic": self.critic.draw(rows, actor),
        }
        if not self.discrete:
            found["action"] = torch.randn(batch.action.shape, generator=actor, device=self.device)
            found["next_action"] = torch.randn(batch.action.shape, generator=critic, device=self.device)
        if self.cfg.ensemble_q_sample < ensemble:
            found["target_subset"] = torch.rand(ensemble, generator=critic, device=self.device)
            found["actor_subset"] = torch.rand(ensemble, generator=actor, device=self.device)
        return found

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """sum_i E[(Q_i(s, a) - r - discount * (min_j Q'_j - alpha log pi))^2]; the TD errors [T, B]; the mean of Q"""
        with torch.no_grad():
            policy = self.actor(batch.next, noise["next_layers"])
            if self.discrete:
                values = self.target_critic(
                    batch.next, noise=noise["target_critic"]
                )  # [critics, T, B, choices]
                value, log_prob = expectation(policy, self.min_over_subset(values, noise, "target"))  # [T, B]
            else:
                action, log_prob = policy.sample_with_log_prob(noise["next_action"])
                values = self.target_critic(batch.next, action, noise["target_critic"])  # [critics, T, B]
                value = self.min_over_subset(values, noise, "target")
            target = batch.reward + batch.discount * (value - self.temperature() * log_prob)
        if self.discrete:
            values = self.critic(batch.now, noise=noise["critic"])  # [critics, T, B, choices]
            q = values.gather(-1, batch.action.expand(len(values), *batch.action.shape).unsqueeze(-1))[..., 0]
        else:
            q = self.critic(batch.now, batch.action, noise["critic"])  # [critics, T, B]
        error = q - target
        loss = (error.square().sum(0) * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        return loss, error.detach().abs().mean(0), q.detach().mean()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """E[alpha log pi(a|s) - Q(s, a)]; E[log pi]"""
        policy = self.actor(batch.now, noise["layers"])
        if self.discrete:
            with torch.no_grad():
                values = self.critic(batch.now, noise=noise["actor_critic"])
            q, log_prob = expectation(policy, self.actor_q(values, noise))
        else:
            action, log_prob = policy.sample_with_log_prob(noise["action"])
            q = self.actor_q(self.critic(batch.now, action, noise["actor_critic"]), noise)
        alpha = self.temperature().detach()
        loss = ((alpha * log_prob - q) * batch.share).mean()
        return loss, (log_prob.detach() * batch.share).mean()

    def actor_q(self, values: Tensor, noise: Tree) -> Tensor:
        """The Q estimate that the actor maximises: [critics, ...] -> [...]."""
        if self.cfg.actor_q == "mean":
            return values.mean(0)
        return values.amin(0) if self.cfg.actor_q == "min" else self.min_over_subset(values, noise, "actor")

    def min_over_subset(self, values: Tensor, noise: Tree, which: str) -> Tensor:
        """The minimum over a random subset of the critics: [critics, ...] -> [...]."""
        if self.cfg.ensemble_q_sample == len(values):
            return values.amin(0)
        subset = noise[f"{which}_subset"].topk(self.cfg.ensemble_q_sample).indices
        return values.index_select(0, subset).amin(0)


def expectation(policy: Any, values: Tensor) -> tuple[Tensor, Tensor]:
    """sum_a pi(a) Q(a) and sum_a pi(a) log pi(a) of a categorical policy, with values [..., choices]."""
    probs = policy.probs
    return (probs * values).sum(-1), (probs * policy.log_probs).sum(-1)
