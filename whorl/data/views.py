"""Samples of the replay buffer: a transition, folded over n steps or not, or a sequence.

Everything is index arithmetic on the ring's device: no operation waits for a value on the host.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import LAST, LOG_PROB, POLICY, STEPS, STREAMS, Batch, successor_key, with_first_row
from whorl.data.discounting import Discounting
from whorl.data.ring import Ring, in_line, take


class Rows(Protocol):
    """Source of samples: a `Ring`, or its rows with other goals (`whorl.data.hindsight`)."""

    num_envs: int
    slots: int
    stride: int
    memories: Tree

    def take(self, name: str, cell: Tensor) -> Tree:
        """Values of a column at cells [..., B]: [..., B, ...]."""

    def observe(self, cell: Tensor) -> Tree:
        """Observations at cells [..., B]: [..., B, ...]."""

    def cells(self, slot: Tensor, env_index: Tensor) -> Tensor:
        """Cells of slots; slots beyond the end wrap around."""


class View(Protocol):
    """The kind of sample that begins at a start."""

    @property
    def span(self) -> int:
        """Number of rows after the start that a sample needs."""

    @property
    def stride(self) -> int:
        """Distance between two starts, in rows."""

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        """[N] bool: which of these starts may be drawn."""

    def gather(self, ring: Rows, start: Tensor, discounting: Discounting) -> Batch:
        """The samples that begin at these starts [B]."""

    def rows(self, ring: Ring, start: Tensor) -> Tensor:
        """The cells of all rows of these samples but the last: [span, B]."""


@dataclass(frozen=True)
class Transitions:
    """Single transitions with returns over up to `n_step` rows: T = 1, and row 1 is the row to bootstrap from.

    reward = sum_k (prod_{j<k} discount_j) * r_k, discount = prod_k discount_k, over rows up to the episode's end

    All reward streams bootstrap from the same row. A stream that is not episodic therefore bootstraps from the final
    observation at the end of an episode.

    Args:
        successors: also give the observations this many steps later, or the last of the episode if it ends before, in
            the extras (`successor_key`).
        steps: with n-step returns, give all rows up to the one to bootstrap from, [1+n, B], and what each of them holds
            in the extras: action, reward, discount, keep and the log-probability of the action.
    """

    n_step: int = 1
    successors: tuple[int, ...] = ()
    steps: bool = False

    @property
    def span(self) -> int:
        return max(self.n_step, *self.successors, 1)

    @property
    def stride(self) -> int:
        return 1

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        return ring.take("mask", start) & ring.has_stack(start)

    def gather(self, ring: Rows, start: Tensor, discounting: Discounting) -> Batch:
        make = self._single if self.n_step == 1 else self._folded
        batch = make(ring, start, discounting)
        for steps in self.successors:
            if steps != self.n_step or self.steps:  # else that one is row 1
                batch.extras = {**batch.extras, successor_key(steps): self._later(ring, start, steps)}
        return batch

    def _later(self, ring: Rows, start: Tensor, steps: int) -> Tree:
        """Observations [1, B, ...] up to `steps` rows after the starts, none of them behind the end of the episode."""
        slot, env_index = start // ring.num_envs, start % ring.num_envs
        ahead = torch.arange(steps - 1, device=start.device).unsqueeze(1)
        further = ring.take("keep", ring.cells(slot + ahead, env_index)).cumprod(0).sum(0) if steps > 1 else 0
        return ring.observe(ring.cells(slot + 1 + further, env_index).unsqueeze(0))

    def rows(self, ring: Ring, start: Tensor) -> Tensor:
        ahead = torch.arange(self.span, device=start.device).unsqueeze(1)
        return ring.cells(start // ring.num_envs + ahead, start % ring.num_envs)

    def _single(self, ring: Rows, start: Tensor, discounting: Discounting) -> Batch:
        """One-step transitions: the start's own values, and the row after it."""
        after = (start + ring.num_envs) % (ring.slots * ring.num_envs)
        reset = ring.take("reset", start)
        env_index = start % ring.num_envs if discounting.differs else None

        def row(name: str) -> Tree:
            return tree.map(_as_row, ring.take(name, start))

        return Batch(
            obs=ring.observe(torch.stack((start, after))),
            reset=torch.stack((reset, torch.zeros_like(reset))),
            action=row("action"),
            reward=discounting.reward(row("reward")),
            discount=discounting.discount(row("continues"), None, env_index),
            keep=discounting.keep(row("keep")),
            mask=torch.ones_like(start, dtype=torch.float32).unsqueeze(0),  # only transitions are starts
            extras=row("extras"),
        )

    def _folded(self, ring: Rows, start: Tensor, discounting: Discounting) -> Batch:
        slot, env_index = start // ring.num_envs, start % ring.num_envs
        ahead = torch.arange(self.n_step, device=start.device).unsqueeze(1)
        cells = ring.cells(slot + ahead, env_index)  # [n, B]
        keep = ring.take("keep", cells)
        mask = ring.take("mask", start.unsqueeze(0))
        # A row counts if no row before it ended the episode.
        counts = torch.cat((mask, keep[:-1])).cumprod(0).bool()  # [n, B]
        reward = discounting.reward(ring.take("reward", cells))
        discount = discounting.discount(ring.take("continues", cells), counts, env_index)
        here = tree.expand(counts, reward)
        single = {"reward": torch.where(here, reward, 0.0), "discount": torch.where(here, discount, 0.0)}
        discount = torch.where(here, discount, 1.0).cumprod(0)
        weight = torch.cat((torch.ones_like(discount[:1]), discount[:-1]))
        after = ring.cells(slot + counts.sum(0), env_index)
        reset = ring.take("reset", start)
        extras = ring.take("extras", start.unsqueeze(0))
        batch = Batch(
            obs=ring.observe(
                torch.cat((cells, after.unsqueeze(0))) if self.steps else torch.stack((start, after))
            ),
            reset=torch.stack((reset, torch.zeros_like(reset))),
            action=ring.take("action", start.unsqueeze(0)),
            reward=torch.where(here, weight * reward, 0.0).sum(0, keepdim=True),
            discount=discount[-1:],
            keep=discounting.keep((keep | ~counts).all(0, keepdim=True)),
            mask=mask.float(),
            extras=extras,
        )
        if not self.steps:
            return batch
        extras[STEPS] = {
            **single,
            **_taken(ring, cells, ring.take("mask", cells)),
            "keep": discounting.keep(keep & counts),
        }
        later = torch.zeros_like(reset).expand(self.n_step, -1)
        return batch.replace(reset=torch.cat((reset.unsqueeze(0), later)), ahead=counts.sum(0, keepdim=True))


@dataclass(frozen=True)
class Sequences:
    """Windows of `burn_in + length` rows from stored recurrent states on, with returns over up to `n_step` rows.

    Every row has its own n-step reward and discount, and `ahead` is the row it bootstraps from; with `n_step` 1 that is
    the next one. Rows of the burn-in are masked, and so are rows behind a cut (see `Ring`), before which the memory is
    another trajectory's. A window may begin at the row of a final observation, which is masked: with a stride, the
    other rows of that window would otherwise never be sampled.

    Args:
        whole: windows begin at the first row of an episode, and rows after its end are masked.
        last: what networks read of the previous step of each row (action, reward, streams), and the index of the policy
            that acted (policy); what came before the first row is in the stored memory.
        steps: see `Transitions`.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    n_step: int = 1
    whole: bool = False
    last: tuple[str, ...] = ()
    steps: bool = False

    @property
    def span(self) -> int:
        return self.burn_in + self.length + self.n_step - 1

    def allowed(self, ring: Ring, start: Tensor) -> Tensor:
        slot, env_index = start // ring.num_envs * self.stride, start % ring.num_envs
        first = ring.cells(slot, env_index)
        if self.whole:
            return ring.take("reset", first) & ring.take("mask", first)
        # Behind a cut that follows the burn-in, or its first row, there would be nothing to learn from.
        ahead = torch.arange(1, self.burn_in + 2, device=start.device).unsqueeze(1)
        cut = ring.cuts(ring.cells(slot + ahead, env_index)).any(0)
        return ~cut & ring.has_stack(first)

    def gather(self, ring: Rows, start: Tensor, discounting: Discounting) -> Batch:
        slot, env_index = start // ring.num_envs * self.stride, start % ring.num_envs
        ahead = torch.arange(self.span + 1, device=start.device).unsqueeze(1)
        every = ring.cells(slot + ahead, env_index)  # [T+n, B]
        rows = every[:-1]  # [T+n-1, B]
        real, keep = ring.take("mask", rows), ring.take("keep", rows)
        # Values stored in masked rows must not reach the batch.
        stored = ring.take("reward", rows)
        stored = torch.where(tree.expand(real, stored), stored, 0.0)
        reward = discounting.reward(stored)
        discount = discounting.discount(ring.take("continues", rows), real, env_index)
        action = ring.take("action", rows)
        action = tree.where(real, action, tree.map(torch.zeros_like, action))
        reset = ring.take("reset", every)
        memory = take(in_line(ring.memories), slot // ring.stride * ring.num_envs + env_index)
        count = self.burn_in + self.length
        mask = real[:count].float()
        # A row that is no transition is followed by the first of an episode, or by a cut.
        ends = ~real[: count - 1] if self.whole else ~(real[: count - 1] | reset[1:count])
        mask = mask * torch.cat((torch.ones_like(mask[:1]), (~ends).float().cumprod(0)))
        mask[: self.burn_in].zero_()
        extras = ring.take("extras", rows)
        last = {}
        if self.last:
            # The environment's reward: what an acting policy sees.
            done = {"action": action, "reward": stored[..., 0] if stored.dim() > 2 else stored}
            if STREAMS in self.last:
                names = [stream.name for stream in discounting.streams]
                done[STREAMS] = dict(zip(names, stored[..., 1:].unbind(-1)))
            first = memory.get(LAST) or tree.map(lambda leaf: torch.zeros_like(leaf[0]), done)
            last = with_first_row({name: first[name] for name in done}, done)
            if POLICY in self.last:
                # The row of a final observation, and the last one, continue the episode of the row before.
                told = torch.where(real, extras[POLICY], 0)
                told = torch.cat((told[:1], torch.where(real[1:], told[1:], told[:-1])))
                last[POLICY] = torch.cat((told, told[-1:]))
        batch = Batch(
            obs=ring.observe(every),
            reset=reset,
            action=tree.index(action, slice(0, count)),
            reward=reward[:count],
            discount=discount[:count],
            keep=discounting.keep(keep[:count]),
            mask=mask,
            memory=memory,
            burn_in=self.burn_in,
            last=last,
            extras=tree.index(extras, slice(0, count)),
        )
        if self.n_step == 1:
            return batch
        if self.steps:
            single = {"reward": reward, "discount": discount, "keep": discounting.keep(keep)}
            batch.extras[STEPS] = {**single, **_taken(ring, rows, real)}
        return self._folded(batch, reward, discount, keep, discounting)

    def rows(self, ring: Ring, start: Tensor) -> Tensor:
        ahead = torch.arange(self.span, device=start.device).unsqueeze(1)
        return ring.cells(start // ring.num_envs * self.stride + ahead, start % ring.num_envs)

    def _folded(
        self, batch: Batch, reward: Tensor, discount: Tensor, keep: Tensor, discounting: Discounting
    ) -> Batch:
        """With returns over up to `n_step` of the rows [T+n-1, B], which stop at the end of an episode."""
        count = batch.shape[0]
        folded, weight = torch.zeros_like(batch.reward), torch.ones_like(batch.reward)
        counts, kept = torch.ones_like(keep[:count]), torch.ones_like(keep[:count])
        ahead = torch.arange(count, device=keep.device).unsqueeze(1).expand(keep[:count].shape)
        for step in range(self.n_step):
            row = slice(step, step + count)
            here = tree.expand(counts, folded)
            folded = folded + torch.where(here, weight * reward[row], 0.0)
            weight = torch.where(here, weight * discount[row], weight)
            ahead = ahead + counts
            kept = kept & (keep[row] | ~counts)
            counts = counts & keep[row]
        return batch.replace(reward=folded, discount=weight, keep=discounting.keep(kept), ahead=ahead)


def _as_row(leaf: Tensor) -> Tensor:
    return leaf.unsqueeze(0)


def _taken(ring: Rows, cells: Tensor, real: Tensor) -> dict[str, Tree]:
    """Actions and their log-probabilities at cells [R, B], 0 where they are not `real`."""
    found = {"action": ring.take("action", cells), LOG_PROB: ring.take("extras", cells)[LOG_PROB]}
    return tree.where(real, found, tree.map(torch.zeros_like, found))
