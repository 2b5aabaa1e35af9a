"""What a start in the ring becomes: a transition, folded over several rows or not, or a sequence.

All of it is index arithmetic on the ring's device: nothing here waits for a value.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.data.batch import LAST, Batch, led_by
from whorl.data.ring import Ring, take


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
        after = (start + ring.num_envs) % (ring.slots * ring.num_envs)
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
        slot, env_index = start // ring.num_envs, start % ring.num_envs
        ahead = torch.arange(self.n_step, device=start.device).unsqueeze(1)
        cells = ring.cells(slot + ahead, env_index)  # [n, B]
        keep = ring.take("keep", cells)
        mask = ring.take("mask", start.unsqueeze(0))
        # A row counts if no row before it ended the episode.
        counts = torch.cat((mask, keep[:-1])).cumprod(0).bool()  # [n, B]
        discount = torch.where(counts, ring.take("discount", cells), 1.0).cumprod(0)
        weight = torch.cat((torch.ones_like(discount[:1]), discount[:-1]))
        reward = torch.where(counts, weight * ring.take("reward", cells), 0.0).sum(0, keepdim=True)
        after = ring.cells(slot + counts.sum(0), env_index)
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
    """Windows of `burn_in + length` rows, opened from stored memory, each row folded over up to `n_step` rows.

    Every row has its own folded reward and discount, and `ahead` is the row it bootstraps from; with `n_step` 1 that is
    the next one. Rows of the burn-in are masked. A window may begin at a final row: with a stride its other rows would
    else never be seen, and that row is masked anyway.

    Args:
        whole: windows begin where episodes do, and what follows their end is masked.
        last: tell the action and the reward before each row; before the first, what memory holds of them.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    n_step: int = 1
    whole: bool = False
    last: bool = False

    @property
    def span(self) -> int:
        return self.burn_in + self.length + self.n_step - 1

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        if self.whole:
            return ring.take("reset", start) & ring.take("mask", start)
        return torch.ones_like(start, dtype=torch.bool)

    def gather(self, ring: Ring, start: Tensor) -> Batch:
        slot, env_index = start // ring.num_envs * self.stride, start % ring.num_envs
        ahead = torch.arange(self.span + 1, device=start.device).unsqueeze(1)
        every = ring.cells(slot + ahead, env_index)  # [T+n, B]
        rows = every[:-1]  # [T+n-1, B]
        now = every[: self.burn_in + self.length]  # [T, B]
        real, keep = ring.take("mask", rows), ring.take("keep", rows)
        # Whatever was written into rows that are no transition stays there.
        reward = torch.where(real, ring.take("reward", rows), 0.0)
        action = ring.take("action", rows)
        action = tree.where(real, action, tree.map(torch.zeros_like, action))
        reset = ring.take("reset", every)
        memory = take(ring.memories, slot // ring.stride * ring.num_envs + env_index)
        count = len(now)
        mask = real[:count].float()
        if self.whole:
            mask = mask * torch.cat((torch.ones_like(mask[:1]), (~reset[1:count]).float().cumprod(0)))
        mask[: self.burn_in].zero_()
        last = {}
        if self.last:
            done = {"action": action, "reward": reward}
            first = memory.get(LAST) or tree.map(lambda leaf: torch.zeros_like(leaf[0]), done)
            last = led_by(first, done)
        batch = Batch(
            obs=ring.observe(every),
            reset=reset,
            action=tree.index(action, slice(0, count)),
            reward=reward[:count],
            discount=ring.take("discount", now),
            keep=keep[:count].float(),
            mask=mask,
            memory=memory,
            burn_in=self.burn_in,
            last=last,
            extras=ring.take("extras", now),
        )
        return batch if self.n_step == 1 else self._folded(batch, reward, ring.take("discount", rows), keep)

    def _folded(self, batch: Batch, reward: Tensor, discount: Tensor, keep: Tensor) -> Batch:
        """With returns over up to `n_step` of the rows [T+n-1, B], never past an episode's end."""
        count = batch.shape[0]
        folded, weight = torch.zeros_like(batch.reward), torch.ones_like(batch.reward)
        counts, kept = torch.ones_like(keep[:count]), torch.ones_like(keep[:count])
        ahead = torch.arange(count, device=keep.device).unsqueeze(1).expand(keep[:count].shape)
        for step in range(self.n_step):
            row = slice(step, step + count)
            folded = folded + torch.where(counts, weight * reward[row], 0.0)
            weight = torch.where(counts, weight * discount[row], weight)
            ahead = ahead + counts
            kept = kept & (keep[row] | ~counts)
            counts = counts & keep[row]
        return batch.replace(reward=folded, discount=weight, keep=kept.float(), ahead=ahead)
