"""The block of experience that every algorithm learns from: time-major, `[T, B]`.

Ends of episodes are expressed as numbers, so that an update rule needs no "done" flag: `discount` is 0 after a terminal
state (and only there), `keep` is 0 where returns must not continue into the next row, `mask` is 0 on rows that are not
transitions. With reward streams (`Spec.streams`) reward, discount and keep may have a trailing stream axis.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree

LAST = "last"
"""the part of an agent's memory that holds the previous action and reward; the loop writes it"""


_ABSENT: Any = None
"""default of fields that follow `discount`, the one that rollouts lack; batches always have the others"""


STREAMS = "streams"
"""in what a memory reads of the previous step: its intrinsic rewards [B, S]"""
SUCCESSOR = "successor"
"""in `Batch.extras` of single transitions with n-step returns: the observation right after the action, if asked for"""
CELL = "cell"
"""in `Batch.extras` of a rollout: the cell of the map that each step led to, where the environment has a map"""
_SUCCESSORS = re.compile(rf"{SUCCESSOR}(_[0-9]+)?")
STEPS = "steps"
"""in `Batch.extras` of samples with n-step returns, if asked for: what each single row [T+n-1, B] holds"""
LOG_PROB = "log_prob"
"""column: log-probability of the action under the policy that acted"""
POLICY = "policy"
"""in what a memory reads: the index of the policy that acts in this row [B], where an agent has several"""


def successor_key(steps: int) -> str:
    """Where `Batch.extras` of single transitions have the observation `steps` steps later, if asked for."""
    return SUCCESSOR if steps == 1 else f"{SUCCESSOR}_{steps}"


def successor_keys(extras: Mapping[str, Any]) -> list[str]:
    """The keys of `Batch.extras` that `successor_key` gives."""
    return [key for key in extras if _SUCCESSORS.fullmatch(key)]


def remember(memory: Tree, action: Tree, reward: Tensor, columns: Mapping[str, Tensor]) -> Tree:
    """An agent's memory with the previous action and reward, if the agent reads them.

    Intrinsic rewards, if it reads them too, are those of `columns` that it names.
    """
    if LAST not in memory:
        return memory
    last = {**memory[LAST], "action": action, "reward": reward}
    if STREAMS in last:
        last[STREAMS] = {name: columns[name] for name in last[STREAMS]}
    return {**memory, LAST: last}


def with_first_row(first: Tree, rows: Tree) -> Tree:
    """Rows [T, ...] with one row [...] put before them: [T+1, ...]."""
    return tree.map(lambda one, rest: torch.cat((one.unsqueeze(0), rest)), first, rows)


@dataclass
class Rows:
    """A range of rows of a batch, as a network reads them."""

    obs: Tree
    """[R, B, ...] all rows, so that a recurrent network can be unrolled over them"""
    reset: Tensor
    """[R, B] bool"""
    memory: Tree
    """[B, ...] recurrent state before row 0, keyed by network"""
    burn_in: int
    start: int
    stop: int
    last: Tree = field(default_factory=dict)
    """[R, B, ...] the previous action and reward of each row, where a recurrent network reads them"""
    ahead: Tensor | None = None
    """[T, B] indices of the rows to select, where they are not `start` to `stop`"""
    summaries: dict[int, list[Tensor]] = field(default_factory=dict)
    """[R, B, ...] outputs of each memory of a backbone for all rows, keyed by the backbone's id, if already computed"""

    @property
    def selected(self) -> Tree:
        """The observations of the selected rows only: what a feed-forward network evaluates."""
        return tree.map(self.select, self.obs)

    def select(self, every: Tensor) -> Tensor:
        """The selected rows of a tensor over all rows [R, B, ...]."""
        if self.ahead is None:
            return every[self.start : self.stop]
        at = self.ahead.reshape(*self.ahead.shape, *[1] * (every.dim() - 2))
        return every.gather(0, at.expand(*self.ahead.shape, *every.shape[2:]))


@dataclass
class Batch:
    obs: Tree
    """[T+1, B, ...] row t+1 is the true successor of row t (only [T, B, ...] in a minibatch that needs no successor;
    [T+n, B, ...] in a sequence with n-step returns)"""
    reset: Tensor
    """[T+1, B] bool: row t is the first of an episode; the memory is cleared before it"""
    action: Tree
    """[T, B, ...] canonical actions"""
    reward: Tensor
    """[T, B]; in rollouts with reward streams, and where streams are separate, [T, B, 1 + S]"""
    discount: Tensor = _ABSENT
    """[T, B] gamma (gamma^n for n-step returns), 0 after a terminal state; rollouts have `continues` instead"""
    keep: Tensor = _ABSENT
    """[T, B] 0 where an episode ended for any reason"""
    mask: Tensor = _ABSENT
    """[T, B] 0 on rows that are not transitions: the row of a final observation, padding, burn-in"""
    memory: Tree = field(default_factory=dict)
    """[B, ...] recurrent state before row 0, keyed by network; a missing key starts at zero"""
    memories: Tree = field(default_factory=dict)
    """[T / stride, B, ...] recurrent state before every stride-th row of a rollout, where chunks may begin"""
    burn_in: int = 0
    """static: the first rows only warm up the recurrent state"""
    extras: dict[str, Any] = field(default_factory=dict)
    """what act() returned (log_prob, value, ...), [T, B]; share and weight [T, B] and index [B] from replay"""
    last: Tree = field(default_factory=dict)
    """[T+1, B, ...] the previous action and reward of each row (0 before an episode), where a network reads them"""
    ahead: Tensor | None = None
    """[T, B] the row that each one bootstraps from, where it is not the next"""
    summaries: dict[int, list[Tensor]] = field(default_factory=dict)
    """see `Rows`"""
    static: bool = False
    """whether every batch uses these same tensors, overwritten in place: a captured graph may read them directly"""
    continues: Tensor | None = None
    """[T, B] bool, in rollouts: the discount without gamma; False after a terminal state or lost life, where masked"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.mask.shape[0], self.mask.shape[1]

    @property
    def stream_mask(self) -> Tensor:
        """`mask` in the shape of `reward`, which may have a trailing stream axis."""
        return tree.expand(self.mask, self.reward).expand_as(self.reward)

    @property
    def observed(self) -> Tensor:
        """[T, B] of a rollout: 1 where a row has an observation of its own, 0 where it repeats the newest one, because
        the environment has not answered (`whorl.collect.waiting`)."""
        real = self.mask > 0
        follows = torch.cat((torch.ones_like(real[:1]), real[:-1]))
        final = self.reset[1:] & ~self.reset[:-1] & follows  # the row of a final observation
        return (real | final).to(self.mask.dtype)

    @property
    def share(self) -> Tensor:
        """[T, B] from replay: weight of each row in a mean over all rows; 0 where masked, else equal."""
        return self.extras["share"]

    @property
    def weight(self) -> Tensor:
        """[T, B] from replay: `share` times the importance weight of prioritized sampling."""
        return self.extras["weight"]

    @property
    def now(self) -> Rows:
        """Rows 0..T-1: where the actions were taken."""
        return self._rows(0, self.shape[0])

    @property
    def next(self) -> Rows:
        """Rows 1..T: their successors, or the rows that n-step returns bootstrap from."""
        return self._rows(1, self.shape[0] + 1, self.ahead)

    @property
    def all(self) -> Rows:
        """Rows 0..T."""
        return self._rows(0, self.shape[0] + 1)

    @property
    def after(self) -> Rows:
        """Every row after the first, those that n-step returns pass through included: rows 1..T+n-1."""
        return self._rows(1, self.reset.shape[0])

    @property
    def before(self) -> Rows:
        """Every row but the last, those that n-step returns pass through included: rows 0..T+n-2."""
        return self._rows(0, self.reset.shape[0] - 1)

    @property
    def both(self) -> Rows:
        """`now` followed by `next`: [2T, B], for networks that evaluate both in one pass."""
        count = self.shape[0]
        if count == 1 and self.ahead is None:
            return self.all
        now = torch.arange(count, device=self.mask.device).unsqueeze(1).expand(self.shape)
        after = now + 1 if self.ahead is None else self.ahead
        return self._rows(0, 2 * count, torch.cat((now, after)))

    def _rows(self, start: int, stop: int, ahead: Tensor | None = None) -> Rows:
        return Rows(
            *(self.obs, self.reset, self.memory, self.burn_in, start, stop, self.last, ahead),
            summaries=self.summaries,
        )

    def replace(self, **changes: Any) -> "Batch":
        """The same batch with some fields changed."""
        for name in changes:  # torch's compiler can't compare the keys of dictionaries
            if name not in self.__dict__:
                raise TypeError(f"a batch has no {name}")
        # Not dataclasses.replace, which takes as long as several operations of a small network.
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.__dict__.update(changes)
        return found

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        moved = tree.to(self.tensors(), device)
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tree]:
        """Every tensor of the batch as one tree."""
        found = {
            "obs": self.obs,
            "reset": self.reset,
            "action": self.action,
            "reward": self.reward,
            "discount": self.discount,
            "continues": self.continues,
            "keep": self.keep,
            "mask": self.mask,
            "memory": self.memory,
            "memories": self.memories,
            "last": self.last,
            "extras": self.extras,
            "ahead": self.ahead,
        }
        return {name: value for name, value in found.items() if value is not None}
