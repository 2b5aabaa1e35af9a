"""Gradients in place of rows: the experience of a learner whose actors compute the updates (A3C)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree


@dataclass(frozen=True)
class Gradients:
    """One step of each optimizer, as an actor sends it, and the metrics of its update."""

    found: dict[str, dict[str, Tree]]
    metrics: dict[str, Tensor]

    def steps(self, device: torch.device) -> Iterator[tuple[str, list[Tensor], Tensor]]:
        """Name, gradients and learning rate of each optimizer."""
        for name, entry in self.found.items():
            gradient = [value.to(device) for value in entry["gradient"].values()]
            yield name, gradient, entry["rate"].to(device)


class GradientQueue:
    """Applies gradients as they come, or the mean of all that came together."""

    overlaps = False

    def __init__(self, averaged: bool) -> None:
        self.averaged = averaged
        self._pending: list[Gradients] = []

    def add(self, rollout: list[Gradients]) -> None:
        """Gradients of one or several actors."""
        self._pending = [_mean(rollout)] if self.averaged else rollout

    def due(self) -> Iterator[tuple[str, Gradients]]:
        while self._pending:
            yield "apply_gradients", self._pending.pop(0)

    def settle(self, batch: Gradients, updated: Any) -> None:
        """Gradients are used once."""

    def cut(self, where: Tensor) -> None:
        """Gradients do not continue each other."""

    def metrics(self) -> dict[str, float]:
        return {}

    def open_store(self, folder: Path, ahead: bool) -> None:
        """There are no rows to keep."""

    def close(self) -> None:
        """Nothing is open."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept between iterations."""


def _mean(parts: list[Gradients]) -> Gradients:
    share = 1 / len(parts)
    found, metrics = parts[0].found, parts[0].metrics
    for part in parts[1:]:
        found = tree.map(torch.add, found, part.found)
        metrics = tree.map(torch.add, metrics, part.metrics)
    # With one actor this multiplies by 1, which changes no bit.
    return Gradients(tree.map(lambda x: x * share, found), tree.map(lambda x: x * share, metrics))
