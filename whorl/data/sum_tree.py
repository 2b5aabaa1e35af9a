"""The masses p^alpha of prioritized replay, from which one draws in proportion.

They lie in blocks, the sums of blocks lie in blocks again, and the last level is short enough to be searched whole: a
few wide levels, since each one costs a handful of operators. Sums are recomputed from what lies below them, never
incremented, so that no rounding error builds up.

The same arithmetic twice: in torch with static shapes and nothing that waits for a value, and for the host in numpy,
whose small operators take half the time. On the same uniform numbers both draw the same rows.
"""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

TINY = 1e-300
"""above zero, and below every mass that is"""


class SumTree(Protocol):
    """A mass for every start; zero where it can't be drawn."""

    levels: list[Tensor]
    """leaves first, as float32, then sums, as float64; all but the last are whole blocks"""
    largest: Tensor
    """of all masses so far, 0-dim"""

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        """Starts [N] get the largest mass, or none where they are not allowed."""

    def release(self, start: Tensor) -> None:
        """Starts [N] can't be drawn any more."""

    def renew(self, start: Tensor, error: Tensor) -> None:
        """Masses from errors [N]; starts that can't be drawn are passed over.

        Of a start that is named twice the larger mass counts, so that the order of the writes does not.
        """

    def recompute(self) -> None:
        """All sums anew."""

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        """One start from each of `count` equal shares of the whole, and its weight (mass / smallest mass)^-beta."""


class DeviceSumTree:
    """`SumTree` in torch.

    Args:
        alpha: exponent of |error| + epsilon.
        clip: bounds of |error|.
        width: masses per block.
        top: the longest level that is searched whole.
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
        self.largest = torch.full((), first_mass(alpha, clip), device=device)
        self._blocks = [level.view(-1, width) for level in self.levels[:-1]]
        self._ends: dict[int, Tensor] = {}

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.write(start, torch.where(allowed, self.largest, 0.0))

    def release(self, start: Tensor) -> None:
        self.write(start, torch.zeros_like(start, dtype=torch.float32))

    def renew(self, start: Tensor, error: Tensor) -> None:
        # What is no number would spoil all sums: it counts as no error.
        error = error.float().abs().nan_to_num_(0.0, 0.0)
        if self.clip != (0.0, math.inf):
            error.clamp_(*self.clip)
        mass = error.add_(self.epsilon).pow_(self.alpha)
        torch.maximum(self.largest, mass.max(), out=self.largest)
        leaves = self.levels[0]
        mass.mul_(leaves.index_select(0, start).sign_())
        leaves.scatter_reduce_(0, start, mass, "amax", include_self=False)
        self._refresh(start)

    def recompute(self) -> None:
        self._refresh(torch.arange(len(self.levels[0]), device=self.largest.device))

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        if count not in self._ends:
            numbers = torch.arange(1, count + 1, dtype=torch.float64, device=beta.device)
            self._ends[count] = numbers / count
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=beta.device)
        index = self.find(torch.sub(self._ends[count], uniform, alpha=1 / count))
        mass = self.levels[0].index_select(0, index)
        return index, (mass.min() / mass).pow_(beta)

    def write(self, index: Tensor, mass: Tensor) -> None:
        """Set masses; where `index` [N] repeats itself they must agree."""
        self.levels[0].scatter_(0, index, mass)
        self._refresh(index)

    def find(self, share: Tensor) -> Tensor:
        """Where the running sum of all masses reaches these shares [B] of the whole, out of (0, 1].

        A mass of zero is never found unless all are: within a block, a point of (0, sum] lies under a mass above zero.
        Rounding can push a point out of there, so it is put back.
        """
        mass = self.levels[-1]
        running, point, choice = _reach(mass, share * mass.sum())
        node = choice.squeeze(1)
        for blocks in reversed(self._blocks):
            point = (point - (_at(running, choice) - _at(mass, choice))).clamp_(min=TINY)
            mass = blocks.index_select(0, node)  # [B, width]
            running, point, choice = _reach(mass, point)
            node = torch.add(choice.squeeze(1), node, alpha=self.width)
        return node

    def _refresh(self, index: Tensor) -> None:
        """Recompute the sums over these masses [N]."""
        for blocks, level in zip(self._blocks, self.levels[1:]):
            index = index // self.width
            if len(index) < len(blocks):
                level.scatter_(0, index, blocks.index_select(0, index).sum(1, dtype=torch.float64))
            else:
                level[: len(blocks)] = blocks.sum(1, dtype=torch.float64)


def _reach(mass: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Running sums of masses, [N] for all points or [B, N]; points [B] put back; where [B, 1] the sums reach them."""
    running = mass.cumsum(-1, dtype=torch.float64)
    # A scan in parallel rounds each sum in its own way, so that it may rise at a zero: only masses above it count.
    running = torch.where(mass > 0, running, 0.0)
    point = torch.minimum(point, running.amax(-1))
    first = (running >= point.unsqueeze(1)).view(torch.uint8).argmax(1, keepdim=True)
    return running, point, first


def _at(line: Tensor, choice: Tensor) -> Tensor:
    """Of lines [B, N], or one for all [N], what lies at `choice` [B, 1]: [B]."""
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
        self.largest = torch.full((), first_mass(alpha, clip), device=device)
        self._largest: np.ndarray = self.largest.numpy()
        self._leaves, *self._sums = [level.numpy() for level in self.levels]
        self._blocks = [level.numpy().reshape(-1, width) for level in self.levels[:-1]]
        self._ones = np.ones(width)
        # A zero, and the running sums of the last level.
        self._running = np.zeros(len(self.levels[-1]) + 1)
        self._running_tensor = torch.from_numpy(self._running[1:])
        self._rooms: dict[int, _Room] = {}

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.write(start.numpy(), allowed.numpy() * self._largest)

    def release(self, start: Tensor) -> None:
        self.write(start.numpy(), np.float32(0))

    def renew(self, start: Tensor, error: Tensor) -> None:
        size, index = np.abs(error.float().numpy()), start.numpy()
        if not math.isfinite(size.max()):
            size[~np.isfinite(size)] = 0
        if self.clip != (0.0, math.inf):
            np.clip(size, *self.clip, out=size)
        size += self.epsilon
        mass = np.power(size, self.alpha, out=size)
        np.maximum(self._largest, mass.max(), out=self._largest)
        mass *= self._leaves.take(index) > 0
        self._leaves[index] = 0
        np.maximum.at(self._leaves, index, mass)
        self._refresh(index)

    def recompute(self) -> None:
        self._refresh(np.arange(len(self._leaves)))

    def draw(self, count: int, generator: torch.Generator, beta: Tensor) -> tuple[Tensor, Tensor]:
        room = self._room(count)
        room.uniform_tensor.uniform_(generator=generator)
        index = self.find(room.ends - room.uniform * (1 / count))
        mass = self._leaves.take(index)
        weight = mass.min() / mass
        np.power(weight, beta.item(), out=weight)
        return torch.from_numpy(index), torch.from_numpy(weight)

    def write(self, index: np.ndarray, mass: np.ndarray | np.float32) -> None:
        """Set masses; where `index` [N] repeats itself they must agree."""
        self._leaves[index] = mass
        self._refresh(index)

    def find(self, share: np.ndarray) -> np.ndarray:
        """As `DeviceSumTree.find`. Running sums are torch's, which on a host adds in order, and sooner than numpy."""
        room, width = self._room(len(share)), self.width
        torch.cumsum(self.levels[-1], 0, out=self._running_tensor)
        point = share * self._running[-1]
        node = self._running[1:].searchsorted(point)
        point -= self._running.take(node)
        for depth in reversed(range(len(self._blocks))):
            block, block_tensor = room.blocks[min(depth, 1)]
            # All of these are there; "clip" keeps numpy from filling a copy first, in case they were not.
            self._blocks[depth].take(node, 0, out=block, mode="clip")
            torch.cumsum(block_tensor, 1, dtype=torch.float64, out=room.running_tensor)
            np.minimum(point, room.end, out=point)
            choice = (room.reached >= point[:, None]).argmax(1)
            node *= width
            node += choice
            if depth:
                choice += room.rows
                point -= room.before.take(choice)
        return node

    def _room(self, count: int) -> "_Room":
        if count not in self._rooms:
            self._rooms[count] = _Room(count, self.width)
        return self._rooms[count]

    def _refresh(self, index: np.ndarray) -> None:
        for blocks, level in zip(self._blocks, self._sums):
            index = index // self.width
            if len(index) < len(blocks):
                level[index] = blocks.take(index, 0) @ self._ones
            else:
                level[: len(blocks)] = blocks @ self._ones


class _Room:
    """Arrays for draws of one batch size, and the same memory as tensors: to make them anew is half of the work."""

    def __init__(self, count: int, width: int) -> None:
        self.ends = np.arange(1, count + 1) / count
        self.uniform = np.zeros(count)
        self.uniform_tensor = torch.from_numpy(self.uniform)
        blocks = [np.zeros((count, width), dtype) for dtype in (np.float32, np.float64)]
        self.blocks = [(block, torch.from_numpy(block)) for block in blocks]
        """of leaves, and of sums"""
        running = np.zeros((count, width + 1))  # a zero, and running sums
        self.before, self.rows = running.reshape(-1), np.arange(count) * (width + 1)
        self.reached, self.end = running[:, 1:], running[:, -1]
        self.running_tensor = torch.from_numpy(self.reached)


def make_levels(size: int, width: int, top: int, device: torch.device) -> list[Tensor]:
    """`size` leaves, and sums of blocks until no more than `top` are left."""
    lengths = [size]
    while len(lengths) == 1 or lengths[-1] > top:
        lengths.append(-(-lengths[-1] // width))
    whole = [-(-length // width) * width for length in lengths[:-1]]
    return [
        torch.zeros(length, dtype=torch.float64 if depth else torch.float32, device=device)
        for depth, length in enumerate((*whole, lengths[-1]))
    ]


def sum_tree_bytes(size: int, device: torch.device) -> int:
    """What masses of `size` starts will take on `device`, without allocating them."""
    kind = HostSumTree if device.type == "cpu" else DeviceSumTree
    return sum(level.nbytes for level in make_levels(size, kind.WIDTH, kind.TOP, torch.device("meta")))


def first_mass(alpha: float, clip: tuple[float, float]) -> float:
    """What rows get before there are errors: that of an error of 1."""
    return float(min(1.0, clip[1]) ** alpha)
