"""How replay chooses where samples start (evenly, or by priority) and what a start becomes (transition, sequence).

All of it is index arithmetic on the ring's device: nothing here waits for a value.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl import tree
from whorl.experience.batch import Batch
from whorl.experience.masses import DeviceMasses, HostMasses, Masses
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
        """Errors [B] or [T, B] that learning found in samples drawn as `index` [B], whose mask is [T, B]."""

    def appraise(self, start: Tensor, priority: Tensor) -> None:
        """Errors [N] or [1, N] of starts; those that can't be drawn are passed over."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Every allowed start is equally likely: a queue of start numbers, whose ends are known to the device alone."""

    learns = False

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        # One place more, into which refused starts are written.
        number = torch.int32 if size < 2**31 else torch.int64
        self.queue = torch.zeros(size + 1, dtype=number, device=device)
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

    def appraise(self, start: Tensor, priority: Tensor) -> None:
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
    clip: tuple[float, float] = (0.0, math.inf)
    """errors count as no less and no more than this"""


class Prioritized:
    """P(i) = p_i^alpha / sum p^alpha with p = |error| + epsilon; each of B equal shares of the mass gives one draw.

    `extras["weight"]` [B] is (P(i) / min_batch P)^-beta; `extras["index"]` [B] tells `settle` which rows were learned
    from. New rows get the largest priority seen so far.
    """

    learns = True

    def __init__(self, size: int, device: torch.device, cfg: Priorities) -> None:
        self.cfg = cfg
        make = HostMasses if device.type == "cpu" else DeviceMasses
        self.masses: Masses = make(size, device, cfg.alpha, cfg.epsilon, cfg.clip)
        self.beta = torch.full((), cfg.beta, device=device)

    def admit(self, start: Tensor, allowed: Tensor) -> None:
        self.masses.admit(start, allowed)

    def release(self, start: Tensor, allowed: Tensor) -> None:
        self.masses.release(start)

    def anneal(self, steps: int) -> None:
        share = min(1.0, steps / max(self.cfg.beta_steps, 1))
        self.beta.fill_(self.cfg.beta + (1 - self.cfg.beta) * share)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        index, weight = self.masses.draw(count, generator, self.beta)
        return index, {"index": index, "weight": weight}

    def settle(self, index: Tensor, mask: Tensor, priority: Tensor) -> None:
        if priority.dim() == 2 and len(priority) > 1:
            priority = sequence_priority(priority, mask, self.cfg.eta)
        elif priority.dim() == 2:
            priority = priority * mask
        self.appraise(index, priority)

    def appraise(self, start: Tensor, priority: Tensor) -> None:
        self.masses.renew(start, priority.detach().reshape(-1))

    def state_dict(self) -> dict[str, Any]:
        return {
            "largest": self.masses.largest,
            "beta": self.beta,
            "levels": {str(depth): level for depth, level in enumerate(self.masses.levels)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tree.copy_(self.state_dict(), state)


def sequence_priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """eta * max |error| + (1 - eta) * mean |error| over the unmasked rows of each lane: [T, B] -> [B]."""
    size = torch.where(mask > 0, error.abs(), 0.0)
    count = (mask > 0).sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / count
