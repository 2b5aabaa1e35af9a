"""How replay chooses where samples start (evenly, or by priority) and what a start becomes (transition, sequence).

All of it is index arithmetic on the ring's device: nothing here waits for a value.
"""

from dataclasses import dataclass
from typing import Any, Protocol

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
            obs=ring.take("obs", torch.stack((start, after))),
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
        mask = ring.take("mask", now).float()
        mask[: self.burn_in].zero_()
        return Batch(
            obs=ring.take("obs", all_rows),
            reset=ring.take("reset", all_rows),
            action=ring.take("action", now),
            reward=ring.take("reward", now),
            discount=ring.take("discount", now),
            keep=ring.take("keep", now).float(),
            mask=mask,
            memory=take(ring.memories, slot // ring.stride * ring.lanes + lane),
            burn_in=self.burn_in,
            extras=ring.take("extras", now),
        )


class Sampler(Protocol):
    """Which starts are drawn. Starts come and go in the order of their rows."""

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        """These starts [N] can be drawn from now on, where `allowed`."""

    def release(self, start: Tensor, allowed: Tensor) -> None:
        """The oldest starts are about to be overwritten."""

    def draw(self, count: int, steps: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """`count` starts, and extras for the batch; `steps` have been seen so far."""

    def settle(self, batch: Batch, priority: Tensor | None) -> None:
        """What learning said about a batch."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Every allowed start is equally likely: a queue of start numbers, whose ends are known to the device alone."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        # One place more, into which refused starts are written.
        self.queue = torch.zeros(size + 1, dtype=torch.int64, device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self.first)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        place = (self.first + self.count + allowed.cumsum(0) - 1) % self.size
        self.queue.scatter_(0, torch.where(allowed, place, self.size), start)
        self.count.add_(allowed.sum())

    def release(self, start: Tensor, allowed: Tensor) -> None:
        gone = allowed.sum()
        self.first.add_(gone).remainder_(self.size)
        self.count.sub_(gone)

    def draw(self, count: int, steps: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=self.queue.device)
        place = (self.first + (uniform * self.count).long()) % self.size
        return self.queue[place], {}

    def settle(self, batch: Batch, priority: Tensor | None) -> None:
        """Nothing to remember."""

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue, "first": self.first, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tree.copy_(self.state_dict(), state)


@dataclass(frozen=True)
class Priorities:
    """Settings of prioritized replay (Schaul et al. 2016, arXiv:1511.05952)."""

    alpha: float = 0.6
    """how much priorities count: 0 not at all, 1 in proportion"""
    beta: float = 0.4
    """how much of the bias the weights take back at the start; grows to 1"""
    beta_steps: int = 1_000_000
    """environment steps until it is 1"""
    eta: float = 0.9
    """of a sequence's errors: eta * max + (1 - eta) * mean (Kapturowski et al. 2019)"""
    epsilon: float = 1e-6
    """added to each error, so that no row is lost for good"""


class Prioritized:
    """P(i) = p_i^alpha / sum p^alpha, with weights (P(i) / min_batch P)^-beta in `extras["weight"]` [B].

    New rows get the largest priority seen so far. `extras["index"]` [B] tells `settle` which rows were learned from.
    """

    def __init__(self, size: int, device: torch.device, cfg: Priorities) -> None:
        self.cfg = cfg
        self.sums = BlockSums(size, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.sums.write(start, torch.where(allowed, self.largest, 0.0))

    def release(self, start: Tensor, allowed: Tensor) -> None:
        self.sums.write(start, torch.zeros_like(start, dtype=torch.float64))

    def beta(self, steps: int) -> float:
        """The exponent of the weights after `steps`."""
        share = min(1.0, steps / max(self.cfg.beta_steps, 1))
        return self.cfg.beta + (1 - self.cfg.beta) * share

    def draw(self, count: int, steps: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        device = self.largest.device
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=device)
        # One draw from each of `count` equal shares of the mass.
        share = (torch.arange(count, device=device) + uniform) / count
        index = self.sums.find(share * self.sums.total())
        mass = self.sums.leaves[index]
        weight = (mass / mass.min()).pow(-self.beta(steps))
        return index, {"index": index, "weight": weight.float()}

    def settle(self, batch: Batch, priority: Tensor | None) -> None:
        if priority is None:
            raise ValueError("prioritized replay needs Updated.priority, errors [B] or [T, B]")
        if priority.dim() == 2:
            priority = sequence_priority(priority, batch.mask, self.cfg.eta)
        index = batch.extras["index"]
        mass = (priority.detach().double().abs() + self.cfg.epsilon).pow(self.cfg.alpha)
        self.largest.copy_(torch.maximum(self.largest, mass.max()))
        leaves = self.sums.leaves
        # Rows that were overwritten since stay out. Of a row that was drawn twice the larger priority counts,
        # so that the order of the writes does not.
        mass = torch.where(leaves[index] > 0, mass, 0.0)
        leaves.scatter_(0, index, 0.0).scatter_reduce_(0, index, mass, "amax")
        self.sums.write(index, leaves[index])

    def state_dict(self) -> dict[str, Any]:
        return {
            "largest": self.largest,
            "levels": {str(i): level for i, level in enumerate(self.sums.levels)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tree.copy_(self.state_dict(), state)


def sequence_priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """eta * max |error| + (1 - eta) * mean |error| over the unmasked rows of each lane: [T, B] -> [B]."""
    size = torch.where(mask > 0, error.abs(), 0.0)
    count = (mask > 0).sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / count


class BlockSums:
    """Non-negative numbers, and their sums in a few wide levels, from which one draws in proportion.

    Sums are recomputed from what lies below them, never incremented, so that no rounding error builds up.
    """

    def __init__(self, size: int, device: torch.device, width: int = 128) -> None:
        self.width = width
        self.levels: list[Tensor] = []
        """leaves first; the last level is one block"""
        blocks = size
        while not self.levels or blocks > 1:
            blocks = -(-blocks // width)
            self.levels.append(torch.zeros(blocks * width, dtype=torch.float64, device=device))

    @property
    def leaves(self) -> Tensor:
        return self.levels[0]

    def total(self) -> Tensor:
        """The sum of all numbers, 0-dim."""
        return self.levels[-1].sum()

    def write(self, index: Tensor, value: Tensor) -> None:
        """Set numbers; where `index` [N] repeats itself the values must agree."""
        self.leaves.scatter_(0, index, value)
        for below, level in zip(self.levels, self.levels[1:]):
            blocks = below.reshape(-1, self.width)
            index = index // self.width
            if len(index) < len(blocks):
                level.scatter_(0, index, blocks.index_select(0, index).sum(1))
            else:
                level[: len(blocks)] = blocks.sum(1)

    def find(self, point: Tensor) -> Tensor:
        """The leaves under points [B] of [0, total). A leaf of mass zero is never found unless all are zero."""
        node = torch.zeros_like(point, dtype=torch.int64)
        number = torch.arange(self.width, device=point.device)
        for level in reversed(self.levels):
            block = level.reshape(-1, self.width).index_select(0, node)  # [B, width]
            below = block.cumsum(1)
            # Rounding can push a point past the end of its block, or on a device a sum past its successor:
            # only numbers above zero count, and past the end it is the last of them.
            first = torch.where((below > point.unsqueeze(1)) & (block > 0), number, self.width).amin(1)
            last = torch.where(block > 0, number, 0).amax(1)
            choice = torch.minimum(first, last)
            before = (below - block).gather(1, choice.unsqueeze(1)).squeeze(1)
            point = (point - before).clamp(min=0)
            node = node * self.width + choice
        return node
