"""One replay shard: the remote object that holds the rows of some environments, and the learner's side of it."""

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.core import files, tree
from whorl.core.errors import CheckpointError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.replay import FIRST
from whorl.data.replay_setup import replay_of
from whorl.data.segments import Segments
from whorl.distributed.remote import Remote, SlotLost, Slots
from whorl.distributed.tensors import array, empty, env_slice, tensor_of

AHEAD = 2
"""batches that a shard may be asked for, and rollouts it may be sent, before the first is done with"""


class Shard:
    """The replay buffer of some environments, as a remote object.

    Args:
        rows: slots for rollouts that the learner sends.
        batches: slots for sampled batches.
        sources: slots of each actor that writes trajectories for this shard.
    """

    def __init__(
        self,
        cfg: ReplayConfig,
        spec: Spec,
        memory: Tree,
        options: dict[str, Any],
        seed: int,
        rows: Slots,
        batches: Slots,
        sources: Sequence[Slots] = (),
    ) -> None:
        torch.set_num_threads(1)
        self.generator = torch.Generator().manual_seed(seed)
        self.replay = replay_of(
            cfg, spec, torch.device("cpu"), self.generator, _no_initial_priority, memory, **options
        )
        self.rows, self.batches, self.sources = rows, batches, sources
        self._staged: dict[str, Tree] = empty(rows.layout) if sources else {}

    @torch.no_grad()
    def stage(self, source: int, token: Any, columns: tuple[slice, slice], lost: int) -> bool:
        """Copy environments of an actor's trajectory to those of this shard's next rollout; False if it is gone."""
        there, here = columns
        try:
            rows = env_slice(self.sources[source].read(token), there)
        except SlotLost:
            return False
        into = env_slice(self._staged, here)
        tree.copy_(into, rows)
        if lost:
            into["extras"][FIRST][:lost] = torch.nan
        return True

    @torch.no_grad()
    def add(self, token: Any, cut: np.ndarray) -> bool:
        """Add a rollout, or what was staged without a token; returns whether there is something to sample now."""
        replay = self.replay
        # One that replaces another starts in the middle of episodes.
        replay.cut(tensor_of(cut) if replay.ring.rows else None)
        replay.add(Batch(**(self._staged if token is None else self.rows.read(token))))
        return replay.can_start() and replay.ring.rows > replay.view.span + replay.ring.history + 1

    def anneal(self, progress: float) -> None:
        """This share of the training budget is spent."""
        self.replay.anneal(progress)

    @torch.no_grad()
    def sample(self, slot: int) -> Any:
        """Write a batch to a slot; returns its token."""
        return self.batches.write(slot, self.replay.sample().tensors())

    @torch.no_grad()
    def settle(self, index: np.ndarray, error: np.ndarray) -> None:
        """TD errors of the samples that start at `index`."""
        found = tensor_of(error)
        self.replay.sampler.settle(tensor_of(index), torch.ones_like(found), found)

    def open_store(self, folder: str, ahead: bool) -> None:
        """Keep the rows in files from now on."""
        try:
            Path(folder).parent.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"a replay shard can't write {folder}: {files.reason(error)}; where shards run on other machines the "
                "run folder must be on a disk that all of them share"
            ) from None
        self.replay.store = Segments(Path(folder), self.replay.ring, ahead=ahead)

    def names(self) -> list[str]:
        return self._store.names()

    def sweep(self, needed: Collection[str]) -> None:
        self._store.sweep(needed)

    def state(self) -> dict[str, Any]:
        return {**self.replay.state_dict(), "generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.replay.load_state_dict(state)

    def close(self) -> None:
        if self.replay.store is not None:
            self._store.close()

    @property
    def _store(self) -> Segments:
        assert isinstance(self.replay.store, Segments)
        return self.replay.store


class ShardLink:
    """The learner's side of one shard."""

    def __init__(self, remote: Remote, rows: Slots, batches: Slots) -> None:
        self.remote, self._rows, self._batches = remote, rows, batches
        self._pending: deque[tuple[str, int]] = deque([("start", 0)])
        """calls whose results were not taken, each with a number"""
        self._added = self._asked = self._taken = 0
        self.ready = False
        self.staged: set[int] = set()
        """places of the next rollout whose trajectories the shard has"""
        self._lost: set[int] = set()

    @property
    def free(self) -> bool:
        """Whether a batch may be asked for."""
        return self.ready and self._asked - self._taken < AHEAD

    def stage(self, place: int, source: int, token: Any, columns: tuple[slice, slice], lost: int) -> None:
        """Let the shard copy a trajectory to a place of its next rollout."""
        self.staged.add(place)
        self._post("stage", source, token, columns, lost, number=place)

    def confirm(self) -> set[int]:
        """Wait until what was staged is copied; returns the places that were lost."""
        while any(method == "stage" for method, _ in self._pending):
            self._take()
        lost, self._lost = self._lost, set()
        return lost

    def add(self, rows: dict[str, Tree] | None, cut: Tensor) -> None:
        """Send rows, which are copied; None: add what was staged."""
        token = None
        if rows is not None:
            while sum(method == "add" for method, _ in self._pending) >= AHEAD:
                self._take()
            token, self._added = self._rows.write(self._added % AHEAD, rows), self._added + 1
        self.staged.clear()
        self._post("add", token, array(cut))

    def anneal(self, progress: float) -> None:
        """Send the fraction of the training budget that is spent."""
        self._post("anneal", progress)

    def ask(self) -> None:
        """Ask for a batch."""
        slot, self._asked = self._asked % AHEAD, self._asked + 1
        self._post("sample", slot)

    def take(self) -> tuple[Any, dict[str, Tree]]:
        """Token and tensors of the oldest batch that was asked for, valid until `AHEAD` more are asked for."""
        method, token = self._take()
        while method != "sample":
            method, token = self._take()
        self._taken += 1
        return token, self._batches.read(token)

    def settle(self, index: Tensor, error: Tensor) -> None:
        """Send the TD errors [B] of the samples that start at `index`."""
        self._post("settle", array(index), array(error))

    def call(self, method: str, *arguments: Any) -> Any:
        """One of the shard's other methods, with its result."""
        self.wait()
        self._post(method, *arguments)
        return self._take()[1]

    def wait(self) -> None:
        """Until all calls are done."""
        while self._pending:
            self._take()

    def _post(self, method: str, *arguments: Any, number: int = 0) -> None:
        self.remote.post(method, *arguments)
        self._pending.append((method, number))

    def _take(self) -> tuple[str, Any]:
        answer = self.remote.take()
        method, number = self._pending.popleft()
        if method == "add":
            self.ready = bool(answer)
        elif method == "stage" and not answer:
            self.staged.discard(number)
            self._lost.add(number)
        return method, answer


def _no_initial_priority(batch: Batch) -> Tensor:
    raise AssertionError("actors compute initial priorities")
