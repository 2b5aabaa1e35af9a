"""Nested tensors: a tree is a tensor, or a dict of trees with string keys.

Observations, actions, memories and states are trees. These few functions are all the library needs of them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Any
"""A `Tensor`, or a `dict[str, Tree]`. (Recursive aliases trip type checkers; the functions below check.)"""


def _is_branch(tree: Tree) -> bool:
    # Whether something is any kind of mapping takes as long to find out as a small operation: ask for tensors first.
    return type(tree) is dict or (not isinstance(tree, (Tensor, tuple)) and isinstance(tree, Mapping))


def map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` leaf by leaf to trees of the same structure."""
    if _is_branch(tree):
        return {key: map(fn, value, *(other[key] for other in others)) for key, value in tree.items()}
    return fn(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in key order of the dicts."""
    if _is_branch(tree):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [tree]


def items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of a dotted path and a leaf; the path of a bare leaf is the empty string."""
    if _is_branch(tree):
        for key, value in tree.items():
            yield from items(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def first(tree: Tree) -> Any:
    """Any one leaf, to ask for a device or a leading shape."""
    while _is_branch(tree):
        tree = next(iter(tree.values()))
    return tree


def index(tree: Tree, where: Any) -> Tree:
    """`leaf[where]` for each leaf."""
    return map(lambda leaf: leaf[where], tree)


def stack(trees: list[Tree], dim: int = 0) -> Tree:
    """Stack trees of the same structure along a new axis."""
    return map(lambda *found: torch.stack(found, dim), trees[0], *trees[1:])


def cat(trees: list[Tree], dim: int = 0) -> Tree:
    """Concatenate trees of the same structure along an axis."""
    return map(lambda *found: torch.cat(found, dim), trees[0], *trees[1:])


def copy_(target: Tree, source: Tree) -> None:
    """Write `source` into `target` in place: no tensor of `target` is rebound."""
    map(lambda into, value: into.copy_(value), target, source)


def restore_(target: Tree, saved: Tree) -> None:
    """`copy_` for tensors that were saved from `target`: others, which it would broadcast or convert, are an error."""
    map(_restore, target, saved)


def _restore(into: Tensor, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"a {type(value).__name__} where a tensor is needed")
    if (value.shape, value.dtype) != (into.shape, into.dtype):
        found, wanted = (f"{x.dtype} {list(x.shape)}" for x in (value, into))
        raise ValueError(f"a tensor of {found} where one of {wanted} is needed")
    into.copy_(value)


def clone(tree: Tree) -> Tree:
    """A copy that shares no memory."""
    return map(torch.clone, tree)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """The same tree on `device` (leaves already there are not copied)."""
    # A copy to the host that does not block could be read before it is there, one from memory that is not pinned could
    # be made after the memory was written again.
    to_host = torch.device(device).type == "cpu"
    return map(lambda leaf: leaf.to(device, non_blocking=not to_host and leaf.is_pinned()), tree)


def where(condition: Tensor, yes: Tree, no: Tree) -> Tree:
    """Choose environment by environment; `condition` is [B] and is broadcast over each leaf's trailing axes."""
    return map(lambda a, b: torch.where(expand(condition, a), a, b), yes, no)


def expand(condition: Tensor, like: Tensor) -> Tensor:
    """View `condition` with trailing axes of size one, so that it broadcasts against `like`."""
    return condition.reshape(condition.shape + (1,) * (like.dim() - condition.dim()))
