"""The block of experience that every algorithm learns from: time-major, `[T, B]`.

Ends of episodes are expressed as numbers, so that a rule never sees a "done": `discount` is 0 after a terminal state
(and only there), `keep` is 0 where returns must not cross, `mask` is 0 on rows that are no transition at all.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree

LAST = "last"
"""the part of an agent's memory in which the loop keeps the action and the reward of the row before"""


def remember(memory: Tree, action: Tree, reward: Tensor) -> Tree:
    """An agent's memory with what was last done and earned, where it asks for that."""
    return {**memory, LAST: {"action": action, "reward": reward}} if LAST in memory else memory


def led_by(first: Tree, rows: Tree) -> Tree:
    """Rows [T, ...] with one more [...] before them: [T+1, ...]."""
    return tree.map(lambda one, rest: torch.cat((one.unsqueeze(0), rest)), first, rows)


@dataclass
class Rows:
    """A run of rows of a batch, as a network reads them."""

    obs: Tree
    """[R, B, ...] all rows, so that a memory can be unrolled over them"""
    reset: Tensor
    """[R, B] bool"""
    memory: Tree
    """[B, ...] keyed by net, before row 0"""
    burn_in: int
    start: int
    stop: int
    last: Tree = field(default_factory=dict)
    """[R, B, ...] the action and the reward before each row, where a memory reads them"""
    ahead: Tensor | None = None
    """[T, B] which of all rows are asked for, where they do not lie side by side"""
    summaries: dict[int, list[Tensor]] = field(default_factory=dict)
    """[R, B, ...] what each memory of a body, by its id, made of all rows, where that is known already"""

    @property
    def selected(self) -> Tree:
        """The observations of just these rows: what a net without memory evaluates."""
        return tree.map(self.select, self.obs)

    def select(self, every: Tensor) -> Tensor:
        """Of all rows [R, B, ...] those that are asked for."""
        if self.ahead is None:
            return every[self.start : self.stop]
        at = self.ahead.reshape(*self.ahead.shape, *[1] * (every.dim() - 2))
        return every.gather(0, at.expand(*self.ahead.shape, *every.shape[2:]))


@dataclass
class Batch:
    obs: Tree
    """[T+1, B, ...] row t+1 is the true successor of row t (only [T, B, ...] in a minibatch that never looks ahead;
    [T+n, B, ...] in a sequence whose returns are folded over n rows)"""
    reset: Tensor
    """[T+1, B] bool: row t opens an episode, clear memory before it"""
    action: Tree
    """[T, B, ...] canonical actions"""
    reward: Tensor
    """[T, B]"""
    discount: Tensor
    """[T, B] gamma (gamma^n where folded), 0 after a terminal state"""
    keep: Tensor
    """[T, B] 0 where an episode ended for any reason"""
    mask: Tensor
    """[T, B] 0 on rows that are no transition: the row from a final observation, padding, burn-in"""
    memory: Tree = field(default_factory=dict)
    """[B, ...] memory before row 0, keyed by net; a missing key starts at zero"""
    memories: Tree = field(default_factory=dict)
    """[T / stride, B, ...] memory before every stride-th row of a rollout, so that it can be cut into chunks"""
    burn_in: int = 0
    """static: the first rows only warm the memory up"""
    extras: dict[str, Any] = field(default_factory=dict)
    """what act() returned (log_prob, value, ...), [T, B]; share and weight [T, B] and index [B] from replay"""
    last: Tree = field(default_factory=dict)
    """[T+1, B, ...] the action and the reward before each row, where a memory reads them; nothing before an episode"""
    ahead: Tensor | None = None
    """[T, B] the row that each one bootstraps from, where it is not the next"""
    summaries: dict[int, list[Tensor]] = field(default_factory=dict)
    """see `Rows`"""
    static: bool = False
    """whether these are the same tensors each time, written anew: a captured graph may read them in place"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.mask.shape[0], self.mask.shape[1]

    @property
    def share(self) -> Tensor:
        """[T, B] from replay: how much each row counts in a mean over all of them; nothing where masked, else alike."""
        return self.extras["share"]

    @property
    def weight(self) -> Tensor:
        """[T, B] from replay: `share`, times what takes back the bias of a prioritized draw."""
        return self.extras["weight"]

    @property
    def now(self) -> Rows:
        """Rows 0..T-1: where the actions were taken."""
        return self._rows(0, self.shape[0])

    @property
    def next(self) -> Rows:
        """Rows 1..T: their successors, or where a folded return ends."""
        return replace(self._rows(1, self.shape[0] + 1), ahead=self.ahead)

    @property
    def all(self) -> Rows:
        """Rows 0..T."""
        return self._rows(0, self.shape[0] + 1)

    @property
    def both(self) -> Rows:
        """`now`, and behind it `next`: [2T, B], for nets that are asked about both in one pass."""
        count = self.shape[0]
        if count == 1 and self.ahead is None:
            return self.all
        now = torch.arange(count, device=self.mask.device).unsqueeze(1).expand(self.shape)
        after = now + 1 if self.ahead is None else self.ahead
        return replace(self._rows(0, 2 * count), ahead=torch.cat((now, after)))

    def _rows(self, start: int, stop: int) -> Rows:
        return Rows(
            self.obs, self.reset, self.memory, self.burn_in, start, stop, self.last, summaries=self.summaries
        )

    def replace(self, **changes: Any) -> "Batch":
        """The same batch with some fields changed."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        moved = tree.to(self.tensors(), device)
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tree]:
        """Every tensor of the batch as one tree."""
        return {
            "obs": self.obs,
            "reset": self.reset,
            "action": self.action,
            "reward": self.reward,
            "discount": self.discount,
            "keep": self.keep,
            "mask": self.mask,
            "memory": self.memory,
            "memories": self.memories,
            "last": self.last,
            "extras": self.extras,
            **({} if self.ahead is None else {"ahead": self.ahead}),
        }
