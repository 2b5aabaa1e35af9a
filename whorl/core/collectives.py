"""Learners that share a batch, each with its part of the environments: counts and statistics of all of them together.

A loss is a mean over the joint batch: each learner divides its own sum by an equal share of the joint count, and the
mean of all their gradients is then the gradient of the joint loss. A learner that is alone finds everything as it was.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """How learners reach each other."""

    rank: int
    """the number of this one, from 0"""
    size: int
    """how many there are"""

    def add_(self, value: Tensor) -> None:
        """Replace `value` by the sum over all learners, who must call this in the same order."""


class _Here(threading.local):
    ranks: Ranks | None = None


_here = _Here()


@contextmanager
def shared(ranks: Ranks) -> Iterator[None]:
    """What this thread computes meanwhile belongs to one batch with what the other learners do."""
    _here.ranks = ranks
    try:
        yield
    finally:
        _here.ranks = None


def learners() -> int:
    """How many share the batch that is being learned from."""
    return 1 if _here.ranks is None else _here.ranks.size


def total(value: Tensor) -> Tensor:
    """The sum over all learners; no gradient flows through it."""
    if _here.ranks is None:
        return value
    if value.requires_grad:
        raise ValueError(
            "a sum over learners carries no gradient, but one was asked for; detach the value first"
        )
    found = value.clone()
    _here.ranks.add_(found)
    return found


def mean(value: Tensor) -> Tensor:
    """The mean over all learners; no gradient flows through it."""
    return value if _here.ranks is None else total(value) / _here.ranks.size


def part(value: Tensor) -> Tensor:
    """Of a value per environment [B, ...] that of this learner's environments."""
    return value if _here.ranks is None else value.chunk(_here.ranks.size)[_here.ranks.rank]


def whole(value: Tensor) -> Tensor:
    """A value per environment [B, ...] out of the parts that learners have."""
    ranks = _here.ranks
    if ranks is None:
        return value
    placed = value.new_zeros(ranks.size, *value.shape)
    placed[ranks.rank] = value
    return total(placed).flatten(0, 1)
