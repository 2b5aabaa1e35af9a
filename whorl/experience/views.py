"""What a start in the ring becomes: a transition, folded over several rows or not, or a sequence.

All of it is index arithmetic on the ring's device: nothing here waits for a value.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from whorl import tree
from whorl.experience.batch import Batch
from whorl.experience.ring import Ring, take


class View(Protocol):
    """What a start becomes."""

    @property
    def span(self) -> int:
        """Rows after the start that must be there."""

    @property
    def stride(self) -> int:
        """Only every so many rows are starts."""

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        """[N] bool: which of these starts may be drawn."""

    def gather(self, ring: Ring, start: Tensor) -> Batch:
        """The samples that begin at these starts [B]."""


@dataclass(frozen=True)
class Transitions:
    """Single transitions, folded over up to `n_step` rows: T = 1, and row 1 is the row to bootstrap from.

    reward = sum_k (prod_{j<k} discount_j) * r_k, discount = prod_k discount_k, over rows up to the episode's end
    """

    n_step: int = 1

    @property
    def span(self) -> int:
        return self.n_step

    @property
    def stride(self) -> int:
        return 1

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        return ring.take("mask", start)

    def gather(self, ring: Ring, start: Tensor) -> Batch:
        return self._single(ring, start) if self.n_step == 1 else self._folded(ring, start)

    def _single(self, ring: Ring, start: Tensor) -> Batch:
        """Nothing to fold: a start's own numbers, and the row after it."""
        after = (start + ring.lanes) % (ring.slots * ring.lanes)
        now = start.unsqueeze(0)
        reset = ring.take("reset", start)
        return Batch(
            obs=ring.observe(torch.stack((start, after))),
            reset=torch.stack((reset, torch.zeros_like(reset))),
            action=ring.take("action", now),
            reward=ring.take("reward", now),
            discount=ring.take("discount", now),
            keep=ring.take("keep", now).float(),
            mask=torch.ones_like(now, dtype=torch.float32),  # only transitions are starts
            extras=ring.take("extras", now),
        )

    def _folded(self, ring: Ring, start: Tensor) -> Batch:
        slot, lane = start // ring.lanes, start % ring.lanes
        ahead = torch.arange(self.n_step, device=start.device).unsqueeze(1)
        cells = ring.cells(slot + ahead, lane)  # [n, B]
        keep = ring.take("keep", cells)
        mask = ring.take("mask", start.unsqueeze(0))
        # A row counts if no row before it ended the episode.
        counts = torch.cat((mask, keep[:-1])).cumprod(0).bool()  # [n, B]
        discount = torch.where(counts, ring.take("discount", cells), 1.0).cumprod(0)
        weight = torch.cat((torch.ones_like(discount[:1]), discount[:-1]))
        reward = torch.where(counts, weight * ring.take("reward", cells), 0.0).sum(0, keepdim=True)
        after = ring.cells(slot + counts.sum(0), lane)
        reset = ring.take("reset", start)
        return Batch(
            obs=ring.observe(torch.stack((start, after))),
            reset=torch.stack((reset, torch.zeros_like(reset))),
            action=ring.take("action", start.unsqueeze(0)),
            reward=reward,
            discount=discount[-1:],
            keep=(keep | ~counts).all(0, keepdim=True).float(),
            mask=mask.float(),
            extras=ring.take("extras", start.unsqueeze(0)),
        )


@dataclass(frozen=True)
class Sequences:
    """Windows of `burn_in + length` one-step rows and their last successor, opened from stored memory.

    For an n-step target on T rows ask for `length` T + n - 1 and fold with `ops`: the last rows only feed the others.
    Rows of the burn-in are masked. A window may begin at a final row: with a stride its other rows would else never be
    seen, and that row is masked anyway.
    """

    length: int
    burn_in: int = 0
    stride: int = 1

    @property
    def span(self) -> int:
        return self.burn_in + self.length

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        return torch.ones_like(start, dtype=torch.bool)

    def gather(self, ring: Ring, start: Tensor) -> Batch:
        slot, lane = start // ring.lanes * self.stride, start % ring.lanes
        ahead = torch.arange(self.span + 1, device=start.device).unsqueeze(1)
        all_rows = ring.cells(slot + ahead, lane)  # [T+1, B]
        now = all_rows[:-1]
        real = ring.take("mask", now)
        mask = real.float()
        mask[: self.burn_in].zero_()
        action = ring.take("action", now)
        # Whatever was written into rows that are no transition stays there.
        return Batch(
            obs=ring.observe(all_rows),
            reset=ring.take("reset", all_rows),
            action=tree.where(real, action, tree.map(torch.zeros_like, action)),
            reward=torch.where(real, ring.take("reward", now), 0.0),
            discount=ring.take("discount", now),
            keep=ring.take("keep", now).float(),
            mask=mask,
            memory=take(ring.memories, slot // ring.stride * ring.lanes + lane),
            burn_in=self.burn_in,
            extras=ring.take("extras", now),
        )
