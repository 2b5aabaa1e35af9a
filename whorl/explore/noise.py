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
from whorl.core.errors import ConfigError
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
    noise_redraw: bool = False
    """with two numbers: draw the standard deviation of each environment between them at the start of each episode,
    uniformly, instead of spreading them evenly (FastTD3)"""
    noise_theta: Fraction = 0.15
    """rate at which Ornstein-Uhlenbeck noise returns to zero"""
    noise_final: Fraction = 1.0
    """factor of the noise at the end of the run, reached linearly"""
    epsilon: Probability = 0.0
    """probability of a uniformly random action instead of the noisy one"""


@dataclass(frozen=True)
class AddedNoiseConfig:
    """Settings of noise beside that of a stochastic policy."""

    action_noise: Annotated[float | tuple[float, float], Range(0, 10**6)] = 0.0
    """standard deviation of Gaussian noise that is added to sampled continuous actions, scaled to [-1, 1]; two numbers
    are spread evenly over the environments"""
    action_noise_theta: Fraction = 1.0
    """rate at which this noise returns to zero; 1: independent in every step, 0.15: an Ornstein-Uhlenbeck process"""


MEMORY = "noise"
"""key of the noise process in an agent's memory"""
STEPS_HELD_POWER = 2.0
"""the probability that noise is held for k steps is proportional to k to the power of minus this (FlashSAC)"""


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
    """Noise on the continuous parts of actions that a policy has sampled.

    Gaussian, or with `action_noise_theta` below 1 an Ornstein-Uhlenbeck process that restarts with each episode.
    """

    scale: Tensor

    def __init__(self, spec: Spec, cfg: AddedNoiseConfig) -> None:
        super().__init__()
        scale = spread(cfg.action_noise, spec.num_envs)
        self.on = bool(scale.any())
        """whether there is noise"""
        if self.on and not any(isinstance(leaf, Continuous) for leaf in tree.leaves(spec.action)):
            raise ConfigError(
                "action_noise is added to continuous actions, and this environment has none; leave it out"
            )
        self.action = spec.action
        self.sizes = [leaf.size for leaf in tree.leaves(spec.action) if isinstance(leaf, Continuous)]
        self.kept = 1 - cfg.action_noise_theta
        """share of the noise of the row before"""
        self.register_buffer("scale", scale, persistent=False)  # as in `ActionNoise`

    def initial(self, num_envs: int) -> Tree:
        """State of the process before the first row."""
        if not (self.on and self.kept):
            return {}
        return {MEMORY: {"x": torch.zeros(num_envs, sum(self.sizes), device=self.scale.device)}}

    def forward(self, action: Tree, memory: Tree, context: Context) -> tuple[Tree, Tree]:
        """The action with noise, clipped to [-1, 1], and the state of the process after it; the action as it was if
        it is greedy or not for training."""
        if not self.on or context.greedy or context.env_index is None:
            return action, {}
        scale = self.scale[context.env_index]
        state: list[Tensor] = []
        if self.kept:
            x = memory[MEMORY]["x"].masked_fill(context.reset.unsqueeze(-1), 0.0)
            before = iter(x.split(self.sizes, -1))

        def leaf(kind: ActionLeaf, value: Tensor) -> Tensor:
            if not isinstance(kind, Continuous):
                return value
            drawn = scale * torch.randn(value.shape, generator=context.generator, device=value.device)
            if self.kept:
                drawn = self.kept * next(before) + drawn
                state.append(drawn)
            return (value + drawn).clamp(-1, 1)

        action = tree.map(leaf, self.action, action)
        return action, {MEMORY: {"x": torch.cat(state, -1)}} if state else {}


class HeldNoise(nn.Module):
    """Random numbers of a policy that each environment keeps for k steps, P(k) proportional to k^-2 for k <= `most`.

    Drawn again where an episode starts.
    """

    chances: Tensor

    def __init__(self, size: int, most: int) -> None:
        super().__init__()
        self.size = size
        chances = torch.arange(1, most + 1, dtype=torch.float64) ** -STEPS_HELD_POWER
        # Without the last, which is 1: the number of them that a uniform number reaches is k - 1.
        chances = (chances / chances.sum()).cumsum(0)[:-1].float()
        self.register_buffer("chances", chances, persistent=False)

    def initial(self, num_envs: int) -> Tree:
        """State before the first row: nothing is held."""
        device = self.chances.device
        if not len(self.chances):
            return {}
        held = torch.zeros(num_envs, self.size, device=device)
        return {MEMORY: {"held": held, "left": torch.zeros(num_envs, dtype=torch.int64, device=device)}}

    def forward(self, fresh: Tensor, memory: Tree, context: Context) -> tuple[Tensor, Tree]:
        """The numbers [B, size] to use, those held or `fresh` ones, and the state after this row."""
        if not len(self.chances):
            return fresh, {}
        held, left = memory[MEMORY]["held"], memory[MEMORY]["left"]
        uniform = torch.rand(len(fresh), 1, generator=context.generator, device=fresh.device)
        length = 1 + (uniform >= self.chances).sum(-1)
        renew = (left == 0) | context.reset
        noise = torch.where(renew.unsqueeze(-1), fresh, held)
        return noise, {MEMORY: {"held": noise, "left": torch.where(renew, length, left) - 1}}


class ActionNoise(nn.Module):
    """Noise for a deterministic policy: Gaussian, or an Ornstein-Uhlenbeck process that restarts with each episode:
    x <- (1 - theta) x + scale * N(0, 1).

    The scales of the environments are evenly spaced between the two values of `noise_scale`, or with `noise_redraw`
    drawn between them for every episode.
    """

    scale: Tensor

    def __init__(self, spec: Spec, size: int, cfg: NoiseConfig) -> None:
        super().__init__()
        self.cfg, self.size = cfg, size
        # Not saved: another run may load the weights with a different number of environments and its own scale.
        self.register_buffer("scale", spread(cfg.noise_scale, spec.num_envs), persistent=False)
        self.redraws = cfg.noise_redraw and cfg.noise != "none"
        """whether scales are drawn for every episode"""
        if self.redraws and not isinstance(cfg.noise_scale, tuple):
            raise ConfigError(
                f"noise_redraw draws between two numbers, but noise_scale is {cfg.noise_scale:g}; give it a range "
                "such as [0.001, 0.4]"
            )

    def initial(self, num_envs: int) -> Tree:
        """State of the process before the first row."""
        device, state = self.scale.device, {}
        if self.cfg.noise == "ou":
            state["x"] = torch.zeros(num_envs, self.size, device=device)
        if self.redraws:
            state["scale"] = torch.zeros(num_envs, 1, device=device)
        return {MEMORY: state} if state else {}

    def forward(
        self, action: Tensor, memory: Tree, context: Context, progress: Tensor
    ) -> tuple[Tensor, Tree]:
        """The action with noise, clipped to [-1, 1], and the state of the process after it."""
        cfg, generator, after = self.cfg, context.generator, {}
        state: dict[str, Tensor] = {}
        if cfg.noise != "none":
            scale = self.scale.mean() if context.env_index is None else self.scale[context.env_index]
            if self.redraws:
                low, high = cfg.noise_scale  # type: ignore[misc]  # a range, by the check above
                drawn = torch.rand(action.shape[0], 1, generator=generator, device=action.device)
                drawn = low + (high - low) * drawn
                # 0: not drawn yet, in the episode in which random actions ended
                before = memory[MEMORY]["scale"]
                scale = torch.where(context.reset.unsqueeze(-1) | (before == 0), drawn, before)
                state["scale"] = scale
            left = 1 - (1 - cfg.noise_final) * progress if cfg.noise_final != 1 else 1.0
            noise = scale * torch.randn(action.shape, generator=generator, device=action.device)
            if cfg.noise == "ou":
                before = torch.where(context.reset.unsqueeze(-1), 0.0, memory[MEMORY]["x"])
                noise = before * (1 - cfg.noise_theta) + noise
                state["x"] = noise
            action = (action + left * noise).clamp(-1, 1)
            after = {MEMORY: state} if state else {}
        if cfg.epsilon:
            chance = torch.rand(action.shape[0], 1, generator=generator, device=action.device)
            other = torch.rand(action.shape, generator=generator, device=action.device) * 2 - 1
            action = torch.where(chance < cfg.epsilon, other, action)
        return action, after
