"""What an agent knows of its environment: shapes, dtypes and bounds of observations and actions.

Agents use actions in canonical form: flat float vectors for continuous actions, integers from 0 for discrete ones.
A finite bound of a continuous dimension is at canonical -1 (low) or 1 (high): dimensions with two bounds are scaled to
[-1, 1], those with one are shifted by it (`low + a + 1` or `high + a - 1`), those with none are left as they are.
Values beyond a bound are clipped to it. `to_env` maps canonical actions to the environment's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.action_masks import Choices, mask_size
from whorl.core.arrays import MASK_KEY as MASK_KEY
from whorl.core.arrays import Array as Array
from whorl.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Continuous:
    """A vector of real numbers with the environment's bounds per (flattened) dimension."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"
    """of the environment's actions; integers are rounded to"""

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
    dtype: str = "int64"
    """of the environment's actions"""


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices; dimension i has `nvec[i]` options (flattened). MultiBinary is one of twos."""

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    """what the environment counts each dimension from; empty: 0"""
    shape: tuple[int, ...] | None = None
    """of the environment's actions; None: one axis"""
    dtype: str = "int64"
    """of the environment's actions"""


class TupleSpec(dict[str, Any]):
    """The branches of a Tuple space, keyed "0", "1", …: a tree like any dict, but the environment takes a tuple."""


ActionLeaf: TypeAlias = Continuous | Discrete | MultiDiscrete
SpecTree: TypeAlias = Any
"""A leaf (`Array` for observations, an `ActionLeaf` for actions) or a dict of such trees (`TupleSpec` for a Tuple)."""


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
    map_shape: tuple[int, int] | None = None
    """rows and columns of a map on which every step tells where the agent is; agents do not read it"""
    parameters_of: tuple[tuple[int, ...], ...] = ()
    """mixed actions: the continuous dimensions that each combination of discrete choices uses, by number (see
    `whorl.core.action_parts.used_parameters`); empty: each uses all"""

    @property
    def masked(self) -> bool:
        """Whether observations carry an action mask, and there are discrete choices that it applies to."""
        carries = isinstance(self.observation, dict) and MASK_KEY in self.observation
        return carries and mask_size(action_choices(self.action)) > 0

    def with_num_envs(self, num_envs: int) -> "Spec":
        """The same spec with another number of environments."""
        return replace(self, num_envs=num_envs)


def split_observation(observation: SpecTree, privileged: Sequence[str]) -> tuple[SpecTree, SpecTree]:
    """What a policy may read of an observation, and its keys that exist in training only (`privileged_obs`)."""
    if not privileged:
        return observation, {}
    keys = list(observation) if isinstance(observation, dict) else []
    for name in privileged:
        if name not in keys or name == MASK_KEY:
            known = [key for key in keys if key != MASK_KEY]
            remedy = nearest(name, known) if known else "it needs an observation with keys, a Dict"
            raise ConfigError(f"privileged_obs names {name!r}, which the observation does not have; {remedy}")
    public = {key: leaf for key, leaf in observation.items() if key not in privileged}
    if not set(public) - {MASK_KEY}:
        raise ConfigError(
            f"privileged_obs names all keys of the observation ({', '.join(privileged)}); leave the policy one of them"
        )
    return public, {key: observation[key] for key in observation if key in privileged}


def without_keys(spec: Spec, keys: Sequence[str]) -> Spec:
    """The spec without those of the keys that its observation has."""
    if not isinstance(spec.observation, dict):
        return spec
    return replace(spec, observation={k: leaf for k, leaf in spec.observation.items() if k not in keys})


def differences(saved: Spec, now: Spec) -> list[str]:
    """What differs between the spaces of two environments, an entry each: where, saved, now.

    Bounds of observations are not compared, because agents do not read them.
    """
    found = []
    for name, before, after in (
        ("observation", saved.observation, now.observation),
        ("action", saved.action, now.action),
    ):
        old, new = dict(tree.items(before)), dict(tree.items(after))
        for path in [*old, *(path for path in new if path not in old)]:
            was, is_now = (_described(side[path]) if path in side else "missing" for side in (old, new))
            if was != is_now:
                found.append(f"{name}{f' {path!r}' if path else ''} was {was} and is {is_now}")
        if old.keys() == new.keys() and list(old) != list(new):
            found.append(f"{name} had the keys {', '.join(old)} and has {', '.join(new)}, in another order")
    if saved.parameters_of != now.parameters_of:
        found.append("parameters_of, what each choice uses of the continuous actions, is another")
    return found


def _described(leaf: Any) -> str:
    """A leaf of a spec as its space would be written."""
    if isinstance(leaf, Array):
        kind = f"Box({leaf.shape}, {leaf.dtype})"
        if leaf.start is not None:
            kind = f"Discrete({leaf.size // leaf.stack}{f', start={leaf.start}' if leaf.start else ''})"
        elif leaf.nvec:
            start = f", start={list(leaf.starts)}" if any(leaf.starts) else ""
            kind = f"MultiDiscrete({list(leaf.nvec)}{start})"
        return f"{kind} in a stack of {leaf.stack}" if leaf.stack > 1 else kind
    if isinstance(leaf, Discrete):
        return f"Discrete({leaf.n}{f', start={leaf.start}' if leaf.start else ''})"
    if isinstance(leaf, MultiDiscrete):
        return f"MultiDiscrete({list(leaf.nvec)}{f', start={list(leaf.start)}' if any(leaf.start) else ''})"
    low, high = (f"{side[0]:g}" if len(set(side)) == 1 else f"{list(side)}" for side in (leaf.low, leaf.high))
    return f"Box({low}, {high}, {leaf.shape}, {leaf.dtype})"


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
    """Canonical actions [..., size] in the environment's range, shape and dtype; still a tree (see `as_nested`)."""

    def leaf(a: ActionLeaf, value: Tensor) -> Tensor:
        dtype = getattr(torch, a.dtype)
        if isinstance(a, Continuous):
            return _rescaled(a, value).to(dtype).reshape(*value.shape[:-1], *a.shape)
        if isinstance(a, Discrete):
            return (value + a.start if a.start else value).to(dtype)
        if any(a.start):
            value = value + torch.tensor(a.start, device=value.device)
        shape = (len(a.nvec),) if a.shape is None else a.shape
        return value.to(dtype).reshape(*value.shape[:-1], *shape)

    return tree.map(leaf, spec, action)


def _rescaled(a: Continuous, value: Tensor) -> Tensor:
    def per_dimension(values: list[float], like: Tensor = value) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)

    bounds = list(zip(a.low, a.high))
    low, high = (per_dimension([x if isfinite(x) else 0.0 for x in side]) for side in (a.low, a.high))
    scale = torch.where(per_dimension([float(b) for b in a.bounded]) > 0, 0.5 * (high - low), 1.0)
    # Measured from the nearer end, so that both ends are met exactly and none is passed by rounding.
    split = per_dimension([inf if not isfinite(y) else 0.0 if isfinite(x) else -inf for x, y in bounds])
    inside = value.clamp(
        per_dimension([-1.0 if isfinite(x) else -inf for x in a.low]),
        per_dimension([1.0 if isfinite(y) else inf for y in a.high]),
    )
    scaled = torch.where(inside < split, low + (inside + 1) * scale, high + (inside - 1) * scale)
    free = per_dimension([float(x == -inf and y == inf) for x, y in bounds]) > 0
    scaled = torch.where(free, value, scaled)
    if a.dtype == "float32":
        return scaled
    # Bounds that float32 can't hold are kept in float64.
    exact = (scaled if getattr(torch, a.dtype).is_floating_point else scaled.round()).double()
    return exact.clamp(per_dimension(list(a.low), exact), per_dimension(list(a.high), exact))


def from_env(spec: SpecTree, action: tree.Tree) -> tree.Tree:
    """The inverse of `to_env`: the environment's actions [..., *shape] in canonical form."""

    def leaf(a: ActionLeaf, value: Tensor) -> Tensor:
        if isinstance(a, Discrete):
            return value.long() - a.start
        shape = a.shape if isinstance(a, Continuous) or a.shape is not None else (len(a.nvec),)
        assert shape is not None
        value = value.reshape(*value.shape[: value.dim() - len(shape)], -1)
        if isinstance(a, MultiDiscrete):
            return value.long() - torch.tensor(a.start or 0, device=value.device)
        value, parts = value.double(), []
        for part, low, high in zip(value.unbind(-1), a.low, a.high):
            if isfinite(low) and isfinite(high):
                part = 2 * (part - low) / (high - low) - 1 if high > low else torch.zeros_like(part)
            elif isfinite(low) or isfinite(high):
                part = part - low - 1 if isfinite(low) else part - high + 1
            parts.append(part)
        return torch.stack(parts, -1).float()

    return tree.map(leaf, spec, action)


def as_nested(spec: SpecTree, action: tree.Tree) -> Any:
    """An action tree with tuples where the environment has Tuple spaces."""
    if not isinstance(spec, dict):
        return action
    parts = {key: as_nested(branch, action[key]) for key, branch in spec.items()}
    return tuple(parts.values()) if isinstance(spec, TupleSpec) else parts


def as_keyed(spec: SpecTree, action: Any) -> Any:
    """The inverse of `as_nested`: an action with dicts where the environment has Tuple spaces."""
    if not isinstance(spec, dict):
        return action
    parts = dict(zip(spec, action)) if isinstance(spec, TupleSpec) else action
    return {key: as_keyed(branch, parts[key]) for key, branch in spec.items()}


def action_choices(spec: SpecTree) -> Choices:
    """The discrete choices of an action tree, as `whorl.core.action_masks` reads them."""
    if isinstance(spec, dict):
        parts = {key: action_choices(branch) for key, branch in spec.items()}
        return list(parts.values()) if isinstance(spec, TupleSpec) else parts
    if isinstance(spec, Continuous):
        return ()
    return spec.n if isinstance(spec, Discrete) else spec.nvec


def flat_action_size(spec: SpecTree) -> int:
    """Columns of `flatten_action`."""
    return sum(
        leaf.size if isinstance(leaf, Continuous) else mask_size(action_choices(leaf))
        for leaf in tree.leaves(spec)
    )


def flatten_action(spec: SpecTree, action: tree.Tree) -> Tensor:
    """Canonical actions as one float vector [..., columns], for networks that read actions: choices are one-hot."""
    parts = tree.leaves(tree.map(_coded, spec, action))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _coded(leaf: ActionLeaf, action: Tensor) -> Tensor:
    if isinstance(leaf, Continuous):
        return action
    columns = [action] if isinstance(leaf, Discrete) else action.unbind(-1)
    sizes = (leaf.n,) if isinstance(leaf, Discrete) else leaf.nvec
    # Not one_hot, which reads the values on some devices.
    ranges = (torch.arange(n, device=action.device) for n in sizes)
    return torch.cat([(part.unsqueeze(-1) == every).float() for part, every in zip(columns, ranges)], -1)
