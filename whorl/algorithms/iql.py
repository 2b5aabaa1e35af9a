"""Implicit Q-learning (Kostrikov et al. 2022, arXiv:2110.06169): learns from the actions of a dataset alone.

value:    minimise E[|tau - 1(u < 0)| u^2],  u = min_i Q'_i(s, a) - V(s)                                     (eq. 5)
critics:  minimise sum_i E[(Q_i(s, a) - r - discount * V(s'))^2]                                             (eq. 6)
actor:    maximise E[min(exp(beta (min_i Q'_i(s, a) - V(s))), 100) log pi(a|s)]                              (eq. 7)
targets:  theta' <- tau_target * theta + (1 - tau_target) * theta' for the critics
Actions of any kind: critics read them as one vector (choices one-hot), and only those of the data are evaluated.

Differs from the authors' code: value and critics step at once, from what both were before; the mean of the Gaussian
policy has no tanh, actions are clipped to their bounds.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.protocols import MemoryNet
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.spec import Spec, flat_action_size, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_policy
from whorl.nets.actor import Actor
from whorl.nets.policy import NetworkConfig, Value, policy_head
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.ops.losses import expectile_loss
from whorl.settings.schema import Activation, HiddenSizes, LogStdRange, NonNegative, Positive, Probability


@dataclass(frozen=True)
class IQLConfig(NetworkConfig, ActorCriticConfig):
    unused = ("noisy", "random_steps")
    expectile: Probability = 0.7
    """expectile of Q over the actions of the data that V estimates (the paper's tau): 0.5: mean, near 1: maximum"""
    advantage_beta: NonNegative = 3.0
    """inverse temperature of the advantages by which actions are imitated (the paper's beta); 0: behaviour cloning"""
    advantage_clip: Positive = 100.0
    """upper bound of the weights of actions"""
    actor_hidden_sizes: HiddenSizes = (256, 256)
    """hidden layer sizes of the policy"""
    critic_hidden_sizes: HiddenSizes = (256, 256)
    """hidden layer sizes of V and of each critic"""
    activation: Activation = "relu"
    """activation after each hidden layer"""
    log_std_range: LogStdRange = (-5.0, 2.0)
    """bounds of the log standard deviation"""


class IQL(Agent):
    """Implicit Q-learning: an upper expectile of Q in place of its maximum, and advantage-weighted imitation."""

    Config = IQLConfig
    cfg: IQLConfig
    acts_with = ("observations", "actor")
    shares_unroll = ("actor", "critic", "state_value")

    def __init__(self, spec: Spec, cfg: IQLConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = Preprocessor(spec, cfg)
        self.critic = QEnsemble("critic", spec, cfg, 2, actions=flat_action_size(spec.action))
        self.state_value = Value("value", replace(spec, streams=()), cfg)  # of the sum of all reward streams
        self.actor = Actor(
            "actor", spec, cfg, lambda width: policy_head(spec.action, width, cfg), self.critic.backbone
        )
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_shared_optimizer("critic", "state_value", lr=cfg.critic_lr)
        self.add_optimizers(actor=cfg.actor_lr)

    def networks(self) -> list[MemoryNet]:
        return [*super().networks(), self.state_value]

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        acted = act_by_policy(self, obs, memory, context, log_prob=False)
        if not self.state_value.follows:
            return acted
        after = self.state_value.advance(self.observations(obs), memory, context.reset)
        return Acted(acted.action, {**acted.memory, **after})

    def value(self, rows: Rows) -> Tensor:
        """V(s) of rows [T, B]."""
        return self.state_value(rows)

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, train_actor=True, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        """Noise of dropout."""
        rows, critic = batch.mask.numel(), self.random("critic")
        return {name: self.critic.draw(rows, critic) for name in ("critic", "target_critic")}

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        loss, weight = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        return {"loss/actor": loss.detach(), "policy/advantage_weight": weight}

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The losses of critics and value; the TD errors [T, B]; the mean of Q; the value's loss"""
        action = flatten_action(self.spec.action, batch.action)
        with torch.no_grad():
            target = batch.reward + batch.discount * self.state_value(batch.next)  # [T, B]
        old = self.data_q(batch, noise)
        q = self.critic(batch.now, action, noise["critic"])  # [2, T, B]
        error = q - target
        value_loss = (
            expectile_loss(old - self.state_value(batch.now), self.cfg.expectile) * batch.weight
        ).mean()
        loss = (error.square().sum(0) * batch.weight).mean()
        if self.cfg.q_regularization:
            loss = loss + self.cfg.q_regularization * (q.square().mean(0) * batch.weight).mean()
        metrics = {"loss/value": value_loss.detach()}
        return loss + value_loss, error.detach().abs().mean(0), (q.detach() * batch.share).mean(), metrics

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """-E[min(exp(beta (Q' - V)), clip) log pi(a|s)]; the mean weight"""
        cfg = self.cfg
        with torch.no_grad():
            advantage = self.data_q(batch, noise) - self.state_value(batch.now)
            weight = (cfg.advantage_beta * advantage).exp().clamp(max=cfg.advantage_clip)  # [T, B]
        log_prob = self.actor(batch.now).log_prob(batch.action)
        return -(weight * log_prob * batch.share).mean(), (weight * batch.share).mean()

    @torch.no_grad()
    def data_q(self, batch: Batch, noise: Tree) -> Tensor:
        """min_i Q'_i(s, a) of the data [T, B]"""
        action = flatten_action(self.spec.action, batch.action)
        return self.target_critic(batch.now, action, noise["target_critic"]).amin(0)
