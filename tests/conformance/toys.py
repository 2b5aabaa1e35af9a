"""Four small agents that try the seams: on-policy, replayed transitions, replayed sequences, priorities.

They are here to break the foundation, not to learn well.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whorl import register
from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.replay import Replay
from whorl.data.samplers import Priorities
from whorl.data.views import Sequences, Transitions
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.memory import MemorySettings
from whorl.nets.policy import Policy
from whorl.ops import blank, discounted_return, masked_mean, n_step_return, polyak_

FLAT = (Part("mlp"), Part("flat"))


@dataclass(frozen=True)
class PolicyGradientConfig(OnPolicyConfig):
    gamma: float = 0.9
    normalize_obs: bool = False


class ToyPolicyGradient(Agent):
    """The policy gradient with plain returns: all actions, all memories."""

    Config = PolicyGradientConfig
    cfg: PolicyGradientConfig

    def __init__(self, spec: Spec, cfg: PolicyGradientConfig) -> None:
        super().__init__(spec, cfg)
        self.actor = Policy("actor", spec, cfg)
        self.add_optimizer("actor", self.actor, cfg.optimizer, cfg.actor_lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return self.actor.backbone.initial_memory(num_envs, self.device)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        policy, after = self.actor.step(obs, memory, context.reset)
        action = policy.mode() if context.greedy else policy.sample(policy.noise(context.generator))
        return Acted(action, after, {"log_prob": policy.log_prob(action)})

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        none = torch.zeros_like(batch.reset, dtype=batch.reward.dtype)
        returns = discounted_return(batch.reward, batch.discount, batch.keep, none)
        action = tree.map(lambda leaf: torch.where(tree.expand(batch.mask > 0, leaf), leaf, 0), batch.action)
        log_prob = self.actor(batch.now).log_prob(action)
        loss = -masked_mean(log_prob * blank(returns, batch.mask), batch.mask)
        norm = self.minimize("actor", loss, measure=True)
        return Updated({"loss/actor": loss.detach(), "gradient/actor": norm})


@dataclass(frozen=True)
class QConfig:
    hidden_sizes: tuple[int, ...] = (32,)
    gamma: float = 0.9
    n_step: int = 3
    learning_rate: float = 1e-3
    tau: float = 0.05
    epsilon: float = 0.3
    buffer_size: int = 2000
    batch_size: int = 32
    updates_per_step: float = 0.03
    learning_starts: int = 40


class QNet(nn.Module):
    """Rows -> a value per action; actions that are not allowed are far below."""

    def __init__(self, spec: Spec, hidden: tuple[int, ...], memory: Any = "none", size: int = 8) -> None:
        super().__init__()
        self.backbone = Backbone(
            "q", spec.observation, BackboneSettings(hidden, "tanh", *FLAT, MemorySettings(memory, size))
        )
        self.head = nn.Linear(self.backbone.size, spec.action.n)
        self.masked = spec.masked

    def forward(self, rows: Rows) -> Tensor:
        return self._allowed(self.head(self.backbone(rows)), rows.selected)

    def step(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Tensor, Tree]:
        features, after = self.backbone.step(obs, memory, reset)
        return self._allowed(self.head(features), obs), after

    def _allowed(self, q: Tensor, obs: Tree) -> Tensor:
        return torch.where(obs[MASK_KEY] > 0, q, -1e6) if self.masked else q


def explore(q: Tensor, epsilon: float, context: Context) -> Tensor:
    """The best action, or with probability `epsilon` any that is allowed."""
    if context.greedy:
        return q.argmax(-1)
    noise = torch.rand(q.shape, generator=context.generator, device=q.device)
    random = torch.where(q > -1e5, noise, -1.0).argmax(-1)
    drawn = torch.rand(q.shape[:-1], generator=context.generator, device=q.device)
    return torch.where(drawn < epsilon, random, q.argmax(-1))


def only(kind: type, spec: Spec, name: str) -> None:
    if not isinstance(spec.action, kind):
        raise ConfigError(f"{name} takes {kind.__name__} actions only, not {spec.action}")


class ToyQ(Agent):
    """Q-learning on replayed transitions, n-step."""

    Config = QConfig
    cfg: QConfig

    def __init__(self, spec: Spec, cfg: QConfig) -> None:
        super().__init__(spec, cfg)
        only(Discrete, spec, "toy_q")
        self.q = QNet(spec, cfg.hidden_sizes)
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.add_optimizer("q", self.q, Part("Adam"), cfg.learning_rate)

    def experience(self, generator: torch.Generator) -> Replay:
        cfg = self.cfg
        return Replay(
            self.spec,
            self.device,
            generator,
            view=Transitions(cfg.n_step),
            gamma=self.gamma,
            buffer_size=cfg.buffer_size,
            batch_size=cfg.batch_size,
            updates_per_step=cfg.updates_per_step,
            learning_starts=cfg.learning_starts,
            extras={"chosen": Array(())},
        )

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        q, _ = self.q.step(obs, memory, context.reset)
        action = explore(q, self.cfg.epsilon, context)
        return Acted(action, {}, {"chosen": q.gather(-1, action.unsqueeze(-1)).squeeze(-1)})

    def value(self, rows: Rows) -> Tensor:
        return self.q(rows).amax(-1)

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        loss = self.loss(batch)
        norm = self.minimize("q", loss, measure=True)
        polyak_(self.target, self.q, self.cfg.tau)
        return Updated({"loss/critic": loss.detach(), "gradient/critic": norm})

    @pure
    def loss(self, batch: Batch) -> Tensor:
        """E[(Q(s, a) - r - discount * max_a' Q'(s', a'))^2]"""
        with torch.no_grad():
            target = batch.reward + batch.discount * self.target(batch.next).amax(-1)
        q = self.q(batch.now).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        return masked_mean(blank(q - target, batch.mask).square(), batch.mask)


@dataclass(frozen=True)
class RecurrentConfig(QConfig):
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: int = 8
    chunk: int = 8
    length: int = 6
    burn_in: int = 2
    batch_size: int = 8


class ToyRecurrentQ(Agent):
    """Q-learning on replayed sequences from stored memory, with burn-in and n-step targets over T + n rows."""

    Config = RecurrentConfig
    cfg: RecurrentConfig

    def __init__(self, spec: Spec, cfg: RecurrentConfig) -> None:
        super().__init__(spec, cfg)
        only(Discrete, spec, "toy_recurrent_q")
        self.q = QNet(spec, cfg.hidden_sizes, cfg.memory, cfg.memory_size)
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.add_optimizer("q", self.q, Part("Adam"), cfg.learning_rate)

    def initial_memory(self, num_envs: int) -> Tree:
        return self.q.backbone.initial_memory(num_envs, self.device)

    def experience(self, generator: torch.Generator) -> Replay:
        cfg = self.cfg
        return Replay(
            self.spec,
            self.device,
            generator,
            view=Sequences(cfg.length + cfg.n_step - 1, cfg.burn_in, self.stride),
            gamma=self.gamma,
            buffer_size=cfg.buffer_size,
            batch_size=cfg.batch_size,
            updates_per_step=cfg.updates_per_step,
            learning_starts=cfg.learning_starts,
            memory=self.initial_memory(1),
            stride=self.stride,
            priorities=Priorities(beta_steps=1000),
        )

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        q, after = self.q.step(obs, memory, context.reset)
        return Acted(explore(q, self.cfg.epsilon, context), after)

    def value(self, rows: Rows) -> Tensor:
        return self.q(rows).amax(-1)

    def update(self, batch: Batch) -> Updated:
        return self.step(batch)

    @captured
    def step(self, batch: Batch) -> Updated:
        loss, error = self.loss(batch)
        norm = self.minimize("q", loss, measure=True)
        polyak_(self.target, self.q, self.cfg.tau)
        return Updated({"loss/critic": loss.detach(), "gradient/critic": norm}, priority=error)

    @pure
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """E[(Q(s, a) - n-step return)^2] over the rows that see n rows ahead"""
        with torch.no_grad():
            value = self.target(batch.all).amax(-1)
            target = n_step_return(batch.reward, batch.discount, value, batch.keep, self.cfg.n_step)
        q = self.q(batch.now).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        mask = batch.mask.clone()
        mask[self.cfg.burn_in + self.cfg.length :].zero_()
        error = blank(q - target, mask)
        loss = error.square() * batch.extras["weight"]
        return masked_mean(loss, mask), error.detach()


@dataclass(frozen=True)
class ActorCriticConfig:
    hidden_sizes: tuple[int, ...] = (32,)
    gamma: float = 0.9
    n_step: int = 2
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    tau: float = 0.05
    noise: float = 0.3
    policy_delay: int = 2
    buffer_size: int = 2000
    batch_size: int = 32
    updates_per_step: float = 0.03
    learning_starts: int = 40


class ActionNet(nn.Module):
    def __init__(self, spec: Spec, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = Backbone("actor", spec.observation, BackboneSettings(hidden, "tanh", *FLAT))
        self.head = nn.Linear(self.backbone.size, spec.action.size)

    def forward(self, rows: Rows) -> Tensor:
        return self.head(self.backbone(rows)).tanh()

    def step(self, obs: Tree, reset: Tensor) -> Tensor:
        return self.head(self.backbone.step(obs, {}, reset)[0]).tanh()


class ActionValue(nn.Module):
    def __init__(self, spec: Spec, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = Backbone("critic", spec.observation, BackboneSettings(hidden, "tanh", *FLAT))
        self.action = nn.Linear(self.backbone.size + spec.action.size, hidden[-1])
        self.head = nn.Linear(hidden[-1], 1)

    def forward(self, rows: Rows, action: Tensor) -> Tensor:
        both = torch.cat((self.backbone(rows), action), -1)
        return self.head(self.action(both).tanh())[..., 0]


class ToyActorCritic(Agent):
    """A deterministic actor-critic on prioritized transitions; the actor moves every second update."""

    Config = ActorCriticConfig
    cfg: ActorCriticConfig

    def __init__(self, spec: Spec, cfg: ActorCriticConfig) -> None:
        super().__init__(spec, cfg)
        only(Continuous, spec, "toy_actor_critic")
        self.actor = ActionNet(spec, cfg.hidden_sizes)
        self.critic = ActionValue(spec, cfg.hidden_sizes)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.add_optimizer("actor", self.actor, Part("Adam"), cfg.actor_lr)
        self.add_optimizer("critic", self.critic, Part("Adam"), cfg.critic_lr)

    def experience(self, generator: torch.Generator) -> Replay:
        cfg = self.cfg
        return Replay(
            self.spec,
            self.device,
            generator,
            view=Transitions(cfg.n_step),
            gamma=self.gamma,
            buffer_size=cfg.buffer_size,
            batch_size=cfg.batch_size,
            updates_per_step=cfg.updates_per_step,
            learning_starts=cfg.learning_starts,
            priorities=Priorities(beta_steps=1000),
        )

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        action = self.actor.step(obs, context.reset)
        if not context.greedy:
            noise = torch.randn(action.shape, generator=context.generator, device=action.device)
            action = (action + self.cfg.noise * noise).clamp(-1, 1)
        return Acted(action, {})

    def value(self, rows: Rows) -> Tensor:
        return self.critic(rows, self.actor(rows))

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, train_actor=self.updates % self.cfg.policy_delay == 0)

    @captured
    def step(self, batch: Batch, *, train_actor: bool) -> Updated:
        loss, error = self.critic_loss(batch)
        metrics = {
            "loss/critic": loss.detach(),
            "gradient/critic": self.minimize("critic", loss, measure=True),
        }
        if train_actor:
            self.minimize("actor", -masked_mean(self.value(batch.now), batch.mask))
            polyak_(self.target_actor, self.actor, self.cfg.tau)
        polyak_(self.target_critic, self.critic, self.cfg.tau)
        return Updated(metrics, priority=error)

    @pure
    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """E[weight * (Q(s, a) - r - discount * Q'(s', mu'(s')))^2]"""
        with torch.no_grad():
            value = self.target_critic(batch.next, self.target_actor(batch.next))
            target = batch.reward + batch.discount * value
        error = blank(self.critic(batch.now, batch.action) - target, batch.mask)
        return (error.square() * batch.weight).mean(), error.detach()


TOYS = {
    "toy_policy_gradient": ToyPolicyGradient,
    "toy_q": ToyQ,
    "toy_recurrent_q": ToyRecurrentQ,
    "toy_actor_critic": ToyActorCritic,
}
for name, toy in TOYS.items():
    register("algorithm", name, toy)


def documented_metrics() -> set[str]:
    """The names in the table of docs/metrics.md."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    cells = re.findall(r"^\|([^|]+)\|", page.read_text("utf-8"), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
