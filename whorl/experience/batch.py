"""The block of experience that every algorithm learns from: time-major, `[T, B]`.

Ends of episodes are expressed as numbers, so that a rule never sees a "done": `discount` is 0 after a terminal state
(and only there), `keep` is 0 where returns must not cross, `mask` is 0 on rows that are no transition at all.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whorl import tree
from whorl.tree import Tree


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

    @property
    def selected(self) -> Tree:
        """The observations of just these rows: what a net without memory evaluates."""
        return tree.index(self.obs, slice(self.start, self.stop))


@dataclass
class Batch:
    obs: Tree
    """[T+1, B, ...] row t+1 is the true successor of row t (only [T, B, ...] in a minibatch that never looks ahead)"""
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
        """Rows 1..T: their successors."""
        return self._rows(1, self.shape[0] + 1)

    @property
    def all(self) -> Rows:
        """Rows 0..T."""
        return self._rows(0, self.shape[0] + 1)

    def _rows(self, start: int, stop: int) -> Rows:
        return Rows(self.obs, self.reset, self.memory, self.burn_in, start, stop)

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
            "extras": self.extras,
        }
