"""The protocol between the training loop and what turns rollouts into batches (rollouts, replay, gradients)."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor


class Store(Protocol):
    """Keeps the rows of a replay buffer in files, so that checkpoints need not contain them."""

    def names(self) -> list[str]:
        """The files that the newest checkpoint needs."""

    def sweep(self, needed: Collection[str]) -> None:
        """Delete files that are neither `needed` by a checkpoint nor in use."""

    def close(self) -> None:
        """Stop writing."""


class Experience(Protocol):
    """Turns rollouts into batches. A class that inherits from this one overrides what it needs."""

    overlaps: bool = False
    """whether the updates that are due do not depend on the rollout that is being collected"""

    def add(self, rollout: Any) -> None:
        """Add a rollout; data that is kept is copied."""

    def due(self) -> Iterator[tuple[str, Any]]:
        """The batches to learn from now, each with the name of the agent's method that learns from it."""

    def grant(self, updates: int) -> None:
        """`updates` more batches are due, without new rows: for learning offline from a dataset."""
        return

    def settle(self, batch: Any, updated: Any) -> None:
        """Receive the result of an update (priorities, columns to keep), before the next batch is drawn."""
        return

    def anneal(self, progress: float) -> None:
        """This share of the training budget is spent; called before every iteration, for schedules."""
        return

    @property
    def waits(self) -> bool:
        """Whether the newest rollout is learned from only later, while the next one is collected."""
        return False

    def cut(self, where: Tensor | None = None) -> None:
        """The next rollout does not continue the newest rows in the environments `where` [B], by default in all."""
        return

    def expect_gaps(self) -> None:
        """From now on rollouts may have masked rows in the middle of an episode."""
        return

    def metrics(self) -> dict[str, float]:
        """Metrics for the log."""
        return {}

    def compile(self) -> None:
        """Compile the sampling code, if there is any to compile."""
        return

    def open_store(self, folder: Path, ahead: bool) -> Store | None:
        """Keep rows in `folder` from now on, with `ahead` also between checkpoints; None: there are no rows."""
        return None

    def take_rows(self, state: dict[str, Any]) -> None:
        """Start a new run with the rows of another, whose `state_dict` is given; raises `ConfigError`, and
        changes nothing, where they do not fit or are missing."""
        return

    def close(self) -> None:
        """Stop processes; safe to call twice."""
        return

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        return
