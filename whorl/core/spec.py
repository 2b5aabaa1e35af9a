"""What an agent knows about its environment: observation and action spaces, number of environments, reward streams.

Agents see actions in canonical form: continuous actions in [-1, 1] per dimension (unbounded dimensions are unchanged),
discrete actions as integers from 0. Only `to_env` converts them to the environment's own action space.
"""

from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whorl.core import tree

MASK_KEY = "action_mask"
"""key of the action mask in dict observations: which discrete actions are allowed"""


@dataclass(frozen=True)
class Array:
    """One observation leaf of one environment."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = float("-inf")
    high: float = float("inf")
    stack: int = 1
    """number of stacked frames in `shape`, oldest first"""
    axis: int = 0
    """axis of `shape` along which frames are stacked"""
    start: int | None = None
    """for a discrete observation given as one-hot vector: the environment's smallest value"""
    plane: bool = False
    """whether the environment returns [H, W], without the channel axis that `shape` has"""

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def frame(self) -> "Array":
        """One frame of the stack: what the replay buffer stores per row."""
        width = self.shape[self.axis] // self.stack
        shape = tuple(width if number == self.axis else n for number, n in enumerate(self.shape))
        return replace(self, shape=shape, stack=1)


@dataclass(frozen=True)
class Continuous:
    """A vector of real numbers with the environment's bounds per (flattened) dimension."""

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
    """One of `n` actions; the environment counts from `start`, agents count from 0."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent discrete actions; dimension i has `nvec[i]` of them."""

    nvec: tuple[int, ...]


ActionLeaf: TypeAlias = Continuous | Discrete | MultiDiscrete
SpecTree: TypeAlias = Any
"""A leaf (`Array` for observations, an `ActionLeaf` for actions) or a dict of such trees."""


@dataclass(frozen=True)
class Stream:
    """A reward stream besides the environment's, such as an intrinsic reward."""

    name: str
    gamma: float = 0.99
    """discount per step"""
    episodic: bool = True
    """whether returns stop at the end of an episode; otherwise they continue into the next one"""
    weight: float = 1.0
    """weight in the sum of all streams; the environment's reward has weight 1"""


@dataclass(frozen=True)
class Spec:
    """Observation tree, action tree, number of environments, extra episode statistics and reward streams."""

    observation: SpecTree
    action: SpecTree
    num_envs: int
    measures: tuple[str, ...] = ()
    """names of episode statistics besides return and length; agents do not read them"""
    streams: tuple[Stream, ...] = ()
    """reward streams besides the environment's; with them `reward` has a trailing axis [..., 1 + streams]"""

    @property
    def masked(self) -> bool:
        """Whether observations carry an action mask."""
        return isinstance(self.observation, dict) and MASK_KEY in self.observation

    def with_num_envs(self, num_envs: int) -> "Spec":
        """The same spec with another number of environments."""
        return replace(self, num_envs=num_envs)


def empty_obs(spec: SpecTree, leading: tuple[int, ...], device: torch.device | str = "cpu") -> tree.Tree:
    """Zeros in the shape of the observation tree, with `leading` axes first."""
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
    """Convert canonical actions [..., size] to the environment's range and shape: clip to [-1, 1], then rescale."""

    def leaf(a: ActionLeaf, value: Tensor) -> Tensor:
        if isinstance(a, Continuous):
            bounded = torch.tensor(a.bounded, device=value.device)
            low = torch.tensor([x if b else -1.0 for x, b in zip(a.low, a.bounded)], device=value.device)
            high = torch.tensor([x if b else 1.0 for x, b in zip(a.high, a.bounded)], device=value.device)
            inside, half = value.clamp(-1, 1), 0.5 * (high - low)
            # Measured from the nearer bound, so that rounding never passes a bound and both are reached exactly.
            scaled = torch.where(inside < 0, low + (inside + 1) * half, high + (inside - 1) * half)
            return torch.where(bounded, scaled, value).reshape(*value.shape[:-1], *a.shape)
        if isinstance(a, Discrete) and a.start:
            return value + a.start
        return value

    return tree.map(leaf, spec, action)
