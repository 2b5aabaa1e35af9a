"""Exploration noise on continuous actions, and uniformly random actions."""

from dataclasses import dataclass
from math import log
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from whorl.agents.agent import Context
from whorl.core import tree
from whorl.core.action_masks import mask_size
from whorl.core.action_parts import ActionParts
from whorl.core.spec import MASK_KEY, ActionLeaf, Continuous, Discrete, Spec, action_choices
from whorl.core.tree import Tree
from whorl.settings.schema import Fraction, Probability, Range


@dataclass(frozen=True)
class NoiseConfig:
    """Settings of the action noise of deterministic policies."""

    noise: Literal["gaussian", "ou", "none"] = "gaussian"
    """action noise: independent Gaussian, Ornstein-Uhlenbeck, or none"""
    noise_scale: Annotated[float | tuple[float, float], Range(0, 10**6)] = 0.1
    """its standard deviation, for actions scaled to [-1, 1]; two numbers are spread evenly over the environments"""
    noise_theta: Fraction = 0.15
    """rate at which Ornstein-Uhlenbeck noise returns to zero"""
    noise_final: Fraction = 1.0
    """factor of the noise at the end of the run, reached linearly"""
    epsilon: Probability = 0.0
    """probability of a uniformly random action instead"""


@dataclass(frozen=True)
class AddedNoiseConfig:
    """Settings of noise beside that of a stochastic policy."""

    action_noise: Annotated[float | tuple[float, float], Range(0, 10**6)] = 0.0
    """standard deviation of Gaussian noise that is added to sampled continuous actions, scaled to [-1, 1]; two numbers
    are spread evenly over the environments"""


MEMORY = "noise"
"""key of the noise process in an agent's memory"""


def random_action(spec: Spec, obs: Tree, generator: torch.Generator) -> Tree:
    """Uniformly random canonical actions for every environment of `obs`; masked actions are not taken."""
    like = tree.first(obs)
    num_envs, device = like.shape[0], like.device
    allowed = _masks_by_leaf(spec, obs)

    def leaf(action: ActionLeaf, mask: Tensor | None) -> Tensor:
        if isinstance(action, Continuous):
            return torch.rand(num_envs, action.size, generator=generator, device=device) * 2 - 1
        if isinstance(action, Discrete):
            chance = torch.rand(num_envs, action.n, generator=generator, device=device)
            return (chance if mask is None else torch.where(mask, chance, -1.0)).argmax(-1)
        if mask is None:
            chance = torch.rand(num_envs, len(action.nvec), generator=generator, device=device)
            return torch.stack([(part * n).long() for part, n in zip(chance.unbind(-1), action.nvec)], -1)
        chance = torch.where(mask, torch.rand(mask.shape, generator=generator, device=device), -1.0)
        return torch.stack([part.argmax(-1) for part in chance.split(action.nvec, -1)], -1)

    return tree.map(leaf, spec.action, allowed)


def random_log_prob(spec: Spec, obs: Tree) -> Tensor:
    """The log-probability [B] of each `random_action`: of continuous dimensions a density of 1/2 each."""
    like = tree.first(obs)
    parts = ActionParts.of(spec.action)
    found = torch.full((like.shape[0],), -parts.size * log(2), device=like.device)
    if not spec.masked:
        return found - sum(log(n) for n in parts.options)
    for allowed in (obs[MASK_KEY] > 0).split(parts.options, -1):
        found = found - allowed.sum(-1).clamp(min=1).log()
    return found


def _masks_by_leaf(spec: Spec, obs: Tree) -> Tree:
    """The part of the flat action mask of each leaf of the action tree [B, options]; None without masks."""
    at = 0

    def leaf(action: ActionLeaf) -> Tensor | None:
        nonlocal at
        if not spec.masked or isinstance(action, Continuous):
            return None
        first, at = at, at + mask_size(action_choices(action))
        return obs[MASK_KEY][..., first:at] > 0

    return tree.map(leaf, spec.action)


def spread(scale: float | tuple[float, float], num_envs: int) -> Tensor:
    """One number, or two spread evenly over the environments: [environments, 1]."""
    low, high = scale if isinstance(scale, tuple) else (scale, scale)
    return torch.linspace(low, high, num_envs).unsqueeze(1)


class AddedNoise(nn.Module):
    """Gaussian noise on the continuous parts of actions that a policy has sampled."""

    scale: Tensor

    def __init__(self, spec: Spec, cfg: AddedNoiseConfig) -> None:
        super().__init__()
        scale = spread(cfg.action_noise, spec.num_envs)
        self.on = bool(scale.any())
        """whether there is noise"""
        self.action = spec.action
        self.register_buffer("scale", scale, persistent=False)  # as in `ActionNoise`

    def forward(self, action: Tree, context: Context) -> Tree:
        """The action with noise, clipped to [-1, 1]; as it was for greedy actions and outside of training."""
        if not self.on or context.greedy or context.env_index is None:
            return action
        scale = self.scale[context.env_index]

        def leaf(kind: ActionLeaf, value: Tensor) -> Tensor:
            if not isinstance(kind, Continuous):
                return value
            noise = torch.randn(value.shape, generator=context.generator, device=value.device)
            return (value + scale * noise).clamp(-1, 1)

        return tree.map(leaf, self.action, action)


class ActionNoise(nn.Module):
    """Noise for a deterministic policy: Gaussian, or an Ornstein-Uhlenbeck process that restarts with each episode:
    x <- (1 - theta) x + scale * N(0, 1).

    The scales of the environments are evenly spaced between the two values of `noise_scale`.
    """

    scale: Tensor

    def __init__(self, spec: Spec, size: int, cfg: NoiseConfig) -> None:
        super().__init__()
        self.cfg, self.size = cfg, size
        # Not saved: another run may load the weights with a different number of environments and its own scale.
        self.register_buffer("scale", spread(cfg.noise_scale, spec.num_envs), persistent=False)

    def initial(self, num_envs: int) -> Tree:
        """State of the process before the first row."""
        if self.cfg.noise != "ou":
            return {}
        return {MEMORY: {"x": torch.zeros(num_envs, self.size, device=self.scale.device)}}

    def forward(
        self, action: Tensor, memory: Tree, context: Context, progress: Tensor
    ) -> tuple[Tensor, Tree]:
        """The action with noise, clipped to [-1, 1], and the state of the process after it."""
        cfg, generator, after = self.cfg, context.generator, {}
        if cfg.noise != "none":
            scale = self.scale.mean() if context.env_index is None else self.scale[context.env_index]
            left = 1 - (1 - cfg.noise_final) * progress if cfg.noise_final != 1 else 1.0
            noise = scale * torch.randn(action.shape, generator=generator, device=action.device)
            if cfg.noise == "ou":
                before = torch.where(context.reset.unsqueeze(-1), 0.0, memory[MEMORY]["x"])
                noise = before * (1 - cfg.noise_theta) + noise
                after = {MEMORY: {"x": noise}}
            action = (action + left * noise).clamp(-1, 1)
        if cfg.epsilon:
            chance = torch.rand(action.shape[0], 1, generator=generator, device=action.device)
            other = torch.rand(action.shape, generator=generator, device=action.device) * 2 - 1
            action = torch.where(chance < cfg.epsilon, other, action)
        return action, after
