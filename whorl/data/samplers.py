"""How replay chooses where samples start: evenly, or by priority.

All of it is index arithmetic on the ring's device: nothing here waits for a value.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.data.sum_tree import DeviceSumTree, HostSumTree, SumTree, sum_tree_bytes


class Sampler(Protocol):
    """Which starts are drawn. Starts come and go in the order of their rows."""

    learns: bool
    """whether errors matter to it"""

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        """These starts [N] can be drawn from now on, where `allowed`."""

    def release(self, start: Tensor, allowed: Tensor) -> None:
        """The oldest starts are about to be overwritten."""

    def anneal(self, steps: int) -> None:
        """`steps` have been seen: what is scheduled moves on."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """`count` starts, and extras for the batch."""

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        """Errors [B] or [T, B] found in the samples that start at `index` [B], whose mask is [T, B].

        Starts that can't be drawn are passed over.
        """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Every allowed start is equally likely: a queue of start numbers, whose ends are known to the device alone."""

    learns = False

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        # One place more, into which refused starts are written.
        self.queue = torch.zeros(size + 1, dtype=_number(size), device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self.first)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        place = (self.first + self.count + allowed.cumsum(0) - 1) % self.size
        self.queue.scatter_(0, torch.where(allowed, place, self.size), start.to(self.queue.dtype))
        self.count.add_(allowed.sum())

    def release(self, start: Tensor, allowed: Tensor) -> None:
        gone = allowed.sum()
        self.first.add_(gone).remainder_(self.size)
        self.count.sub_(gone)

    def anneal(self, steps: int) -> None:
        """Nothing is scheduled."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=self.queue.device)
        place = uniform.mul_(self.count).long().add_(self.first).remainder_(self.size)
        return self.queue.index_select(0, place).long(), {}

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
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
    """environment steps until it is 1; 0: it stays"""
    eta: float = 0.9
    """of a sequence's errors: eta * max + (1 - eta) * mean (Kapturowski et al. 2019)"""
    epsilon: float = 1e-6
    """added to each error, so that no row is lost for good"""
    clip: tuple[float, float] = (0.0, math.inf)
    """errors count as no less and no more than this"""


class Prioritized:
    """P(i) = p_i^alpha / sum p^alpha with p = |error| + epsilon; each of B equal shares of the mass gives one draw.

    `extras["weight"]` [B] is (P(i) / min_batch P)^-beta; `extras["index"]` [B] tells `settle` which rows were learned
    from. New rows get the largest priority seen so far.
    """

    learns = True

    def __init__(self, size: int, device: torch.device, cfg: Priorities) -> None:
        self.size, self.cfg = size, cfg
        make = HostSumTree if device.type == "cpu" else DeviceSumTree
        self.masses: SumTree = make(size, device, cfg.alpha, cfg.epsilon, cfg.clip)
        self.beta = torch.full((), cfg.beta, device=device)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.masses.admit(start, allowed)

    def release(self, start: Tensor, allowed: Tensor) -> None:
        self.masses.release(start)

    def anneal(self, steps: int) -> None:
        share = min(1.0, steps / self.cfg.beta_steps) if self.cfg.beta_steps else 0.0
        self.beta.fill_(self.cfg.beta + (1 - self.cfg.beta) * share)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        index, weight = self.masses.draw(count, generator, self.beta)
        return index, {"index": index, "weight": weight}

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        self.masses.renew(index, sample_error(priority.detach(), mask, self.cfg.eta))

    def state_dict(self) -> dict[str, Any]:
        leaves, *sums = self.masses.levels
        return {
            "beta": self.beta,
            "largest": self.masses.largest,
            "mass": leaves[: self.size],
            "sums": {str(depth): level for depth, level in enumerate(sums, 1)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict()
        # Sums could be recomputed, but a resumed run must not differ in their last bit; other devices sum other blocks.
        if {k: v.shape for k, v in own["sums"].items()} != {k: v.shape for k, v in state["sums"].items()}:
            tree.copy_({**own, "sums": {}}, state)
            self.masses.recompute()
        else:
            tree.copy_(own, state)


def sample_error(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """One error for each sample [B] from those of its rows, [B] or [T, B]."""
    if error.dim() == 2 and len(error) > 1:
        return sequence_priority(error, mask, eta)
    return (error * mask if error.dim() == 2 else error).reshape(-1)


def sequence_priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """eta * max |error| + (1 - eta) * mean |error| over the unmasked rows of each environment: [T, B] -> [B]."""
    size = torch.where(mask > 0, error.abs(), 0.0)
    count = (mask > 0).sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / count


def sampler_bytes(size: int, device: torch.device, prioritized: bool) -> int:
    """What a sampler of `size` starts will take, without allocating it."""
    return sum_tree_bytes(size, device) if prioritized else (size + 1) * _number(size).itemsize


def _number(size: int) -> torch.dtype:
    return torch.int32 if size < 2**31 else torch.int64
