"""Sampling from the replay buffer: uniform or prioritized.

Everything is index arithmetic on the ring's device: no operation waits for a value on the host.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.data.sum_tree import DeviceSumTree, HostSumTree, SumTree, sum_tree_bytes


class Sampler(Protocol):
    """Draws starts of samples. Starts are added and removed in the order of their rows."""

    learns: bool
    """whether it uses TD errors"""

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        """Add these starts [N], where `allowed`."""

    def release(self, start: Tensor, allowed: Tensor) -> None:
        """Remove the oldest starts, which are about to be overwritten."""

    def any(self) -> bool:
        """Whether there is a start to draw; waits for the device."""

    def anneal(self, steps: int, progress: float) -> None:
        """Update schedules after `steps` environment steps, which are this share of the training budget."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw `count` starts; also extras for the batch."""

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        """Set priorities from the TD errors [B] or [T, B] of the samples that start at `index` [B], with mask [T, B].

        Starts that cannot be drawn any more are skipped.
        """

    def take_priorities(self, state: dict[str, Any]) -> None:
        """Take the priorities of another sampler, given by its state, if they belong to the same starts."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Uniform sampling: a queue of starts whose first and last position are device tensors."""

    learns = False

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        # One extra entry, to which zeros are written for starts that are not allowed.
        self.queue = torch.zeros(size + 1, dtype=_number(size), device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self.first)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        place = (self.first + self.count + allowed.cumsum(0) - 1) % self.size
        # Several writes to one entry have no order on a GPU, so they write the same.
        value = torch.where(allowed, start, 0).to(self.queue.dtype)
        self.queue.scatter_(0, torch.where(allowed, place, self.size), value)
        self.count.add_(allowed.sum())

    def release(self, start: Tensor, allowed: Tensor) -> None:
        gone = allowed.sum()
        self.first.add_(gone).remainder_(self.size)
        self.count.sub_(gone)

    def any(self) -> bool:
        return bool(self.count > 0)

    def anneal(self, steps: int, progress: float) -> None:
        """Uniform sampling has no schedule."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=self.queue.device)
        place = uniform.mul_(self.count).long().add_(self.first).remainder_(self.size)
        return self.queue.index_select(0, place).long(), {}

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        """Uniform sampling ignores errors."""

    def take_priorities(self, state: dict[str, Any]) -> None:
        """Uniform sampling has no priorities."""

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue, "first": self.first, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tree.copy_(self.state_dict(), state)


@dataclass(frozen=True)
class Priorities:
    """Settings of prioritized replay (Schaul et al. 2016, arXiv:1511.05952)."""

    alpha: float = 0.6
    """exponent of priorities: 0 is uniform sampling, 1 proportional sampling"""
    beta: float = 0.4
    """initial exponent of importance weights; increases to 1"""
    beta_steps: int = -1
    """environment steps until beta is 1; -1: the training budget; 0: constant"""
    eta: float = 0.9
    """priority of a sequence: eta * max + (1 - eta) * mean of its errors (Kapturowski et al. 2019)"""
    epsilon: float = 1e-6
    """added to each error, so that every row can be drawn again"""
    clip: tuple[float, float] = (0.0, math.inf)
    """errors are clipped to this range"""


class Prioritized:
    """Stratified sampling: P(i) = p_i^alpha / sum p^alpha, p = |error| + epsilon, one draw from each of B strata.

    `extras["weight"]` [B] is the importance weight (P(i) / min_batch P)^-beta; `extras["index"]` [B] are the starts for
    `settle`. New rows get the largest priority seen so far.
    """

    learns = True

    def __init__(self, size: int, device: torch.device, cfg: Priorities) -> None:
        self.size, self.cfg = size, cfg
        make = HostSumTree if device.type == "cpu" else DeviceSumTree
        self.sum_tree: SumTree = make(size, device, cfg.alpha, cfg.epsilon, cfg.clip)
        self.beta = torch.full((), cfg.beta, device=device)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.sum_tree.admit(start, allowed)

    def release(self, start: Tensor, allowed: Tensor) -> None:
        self.sum_tree.release(start)

    def any(self) -> bool:
        return bool(self.sum_tree.levels[-1].sum() > 0)

    def anneal(self, steps: int, progress: float) -> None:
        horizon = self.cfg.beta_steps
        share = progress if horizon < 0 else min(1.0, steps / horizon) if horizon else 0.0
        self.beta.fill_(self.cfg.beta + (1 - self.cfg.beta) * share)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        index, weight = self.sum_tree.draw(count, generator, self.beta)
        return index, {"index": index, "weight": weight}

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        self.sum_tree.renew(index, sample_error(priority.detach(), mask, self.cfg.eta))

    def take_priorities(self, state: dict[str, Any]) -> None:
        own, saved = self.state_dict()["leaves"], state.get("leaves")
        if saved is None or saved.shape != own.shape:
            return
        if bool(((saved.to(own.device) > 0) == (own > 0)).all()):
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        leaves, *sums = self.sum_tree.levels
        return {
            "beta": self.beta,
            "largest": self.sum_tree.largest,
            "leaves": leaves[: self.size],
            "sums": {str(depth): level for depth, level in enumerate(sums, 1)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict()
        # Restore sums bit for bit instead of recomputing them; only another device has blocks of another size.
        if {k: v.shape for k, v in own["sums"].items()} != {k: v.shape for k, v in state["sums"].items()}:
            tree.restore_({**own, "sums": {}}, state)
            self.sum_tree.recompute()
        else:
            tree.restore_(own, state)


def sample_error(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """One TD error per sample [B], from the errors of its rows [B] or [T, B]."""
    if error.dim() == 2 and len(error) > 1:
        return sequence_priority(error, mask, eta)
    return (error * mask if error.dim() == 2 else error).reshape(-1)


def sequence_priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """eta * max |error| + (1 - eta) * mean |error| over the unmasked rows of each environment: [T, B] -> [B]."""
    size = torch.where(mask > 0, error.abs(), 0.0)
    count = (mask > 0).sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / count


def sampler_bytes(size: int, device: torch.device, prioritized: bool) -> int:
    """Size of a sampler for `size` starts in bytes, without allocating it."""
    return sum_tree_bytes(size, device) if prioritized else (size + 1) * _number(size).itemsize


def _number(size: int) -> torch.dtype:
    return torch.int32 if size < 2**31 else torch.int64
