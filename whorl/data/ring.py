"""Replay storage: a ring of rows per environment in preallocated tensors, of which every kind of sample is a view.

Row t+1 is the successor of row t, so no next observation is stored; of a stack of frames only the newest is, the others
are in the rows before. All environments advance together: row number r of every environment lies in slot r % slots. A *start* is a
row at which a sample may begin, a *cell* one row of one environment.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec, empty_action, empty_obs
from whorl.core.tree import Tree
from whorl.data.batch import Batch


class Ring:
    """`buffer_size` rows over all environments, the oldest overwritten first.

    Args:
        extras: columns of `Batch.extras` to store, with the shape and dtype that one environment's row has.
        memory: the agent's `initial_memory(1)`, where sequences are to open from stored memory.
        stride: memory is stored before every so many rows; rollouts hold a multiple of it.
    """

    def __init__(
        self,
        spec: Spec,
        buffer_size: int,
        device: torch.device | str = "cpu",
        *,
        extras: Mapping[str, Array] | None = None,
        memory: Tree | None = None,
        stride: int = 1,
    ) -> None:
        self.num_envs, self.stride = spec.num_envs, stride
        self.observation = spec.observation
        self.history = history_of(spec)
        """rows before a row that its stack of frames may reach back to"""
        self.slots = slots_for(spec, buffer_size, stride)
        self.device = torch.device(device)
        self.rows = 0
        """rows per environment ever written"""
        allocated = _allocate(spec, self.slots, extras or {}, memory or {}, stride, self.device)
        self.columns: dict[str, Tree] = allocated["columns"]
        """[slots, environments, ...]"""
        self.memories: Tree = allocated["memories"]
        """[slots / stride, environments, ...]"""
        # What must follow: whether the next row opens an episode, and where it was announced not to follow at all.
        self._next_reset = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._cut = torch.zeros_like(self._next_reset)

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still there."""
        return max(0, self.rows - self.slots)

    def first_start(self, steps: int = 0) -> int:
        """Number of the oldest row whose frames are all there when `steps` more rows are."""
        return max(0, self.rows + steps - self.slots + self.history)

    @property
    def settled(self) -> int:
        """Rows before this one will not change any more; `_close_gaps` may still touch the newest two."""
        return max(0, self.rows - 2)

    @property
    def bytes(self) -> int:
        """Size of the storage."""
        return _bytes({"columns": self.columns, "memories": self.memories})

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        """Append a rollout's T rows. It must go on where the last one ended, or open an episode, or follow `cut`."""
        steps, num_envs = rollout.shape
        if num_envs != self.num_envs or steps > self.slots or (self.memories and steps % self.stride):
            raise ConfigError(
                f"a rollout of {steps} rows and {num_envs} environments does not fit a ring of {self.slots} rows and "
                f"{self.num_envs} environments with memory every {self.stride} rows; change num_steps or the capacity"
            )
        self._close_gaps(rollout.reset[0])
        given = rollout.tensors()
        given["obs"] = tree.map(_newest, self.observation, given["obs"])
        rows = {name: tree.index(given[name], slice(0, steps)) for name in self.columns if name != "extras"}
        rows["extras"] = {name: given["extras"][name] for name in self.columns["extras"]}
        at = self.rows % self.slots
        _write(self.columns, rows, at)
        self.columns["reset"][at].logical_or_(self._cut)
        if self.memories:
            _write(self.memories, rollout.memories, at // self.stride)
        self.rows += steps
        self._next_reset.copy_(rollout.reset[steps])
        self._cut.zero_()

    def renew(self, start: Tensor, memory: Tree) -> None:
        """Replace stored memory: [K, B, ...] belongs to the K strides after each start [B]."""
        if not memory:
            return
        number = torch.arange(1, len(tree.first(memory)) + 1, device=start.device).unsqueeze(1)
        block = (start // self.num_envs + number) % (self.slots // self.stride)
        cell = (block * self.num_envs + start % self.num_envs).reshape(-1)
        # Where samples meet in a cell the last one counts, on a GPU too, which writes in any order.
        counts = torch.zeros(
            self.slots // self.stride * self.num_envs, dtype=torch.int64, device=start.device
        )
        counts.scatter_reduce_(0, cell, torch.arange(len(cell), device=start.device), "amax")
        counts = counts.index_select(0, cell)

        def put(leaf: Tensor, value: Tensor) -> None:
            leaf.flatten(0, 1).index_copy_(0, cell, value.flatten(0, 1).index_select(0, counts))

        tree.map(put, {name: self.memories[name] for name in memory}, memory)

    def cut(self, where: Tensor | None = None) -> None:
        """Announce that the next rollout does not go on from the newest row: a dropped trajectory, a new actor.

        `where` [B] names the environments; all of them without it.
        """
        self._cut.logical_or_(torch.ones_like(self._cut) if where is None else where.to(self.device))

    def _close_gaps(self, reset: Tensor) -> None:
        """Where the new rows do not follow, the newest row has lost its successor: it is no transition any more.

        Returns stop one row earlier, and bootstrap from that row's observation, which is still true.
        """
        gap = (reset.to(self.device) & ~self._next_reset) | self._cut
        if self.rows:
            newest, before = (self.rows - 1) % self.slots, (self.rows - 2) % self.slots
            self.columns["mask"][newest].logical_and_(~gap)
            self.columns["keep"][newest].logical_and_(~gap)
            self.columns["keep"][before].logical_and_(~gap)

    def take(self, name: str, cell: Tensor) -> Tree:
        """The rows of a column at cells of any shape [...]: [..., ...]."""
        return take(self.columns[name], cell)

    def observe(self, cell: Tensor) -> Tree:
        """Observations at cells of any shape [...], stacks of frames put together again: [..., ...]."""
        if not self.history:
            return self.take("obs", cell)
        slot, env_index, seen = cell // self.num_envs, cell % self.num_envs, [cell]
        for _ in range(self.history):
            # An episode's first row has none before it: its own frame stands for them.
            slot = slot - (~self.take("reset", seen[0])).long()
            seen.insert(0, self.cells(slot, env_index))
        cells = torch.stack(seen, -1)  # [..., history + 1], oldest first
        return tree.map(partial(_joined, cells=cells), self.observation, self.columns["obs"])

    def cells(self, slot: Tensor, env_index: Tensor) -> Tensor:
        """Cells of slots, which may count on past the ring's end."""
        return slot % self.slots * self.num_envs + env_index

    def state_dict(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "num_envs": self.num_envs,
            "rows": self.rows,
            "columns": self.columns,
            "memories": self.memories,
            "next_reset": self._next_reset,
            "cut": self._cut,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A state without columns, whose rows come from elsewhere, is good too."""
        slots, num_envs = state["slots"], state["num_envs"]
        if (slots, num_envs) != (self.slots, self.num_envs):
            raise ConfigError(
                f"the checkpoint's replay holds {slots} rows for each of {num_envs} environments, but the settings ask for "
                f"{self.slots} for each of {self.num_envs}; resume with a capacity of {slots * num_envs} and {num_envs} environments"
            )
        self.rows = int(state["rows"])
        if "columns" in state:
            tree.copy_(self.columns, state["columns"])
            tree.copy_(self.memories, state["memories"])
        self._next_reset.copy_(state["next_reset"])
        self._cut.copy_(state["cut"])


def take(column: Tree, cell: Tensor) -> Tree:
    """Gather from leaves [slots, environments, ...] by cell, whatever the shape of `cell`."""
    flat = cell.reshape(-1)
    return tree.map(
        lambda leaf: leaf.flatten(0, 1).index_select(0, flat).reshape(*cell.shape, *leaf.shape[2:]), column
    )


def history_of(spec: Spec) -> int:
    """Rows before a row that belong to its observation."""
    return max(leaf.stack for leaf in tree.leaves(spec.observation)) - 1


def _newest(leaf: Array, stack: Tensor) -> Tensor:
    """The newest frame of stacks [T, B, ...]."""
    if leaf.stack == 1:
        return stack
    width = leaf.shape[leaf.axis] // leaf.stack
    return stack.narrow(2 + leaf.axis, leaf.shape[leaf.axis] - width, width)


def _joined(leaf: Array, column: Tensor, cells: Tensor) -> Tensor:
    """The stacks of frames at cells [..., frames]: [..., ...]."""
    lead, cells = cells.dim() - 1, cells[..., cells.shape[-1] - leaf.stack :]
    if leaf.stack == 1:
        return take(column, cells.squeeze(-1))
    if leaf.axis == 0 and leaf.frame.shape[0] == 1:
        # The frames of a pixel side by side in memory, as convolutions read them fastest.
        planes = [take(column, cell).squeeze(lead) for cell in cells.unbind(-1)]
        return torch.stack(planes, -1).movedim(-1, lead)
    frames = take(column, cells)  # [..., stack, ...]
    axis = lead + leaf.axis
    return frames.movedim(lead, axis).flatten(axis, axis + 1)


def slots_for(spec: Spec, buffer_size: int, stride: int = 1) -> int:
    """Rows per environment of a ring of `buffer_size` rows."""
    slots = buffer_size // spec.num_envs // stride * stride
    if slots == 0:
        raise ConfigError(
            f"a replay capacity of {buffer_size} holds no row for each of {spec.num_envs} environments"
            f"{f' and a stride of {stride}' if stride > 1 else ''}; use at least {spec.num_envs * stride}"
        )
    return slots


def replay_bytes(
    spec: Spec,
    buffer_size: int,
    *,
    extras: Mapping[str, Array] | None = None,
    memory: Tree | None = None,
    stride: int = 1,
) -> int:
    """What a ring with these settings will take, without allocating it."""
    slots = slots_for(spec, buffer_size, stride)
    return _bytes(_allocate(spec, slots, extras or {}, memory or {}, stride, torch.device("meta")))


def _allocate(
    spec: Spec, slots: int, extras: Mapping[str, Array], memory: Tree, stride: int, device: torch.device
) -> dict[str, Tree]:
    shape = (slots, spec.num_envs)

    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return {
        "columns": {
            "obs": empty_obs(tree.map(lambda leaf: leaf.frame, spec.observation), shape, device),
            "reset": zeros(torch.bool),
            "action": empty_action(spec.action, shape, device),
            "reward": zeros(torch.float32),
            "discount": zeros(torch.float32),
            "keep": zeros(torch.bool),
            "mask": zeros(torch.bool),
            "extras": empty_obs(dict(extras), shape, device),
        },
        "memories": tree.map(
            lambda leaf: torch.zeros(
                slots // stride, spec.num_envs, *leaf.shape[1:], dtype=leaf.dtype, device=device
            ),
            memory,
        ),
    }


def _bytes(tensors: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(tensors))


def _write(column: Tree, rows: Tree, at: int) -> None:
    """Copy rows into slots from `at` on, going round once at most."""

    def leaf(into: Tensor, value: Tensor) -> None:
        first = min(len(value), len(into) - at)
        into[at : at + first].copy_(value[:first])
        into[: len(value) - first].copy_(value[first:])

    tree.map(leaf, column, rows)
