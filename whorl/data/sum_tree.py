"""Sum trees: the priorities p^alpha of prioritized replay, drawn in proportion to their size.

A tree has few, wide levels, since each level costs several operators: leaves are grouped in blocks, sums of blocks are
grouped again, and the last level is short enough to be searched as a whole. Sums are recomputed from the level below,
never incremented, so rounding errors do not accumulate.

Two implementations give the same results for the same random numbers: one in torch, with static shapes and without host
synchronisation, and one for the host in numpy, whose small operators take half the time.
"""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

TINY = 1e-300
"""larger than zero, smaller than every priority that is not zero"""


class SumTree(Protocol):
    """A priority for every start; zero if it cannot be drawn."""

    levels: list[Tensor]
    """leaves (float32), then the levels of sums (float64); all but the last consist of whole blocks"""
    largest: Tensor
    """the largest priority so far, 0-dim"""

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        """Give starts [N] the largest priority so far, or zero where they are not allowed."""

    def release(self, start: Tensor) -> None:
        """Set the priorities of starts [N] to zero."""

    def renew(self, start: Tensor, error: Tensor) -> None:
        """Set priorities from TD errors [N]; starts that cannot be drawn are skipped.

        If a start occurs twice, the larger priority is used, so that the result does not depend on the order.
        """

    def recompute(self) -> None:
        """Recompute all sums."""

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        """One start from each of `count` strata, and its importance weight (priority / smallest priority)^-beta."""


class DeviceSumTree:
    """`SumTree` in torch.

    Args:
        alpha: exponent of |error| + epsilon.
        clip: bounds of |error|.
        width: entries per block.
        top: maximum length of the last level, which is searched as a whole.
    """

    WIDTH, TOP = 128, 2**13

    def __init__(
        self,
        size: int,
        device: torch.device,
        alpha: float,
        epsilon: float,
        clip: tuple[float, float],
        *,
        width: int = WIDTH,
        top: int = TOP,
    ) -> None:
        self.alpha, self.epsilon, self.clip, self.width = alpha, epsilon, clip, width
        self.levels = make_levels(size, width, top, device)
        self.largest = torch.full((), initial_priority(alpha, clip), device=device)
        self._blocks = [level.view(-1, width) for level in self.levels[:-1]]
        self._ends: dict[int, Tensor] = {}

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.write(start, torch.where(allowed, self.largest, 0.0))

    def release(self, start: Tensor) -> None:
        self.write(start, torch.zeros_like(start, dtype=torch.float32))

    def renew(self, start: Tensor, error: Tensor) -> None:
        # An error that is not finite would spoil all sums: it counts as zero.
        error = error.float().abs().nan_to_num_(0.0, 0.0)
        if self.clip != (0.0, math.inf):
            error.clamp_(*self.clip)
        priority = error.add_(self.epsilon).pow_(self.alpha)
        torch.maximum(self.largest, priority.max(), out=self.largest)
        leaves = self.levels[0]
        priority.mul_(leaves.index_select(0, start).sign_())
        leaves.scatter_reduce_(0, start, priority, "amax", include_self=False)
        self._refresh(start)

    def recompute(self) -> None:
        self._refresh(torch.arange(len(self.levels[0]), device=self.largest.device))

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        if count not in self._ends:
            numbers = torch.arange(1, count + 1, dtype=torch.float64, device=beta.device)
            self._ends[count] = numbers / count
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=beta.device)
        index = self.find(torch.sub(self._ends[count], uniform, alpha=1 / count))
        priority = self.levels[0].index_select(0, index)
        return index, (priority.min() / priority).pow_(beta)

    def write(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities; entries of `index` [N] that occur twice must have equal values."""
        self.levels[0].scatter_(0, index, priority)
        self._refresh(index)

    def find(self, share: Tensor) -> Tensor:
        """The starts at which the cumulative sum reaches these fractions [B] of the total, from (0, 1].

        A priority of zero is never found unless all are zero: a point in (0, sum] of a block belongs to an entry above
        zero. Rounding can move a point out of this interval, so it is clipped.
        """
        priority = self.levels[-1]
        running, point, choice = _reach(priority, share * priority.sum())
        node = choice.squeeze(1)
        for blocks in reversed(self._blocks):
            point = (point - (_at(running, choice) - _at(priority, choice))).clamp_(min=TINY)
            priority = blocks.index_select(0, node)  # [B, width]
            running, point, choice = _reach(priority, point)
            node = torch.add(choice.squeeze(1), node, alpha=self.width)
        return node

    def _refresh(self, index: Tensor) -> None:
        """Recompute the sums that contain these entries [N]."""
        for blocks, level in zip(self._blocks, self.levels[1:]):
            index = index // self.width
            if len(index) < len(blocks):
                level.scatter_(0, index, blocks.index_select(0, index).sum(1, dtype=torch.float64))
            else:
                level[: len(blocks)] = blocks.sum(1, dtype=torch.float64)


def _reach(priority: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cumulative sums ([N] for all points, or [B, N]), clipped points [B], and the indices [B, 1] that reach them."""
    running = priority.cumsum(-1, dtype=torch.float64)
    # A parallel scan rounds each sum differently, so sums may increase at a zero: only entries above zero count.
    running = torch.where(priority > 0, running, 0.0)
    point = torch.minimum(point, running.amax(-1))
    first = (running >= point.unsqueeze(1)).view(torch.uint8).argmax(1, keepdim=True)
    return running, point, first


def _at(line: Tensor, choice: Tensor) -> Tensor:
    """The entries at `choice` [B, 1] of lines [B, N], or of one line [N] for all: [B]."""
    return line.expand(len(choice), -1).gather(1, choice).squeeze(1)


class HostSumTree:
    """`SumTree` in numpy, on the memory of the tensors; arguments as for `DeviceSumTree`."""

    WIDTH, TOP = 16, 2**14

    def __init__(
        self,
        size: int,
        device: torch.device,
        alpha: float,
        epsilon: float,
        clip: tuple[float, float],
        *,
        width: int = WIDTH,
        top: int = TOP,
    ) -> None:
        self.alpha, self.epsilon, self.clip, self.width = alpha, epsilon, clip, width
        self.levels = make_levels(size, width, top, device)
        self.largest = torch.full((), initial_priority(alpha, clip), device=device)
        self._largest: np.ndarray = self.largest.numpy()
        self._leaves, *self._sums = [level.numpy() for level in self.levels]
        self._blocks = [level.numpy().reshape(-1, width) for level in self.levels[:-1]]
        self._ones = np.ones(width)
        # A zero, followed by the cumulative sums of the last level.
        self._running = np.zeros(len(self.levels[-1]) + 1)
        self._running_tensor = torch.from_numpy(self._running[1:])
        self._buffers_of: dict[int, _Buffers] = {}

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.write(start.numpy(), allowed.numpy() * self._largest)

    def release(self, start: Tensor) -> None:
        self.write(start.numpy(), np.float32(0))

    def renew(self, start: Tensor, error: Tensor) -> None:
        size, index = np.abs(error.float().numpy()), start.numpy()
        if not math.isfinite(np.maximum.reduce(size)):  # the methods `max` and `min` take twice as long
            size[~np.isfinite(size)] = 0
        if self.clip != (0.0, math.inf):
            np.clip(size, *self.clip, out=size)
        size += self.epsilon
        priority = np.power(size, self.alpha, out=size)
        np.maximum(self._largest, np.maximum.reduce(priority), out=self._largest)
        priority *= self._leaves.take(index) > 0
        self._leaves[index] = 0
        np.maximum.at(self._leaves, index, priority)
        self._refresh(index)

    def recompute(self) -> None:
        self._refresh(np.arange(len(self._leaves)))

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        held = self._buffers(count)
        held.uniform_tensor.uniform_(generator=generator)
        index = self.find(held.ends - held.uniform * (1 / count))
        priority = self._leaves.take(index)
        weight = np.minimum.reduce(priority) / priority
        np.power(weight, beta.item(), out=weight)
        return torch.from_numpy(index), torch.from_numpy(weight)

    def write(self, index: np.ndarray, priority: np.ndarray | np.float32) -> None:
        """Set priorities; entries of `index` [N] that occur twice must have equal values."""
        self._leaves[index] = priority
        self._refresh(index)

    def find(self, share: np.ndarray) -> np.ndarray:
        """See `DeviceSumTree.find`. torch.cumsum adds in order on a CPU, and is faster than numpy's."""
        held, width = self._buffers(len(share)), self.width
        torch.cumsum(self.levels[-1], 0, out=self._running_tensor)
        point = share * self._running[-1]
        node = self._running[1:].searchsorted(point)
        point -= self._running.take(node)
        for depth in reversed(range(len(self._blocks))):
            block, block_tensor = held.blocks[min(depth, 1)]
            # All indices are valid; mode "clip" avoids a copy that numpy makes to be able to raise.
            self._blocks[depth].take(node, 0, out=block, mode="clip")
            torch.cumsum(block_tensor, 1, dtype=torch.float64, out=held.running_tensor)
            np.minimum(point, held.end, out=point)
            choice = (held.reached >= point[:, None]).argmax(1)
            node *= width
            node += choice
            if depth:
                choice += held.rows
                point -= held.before.take(choice)
        return node

    def _buffers(self, count: int) -> "_Buffers":
        if count not in self._buffers_of:
            self._buffers_of[count] = _Buffers(count, self.width)
        return self._buffers_of[count]

    def _refresh(self, index: np.ndarray) -> None:
        for blocks, level in zip(self._blocks, self._sums):
            index = index // self.width
            if len(index) < len(blocks):
                level[index] = blocks.take(index, 0) @ self._ones
            else:
                level[: len(blocks)] = blocks @ self._ones


class _Buffers:
    """Preallocated arrays for one batch size, also as tensors; allocating them each time would double the cost."""

    def __init__(self, count: int, width: int) -> None:
        self.ends = np.arange(1, count + 1) / count
        self.uniform = np.zeros(count)
        self.uniform_tensor = torch.from_numpy(self.uniform)
        blocks = [np.zeros((count, width), dtype) for dtype in (np.float32, np.float64)]
        self.blocks = [(block, torch.from_numpy(block)) for block in blocks]
        """for leaves, and for sums"""
        running = np.zeros((count, width + 1))  # a zero, then cumulative sums
        self.before, self.rows = running.reshape(-1), np.arange(count) * (width + 1)
        self.reached, self.end = running[:, 1:], running[:, -1]
        self.running_tensor = torch.from_numpy(self.reached)


def make_levels(size: int, width: int, top: int, device: torch.device) -> list[Tensor]:
    """`size` leaves, and levels of sums until one has at most `top` entries."""
    lengths = [size]
    while len(lengths) == 1 or lengths[-1] > top:
        lengths.append(-(-lengths[-1] // width))
    whole = [-(-length // width) * width for length in lengths[:-1]]
    return [
        torch.zeros(length, dtype=torch.float64 if depth else torch.float32, device=device)
        for depth, length in enumerate((*whole, lengths[-1]))
    ]


def sum_tree_bytes(size: int, device: torch.device) -> int:
    """Size of a sum tree for `size` starts on `device` in bytes, without allocating it."""
    kind = HostSumTree if device.type == "cpu" else DeviceSumTree
    return sum(level.nbytes for level in make_levels(size, kind.WIDTH, kind.TOP, torch.device("meta")))


def initial_priority(alpha: float, clip: tuple[float, float]) -> float:
    """Priority of new rows before the first TD error: that of an error of 1."""
    return float(min(1.0, clip[1]) ** alpha)
