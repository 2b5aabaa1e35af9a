"""What an agent may know of its environment, and nothing more.

Agents see actions in canonical form: continuous actions live in [-1, 1] per dimension (unbounded dimensions are left
as they are), discrete ones are integers from 0. `to_env` is the one place where they become the environment's own.
"""

from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import MASK_KEY as MASK_KEY
from whorl.core.arrays import Array as Array


@dataclass(frozen=True)
class Continuous:
    """A vector of real numbers, with the environment's own bounds per dimension (flattened)."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bounded(self) -> tuple[bool, ...]:
        return tuple(isfinite(a) and isfinite(b) for a, b in zip(self.low, self.high))


@dataclass(frozen=True)
class Discrete:
    """One choice out of `n`; the environment counts from `start`, agents from 0."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices; dimension i has `nvec[i]` of them."""

    nvec: tuple[int, ...]


ActionLeaf: TypeAlias = Continuous | Discrete | MultiDiscrete
SpecTree: TypeAlias = Any
"""A leaf (`Array` for observations, an `ActionLeaf` for actions) or a dict of such trees."""


@dataclass(frozen=True)
class Spec:
    """Observation tree, action tree, number of environments, names of what else is measured."""

    observation: SpecTree
    action: SpecTree
    num_envs: int
    measures: tuple[str, ...] = ()
    """what is said of an episode besides its return and length; no agent reads it"""

    @property
    def masked(self) -> bool:
        """Whether observations carry an action mask."""
        return isinstance(self.observation, dict) and MASK_KEY in self.observation

    def with_num_envs(self, num_envs: int) -> "Spec":
        """The same environment with another number of environments."""
        return replace(self, num_envs=num_envs)


def empty_obs(spec: SpecTree, leading: tuple[int, ...], device: torch.device | str = "cpu") -> tree.Tree:
    """Zeros in the shape of the observation tree, with `leading` axes in front."""
    return tree.map(
        lambda a: torch.zeros(*leading, *a.shape, dtype=getattr(torch, a.dtype), device=device), spec
    )


def empty_action(spec: SpecTree, leading: tuple[int, ...], device: torch.device | str = "cpu") -> tree.Tree:
    """Zeros in the shape of canonical actions: float [..., size], int64 [...] or int64 [..., dimensions]."""

    def leaf(a: ActionLeaf) -> Tensor:
        if isinstance(a, Continuous):
            return torch.zeros(*leading, a.size, device=device)
        if isinstance(a, Discrete):
            return torch.zeros(*leading, dtype=torch.int64, device=device)
        return torch.zeros(*leading, len(a.nvec), dtype=torch.int64, device=device)

    return tree.map(leaf, spec)


def to_env(spec: SpecTree, action: tree.Tree) -> tree.Tree:
    """Canonical actions [..., size] into the environment's own range and shape: clip to [-1, 1], then rescale."""

    def leaf(a: ActionLeaf, value: Tensor) -> Tensor:
        if isinstance(a, Continuous):
            bounded = torch.tensor(a.bounded, device=value.device)
            low = torch.tensor([x if b else -1.0 for x, b in zip(a.low, a.bounded)], device=value.device)
            high = torch.tensor([x if b else 1.0 for x, b in zip(a.high, a.bounded)], device=value.device)
            inside, half = value.clamp(-1, 1), 0.5 * (high - low)
            # Measured from the nearer end, so that both ends are met exactly and none is passed by rounding.
            scaled = torch.where(inside < 0, low + (inside + 1) * half, high + (inside - 1) * half)
            return torch.where(bounded, scaled, value).reshape(*value.shape[:-1], *a.shape)
        if isinstance(a, Discrete) and a.start:
            return value + a.start
        return value

    return tree.map(leaf, spec, action)
