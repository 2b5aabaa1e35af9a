"""Gradients in place of rows: what actors send that learn from their own rollouts."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.experience import Experience


@dataclass(frozen=True)
class Gradients:
    """One step of each optimizer, as an actor's cargo holds it, and the metrics of the update it belongs to."""

    found: dict[str, dict[str, Tree]]
    metrics: dict[str, Tensor]

    def steps(self, device: torch.device) -> Iterator[tuple[str, list[Tensor], Tensor]]:
        """Name, gradients and rate of each optimizer."""
        for name, entry in self.found.items():
            gradient = [value.to(device) for value in entry["gradient"].values()]
            yield name, gradient, entry["rate"].to(device)


class GradientQueue(Experience):
    """Experience of a learner that only applies gradients: each as it came, or the mean of all that came together."""

    def __init__(self, averaged: bool) -> None:
        self.averaged = averaged
        self._pending: list[Gradients] = []

    def add(self, rollout: list[Gradients]) -> None:
        """Gradients of as many actors as there are."""
        self._pending = [_mean(rollout)] if self.averaged else rollout

    def due(self) -> Iterator[tuple[str, Gradients]]:
        while self._pending:
            yield "apply_gradients", self._pending.pop(0)


def _mean(parts: list[Gradients]) -> Gradients:
    share = 1 / len(parts)
    found, metrics = parts[0].found, parts[0].metrics
    for part in parts[1:]:
        found = tree.map(torch.add, found, part.found)
        metrics = tree.map(torch.add, metrics, part.metrics)
    # One alone stays as it is, to the last bit.
    return Gradients(tree.map(lambda x: x * share, found), tree.map(lambda x: x * share, metrics))
