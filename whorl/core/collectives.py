"""Sums and means over learners that share a batch, each with its part of the environments.

A loss is a mean over the joint batch: each learner divides its own sum by an equal share of the joint count, so that
the mean of all gradients is the gradient of the joint loss. With a single learner all values stay as they are.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """Communication between learners."""

    rank: int
    """the number of this learner, from 0"""
    size: int
    """how many there are"""

    def add_(self, value: Tensor) -> None:
        """Replace `value` by the sum over all learners, which must call this in the same order."""


class _Here(threading.local):
    ranks: Ranks | None = None


_here = _Here()


@contextmanager
def shared(ranks: Ranks) -> Iterator[None]:
    """In this block means and sums are over the batches of all learners."""
    _here.ranks = ranks
    try:
        yield
    finally:
        _here.ranks = None


def learners() -> int:
    """How many learners share the batch."""
    return 1 if _here.ranks is None else _here.ranks.size


def total(value: Tensor) -> Tensor:
    """The sum over all learners; no gradient flows through it."""
    if _here.ranks is None:
        return value
    if value.requires_grad:
        raise ValueError("a sum over learners can't carry a gradient; detach the value first")
    found = value.clone()
    _here.ranks.add_(found)
    return found


def mean(value: Tensor) -> Tensor:
    """The mean over all learners; no gradient flows through it."""
    return value if _here.ranks is None else total(value) / _here.ranks.size


def part(value: Tensor) -> Tensor:
    """The part of a value per environment [B, ...] that belongs to this learner's environments."""
    return value if _here.ranks is None else value.chunk(_here.ranks.size)[_here.ranks.rank]


def whole(value: Tensor) -> Tensor:
    """A value per environment [B, ...] of all learners, from their parts."""
    ranks = _here.ranks
    if ranks is None:
        return value
    placed = value.new_zeros(ranks.size, *value.shape)
    placed[ranks.rank] = value
    return total(placed).flatten(0, 1)
