"""Exploration of value-based agents: epsilon-greedy, a softmax over Q values, or a function of your own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from whorl.agents.agent import Context
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, resolve
from whorl.core.spec import MASK_KEY, Spec
from whorl.core.tree import Tree
from whorl.ops.values import best
from whorl.settings.schema import Choice, Fraction, NonNegative, Probability, Temperature

KINDS = ("epsilon", "boltzmann", "none")
Selector = Callable[[Tensor, Tensor | None, torch.Generator, Tensor], Tensor]
"""actions [B] of Q values [B, choices], the mask of allowed actions, a generator and the progress of training"""


@dataclass(frozen=True)
class ExplorationConfig:
    """Settings of how value-based agents explore."""

    exploration: Annotated[Part, Choice("exploration", KINDS)] = Part("epsilon")
    """epsilon-greedy, boltzmann (softmax over Q values), none (noisy layers explore by themselves), or the import path
    of a function of (q, allowed, generator, progress)"""
    exploration_initial_eps: Probability = 1.0
    """probability of a random action at the start"""
    exploration_final_eps: Probability = 0.05
    """probability of a random action after exploration_fraction of the run"""
    exploration_fraction: Fraction = 0.1
    """fraction of the run over which the probability changes linearly"""
    epsilon_alpha: NonNegative = 0.0
    """environment i of N explores with epsilon^(1 + alpha * i / (N - 1)) (Ape-X and R2D2: 7, NGU: 8); 0: all alike"""
    eval_epsilon: Probability = 0.0
    """probability of a random action in evaluation"""
    temperature: Temperature = 1.0
    """boltzmann: temperature of the softmax at the start"""
    temperature_final: Temperature = 0.1
    """boltzmann: temperature after exploration_fraction of the run"""


class Exploration(nn.Module):
    """Epsilon-greedy or a softmax over Q values, with linear schedules; each environment may have its own epsilon."""

    rung: Tensor

    def __init__(self, spec: Spec, cfg: ExplorationConfig) -> None:
        super().__init__()
        self.cfg, self.masked = cfg, spec.masked
        part = Part.of(cfg.exploration)
        self.kind = part.name
        if part.options and self.kind in KINDS:
            raise ConfigError(
                f"exploration {self.kind!r} has no options, but {', '.join(part.options)} is given; its numbers are "
                "settings of their own, such as exploration_final_eps and temperature"
            )
        self.select = None if self.kind in KINDS else selector(part)
        # Not saved: another run may load the weights with a different number of environments.
        rung = 1 + cfg.epsilon_alpha * torch.linspace(0, 1, spec.num_envs)
        self.register_buffer("rung", rung, persistent=False)

    def forward(self, q: Tensor, obs: Tree, context: Context, progress: Tensor) -> Tensor:
        """Actions [B] for Q values [B, choices]."""
        allowed = obs[MASK_KEY] > 0 if self.masked else None
        kind = self.kind
        if context.greedy:
            epsilon = self.cfg.eval_epsilon
            return self._epsilon_greedy(q, allowed, epsilon, context) if epsilon else best(q, allowed)
        if kind == "epsilon":
            return self._epsilon_greedy(q, allowed, self.epsilon(context.env_index, progress), context)
        if self.select is not None:
            return self.select(q, allowed, context.generator, progress)
        return best(q, allowed) if kind == "none" else self._softmax(q, allowed, progress, context)

    def probability(self, q: Tensor, action: Tensor, obs: Tree, context: Context, progress: Tensor) -> Tensor:
        """The probability [B] with which epsilon-greedy exploration takes `action` [B] at Q values [B, choices]."""
        allowed = obs[MASK_KEY] > 0 if self.masked else None
        epsilon: Tensor | float = 1.0
        if not context.random:
            epsilon = self.cfg.eval_epsilon if context.greedy else self.epsilon(context.env_index, progress)
        choices = q.shape[-1] if allowed is None else allowed.sum(-1)
        return epsilon / choices + (1 - epsilon) * (action == best(q, allowed))

    def epsilon(self, env_index: Tensor | None, progress: Tensor) -> Tensor:
        """Probability of a random action: [B], or [] if the environment indices are unknown."""
        cfg = self.cfg
        now = self._annealed(cfg.exploration_initial_eps, cfg.exploration_final_eps, progress)
        if not cfg.epsilon_alpha:
            return now
        return now ** (self.rung.mean() if env_index is None else self.rung[env_index])

    def _annealed(self, first: float, last: float, progress: Tensor) -> Tensor:
        """Linear from `first` to `last` over the first `exploration_fraction` of training."""
        share = self.cfg.exploration_fraction
        done = (progress / share).clamp(max=1) if share else torch.ones_like(progress)
        return first + (last - first) * done

    def _epsilon_greedy(
        self, q: Tensor, allowed: Tensor | None, epsilon: Tensor | float, context: Context
    ) -> Tensor:
        drawn = torch.rand(q.shape[0], q.shape[1] + 1, generator=context.generator, device=q.device)
        return torch.where(drawn[:, 0] < epsilon, best(drawn[:, 1:], allowed), best(q, allowed))

    def _softmax(self, q: Tensor, allowed: Tensor | None, progress: Tensor, context: Context) -> Tensor:
        """A sample from softmax(q / temperature) by the Gumbel-max trick, in which nothing overflows."""
        temperature = self._annealed(self.cfg.temperature, self.cfg.temperature_final, progress)
        drawn = torch.rand(q.shape, generator=context.generator, device=q.device)
        gumbel = -(-drawn.clamp(min=1e-20).log()).log()
        return best(q / temperature + gumbel, allowed)


def selector(part: Part) -> Selector:
    """The action selector that a part names: a function with its options, or an instance of a class."""
    found = resolve("exploration", part.name)
    chosen = construct("exploration", part) if isinstance(found, type) else partial(found, **part.options)
    example = torch.zeros(2, 3)
    try:
        actions = chosen(example, None, torch.Generator().manual_seed(0), torch.zeros(()))
    except TypeError as problem:
        raise ConfigError(
            f"exploration {part.name!r} cannot be called with (q, allowed, generator, progress): {problem}"
        ) from None
    if not isinstance(actions, Tensor) or actions.shape != (2,) or actions.dtype != torch.int64:
        raise ConfigError(
            f"exploration {part.name!r} must return the number of one action per row, int64 [B]"
        )
    return chosen
