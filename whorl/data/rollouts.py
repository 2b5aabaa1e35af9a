"""On-policy experience: each rollout is learned from once, in shuffled rows, or in chunks for recurrent networks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whorl.core import collectives, tree
from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.discounting import Discounting
from whorl.data.experience import Experience


class Rollouts(Experience):
    """Yields each rollout once for `update`; with `history` also that many rollouts together for a second phase.

    The history holds rows (observations, resets, recurrent states) and the columns in `Updated.kept`.

    Args:
        discounting: makes the discounts and reward streams of a batch.
        device: device of the batches, if it is not the rollouts' own.
        overlaps: a rollout may be learned from while the next one is collected; then it is copied.
    """

    def __init__(
        self,
        discounting: Discounting,
        history: int = 0,
        phase: str = "",
        device: torch.device | str | None = None,
        overlaps: bool = False,
    ) -> None:
        self.device = device
        self.overlaps = overlaps
        self.discounting = discounting
        self.history = history
        self.phase = phase
        self._pending: Batch | None = None
        self._rows: list[dict[str, Tree]] = []

    def add(self, rollout: Batch) -> None:
        moved = rollout if self.device is None else rollout.to(self.device)
        shared = moved.mask is rollout.mask  # the collector may write the next rollout there
        self._pending = moved.replace(**tree.clone(moved.tensors())) if self.overlaps and shared else moved

    @property
    def waits(self) -> bool:
        return self._pending is not None

    def cut(self, where: Tensor | None = None) -> None:
        """See `Experience`. The rollout that waits then ends in its last row, as at the end of an episode."""
        if self._pending is not None:
            self._pending.keep[-1, slice(None) if where is None else where] = 0

    def due(self) -> Iterator[tuple[str, Batch]]:
        if self._pending is not None:
            batch, self._pending = self._pending, None
            yield "update", self.discounting.apply(batch)
        if self.history and len(self._rows) == self.history:
            yield self.phase, self._joined()
            self._rows.clear()

    def settle(self, batch: Batch, updated: Any) -> None:
        """Keep the rollout's rows for the second phase."""
        if not self.history or not updated.kept:
            return
        rows = {
            "obs": tree.index(batch.obs, slice(0, batch.shape[0])),
            "reset": batch.reset[: batch.shape[0]],
            "mask": batch.mask,
            "memory": batch.memory,
            "memories": batch.memories,
            "last": tree.index(batch.last, slice(0, batch.shape[0])),
            "kept": updated.kept,
        }
        self._rows.append(tree.clone(rows))

    def _joined(self) -> Batch:
        """All kept rollouts, joined along the environments: [T, history * B]."""
        rows = {
            key: tree.cat([found[key] for found in self._rows], 0 if key == "memory" else 1)
            for key in self._rows[0]
        }
        zero = torch.zeros_like(rows["mask"])
        return Batch(
            obs=rows["obs"],
            reset=rows["reset"],
            action={},
            reward=zero,
            discount=zero,
            keep=zero,
            mask=rows["mask"],
            memory=rows["memory"],
            memories=rows["memories"],
            last=rows["last"],
            extras=rows["kept"],
        )

    def state_dict(self) -> dict[str, Any]:
        pending = {} if self._pending is None else self._pending.tensors()
        return {"rows": list(self._rows), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [self._moved(rows) for rows in state["rows"]]
        pending = state.get("pending")
        self._pending = Batch(**self._moved(pending)) if pending else None

    def _moved(self, saved: dict[str, Tree]) -> dict[str, Tree]:
        """Saved tensors on the device of the batches."""
        return dict(saved) if self.device is None else tree.to(dict(saved), self.device)


def minibatches(
    batch: Batch, columns: dict[str, Tree], size: int, generator: torch.Generator
) -> Iterator[tuple[Rows, dict[str, Tree]]]:
    """One epoch over a rollout in random order: `Rows` for the networks and the matching columns [R, n].

    Without memory, single rows are shuffled (R = 1). With memory, a minibatch is a set of chunks of `stride` rows, each
    starting from the recurrent state that was stored while acting. Several learners share the `size` rows equally.
    """
    steps, num_envs = batch.shape
    size //= collectives.learners()
    now = {"obs": batch.obs, "reset": batch.reset, "last": batch.last}
    now = {**tree.index(now, slice(0, steps)), "columns": columns}
    chunks = len(tree.first(batch.memories)) if batch.memories else steps
    stride = steps // chunks
    check_batch_size(size, steps * num_envs, stride)

    count = size // stride
    order = shuffled(chunks * num_envs, generator, batch.mask.device)

    def fold(leaf: Tensor) -> Tensor:  # [T, B, ...] -> [stride, chunks * B, ...]
        if stride == 1:
            return leaf.flatten(0, 1).unsqueeze(0)
        parts = leaf.reshape(chunks, stride, *leaf.shape[1:]).transpose(0, 1)
        return parts.reshape(stride, chunks * num_envs, *leaf.shape[2:])

    # One gather per pass; the minibatches are then views.
    parts = tree.map(lambda leaf: fold(leaf).index_select(1, order).split(count, 1), now)
    states = tree.map(lambda leaf: leaf.flatten(0, 1).index_select(0, order).split(count), batch.memories)
    for number in range(chunks * num_envs // count):
        part, state = tree.index(parts, number), tree.index(states, number)
        yield Rows(part["obs"], part["reset"], state, 0, 0, stride, part["last"]), part["columns"]


def shuffled(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """The numbers below `count` in random order."""
    if device.type == "cpu":
        return torch.randperm(count, generator=generator)
    return torch.rand(count, generator=generator, device=device).argsort()  # a CUDA graph may contain it


def check_batch_size(size: int, rows: int, stride: int) -> None:
    """Raise unless the minibatch size divides the rollout and is a multiple of the chunk length."""
    if rows % size or size % stride:
        fitting = [n for n in range(stride, rows + 1, stride) if rows % n == 0]
        if not fitting:
            raise ConfigError(
                f"a rollout of {rows} rows over all environments is not a multiple of chunk_length {stride}; change "
                "chunk_length or num_steps"
            )
        best = min(fitting, key=lambda n: (abs(n - size), n))
        why = f"does not divide the {rows} rows of a rollout"
        if stride > 1 and rows % size == 0:
            why = f"is not a multiple of chunk_length {stride}"
        raise ConfigError(f"batch_size {size} {why}; use {best}, or change num_envs or num_steps")
