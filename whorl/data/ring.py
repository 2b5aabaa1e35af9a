"""Replay storage: a ring buffer of rows per environment in preallocated tensors; every kind of sample is a view of it.

Row t+1 is the successor of row t, so no next observation is stored. Of a frame stack only the newest frame is stored;
the others are in the rows before. All environments advance together: row number r of every environment is in slot
r % slots. A *start* is a row at which a sample may begin, a *cell* one row of one environment.

A *cut* is a row that does not follow the row before it, although no episode starts there: a trajectory between them was
dropped, or the process that had the rows before is gone. Nothing crosses it: returns stop before it, a sequence learns
from no row behind it, and a row whose frame stack reaches across is no start. A sequence that starts at the cut itself
begins with the recurrent state that was stored there, which is the one that acting had.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec, empty_action, empty_obs
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.compressed import RATIO, Compressed

SMALL = 256
"""bytes per row up to which columns in host memory are stored side by side"""


class Ring:
    """`buffer_size` rows over all environments, the oldest overwritten first.

    Args:
        extras: columns of `Batch.extras` to store, with shape and dtype of one row of one environment.
        memory: the agent's `initial_memory(1)`, if sequences start from stored recurrent states.
        stride: rows between two stored recurrent states; the length of a rollout must be a multiple of it.
        compress: keep images compressed, in host memory.
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
        compress: bool = False,
    ) -> None:
        self.num_envs, self.stride = spec.num_envs, stride
        self.observation = spec.observation
        self.history = history_of(spec)
        """number of earlier rows that a frame stack needs"""
        self.slots = slots_for(spec, buffer_size, stride)
        self.device = torch.device(device)
        self.rows = 0
        """rows per environment ever written"""
        allocated = _allocate(spec, self.slots, extras or {}, memory or {}, stride, self.device, compress)
        self.columns: dict[str, Tree] = allocated["columns"]
        """[slots, environments, ...]"""
        self.memories: Tree = allocated["memories"]
        """[slots / stride, environments, ...]"""
        self._lines = in_line(self.columns)
        # Whether the next row starts an episode, and where `cut` said that it does not follow the newest row.
        self._next_reset = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._cut = torch.zeros_like(self._next_reset)

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still stored."""
        return max(0, self.rows - self.slots)

    def first_start(self, steps: int = 0) -> int:
        """Number of the oldest row whose whole frame stack is stored after `steps` more rows."""
        return max(0, self.rows + steps - self.slots + self.history)

    @property
    def settled(self) -> int:
        """Rows before this one never change again; `_close_gaps` may still change the newest two."""
        return max(0, self.rows - 2)

    @property
    def bytes(self) -> int:
        """Size of the storage, before it is compressed."""
        return _bytes({"columns": self.columns, "memories": self.memories})

    @property
    def stored_bytes(self) -> int:
        """Size of what is stored, compressed images included."""
        held = [leaf for leaf in tree.leaves(self.columns["obs"]) if isinstance(leaf, Compressed)]
        return (
            self.bytes
            - _bytes({str(i): leaf for i, leaf in enumerate(held)})
            + sum(one.bytes for one in held)
        )

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        """Append a rollout's T rows. It must continue the previous one, start an episode, or follow `cut`."""
        steps, num_envs = rollout.shape
        if num_envs != self.num_envs or steps > self.slots or (self.memories and steps % self.stride):
            raise ConfigError(
                f"a rollout of {steps} rows and {num_envs} environments does not fit a replay buffer of {self.slots} "
                f"rows and {self.num_envs} environments with memory every {self.stride} rows; change num_steps or "
                "buffer_size"
            )
        self._close_gaps(rollout.reset[0], rollout.mask[0] > 0)
        given = rollout.tensors()
        given["obs"] = tree.map(_newest, self.observation, given["obs"])
        rows = {name: tree.index(given[name], slice(0, steps)) for name in self.columns if name != "extras"}
        rows["extras"] = {name: given["extras"][name] for name in self.columns["extras"]}
        at = self.rows % self.slots
        _write(self.columns, rows, at)
        if self.memories:
            _write(self.memories, rollout.memories, at // self.stride)
        self.rows += steps
        self._next_reset.copy_(rollout.reset[steps])
        self._cut.zero_()

    def renew(self, start: Tensor, memory: Tree) -> None:
        """Replace stored recurrent states: [K, B, ...] belong to the K strides after each start [B]."""
        if not memory:
            return
        count = len(tree.first(memory))
        number = torch.arange(1, count + 1, device=start.device).unsqueeze(1)
        block = (start // self.num_envs + number) % (self.slots // self.stride)
        cell = (block * self.num_envs + start % self.num_envs).reshape(-1)
        # Behind a cut the state of another trajectory would be written: what acting had there stays.
        ahead = torch.arange(1, count * self.stride + 1, device=start.device).unsqueeze(1)
        rows = self.cells(start // self.num_envs * self.stride + ahead, start % self.num_envs)
        known = (~self.cuts(rows)).cumprod(0)[self.stride - 1 :: self.stride].bool().reshape(-1)
        # If several samples write one cell, the last one wins; on a GPU, too, where the order of writes is undefined.
        counts = torch.zeros(
            self.slots // self.stride * self.num_envs, dtype=torch.int64, device=start.device
        )
        counts.scatter_reduce_(0, cell, torch.arange(len(cell), device=start.device), "amax")
        counts = counts.index_select(0, cell)

        known = known.index_select(0, counts)

        def put(leaf: Tensor, value: Tensor) -> None:
            stored, value = leaf.flatten(0, 1), value.flatten(0, 1).index_select(0, counts)
            kept = torch.where(tree.expand(known, value), value, stored.index_select(0, cell))
            stored.index_copy_(0, cell, kept)

        tree.map(put, {name: self.memories[name] for name in memory}, memory)

    def renew_column(self, name: str, cells: Tensor, value: Tensor) -> None:
        """Replace a column of the extras in the rows at cells [R, B], which follow each other; not behind a cut."""
        known = (
            torch.cat((torch.ones_like(cells[:1], dtype=torch.bool), ~self.cuts(cells[1:]))).cumprod(0).bool()
        )
        known, cell = (known & self.take("mask", cells)).reshape(-1), cells.reshape(-1)
        # As in `renew`: of several samples that write one cell, the last one that knows its value wins.
        order = torch.arange(1, len(cell) + 1, device=cell.device) * known
        last = torch.zeros(self.slots * self.num_envs, dtype=torch.int64, device=cell.device)
        last.scatter_reduce_(0, cell, order, "amax")
        last = last.index_select(0, cell)
        stored = self.columns["extras"][name].flatten(0, 1)
        value = value.reshape(-1).index_select(0, (last - 1).clamp(min=0))
        stored.index_copy_(0, cell, torch.where(last > 0, value, stored.index_select(0, cell)))

    def cut(self, where: Tensor | None = None) -> None:
        """Announce that the next rollout does not continue the newest row (dropped trajectory, restarted actor).

        `where` [B] selects the environments; default: all.
        """
        self._cut.logical_or_(torch.ones_like(self._cut) if where is None else where.to(self.device))

    def _close_gaps(self, reset: Tensor, real: Tensor) -> None:
        """Where the new rows do not follow, the newest row has no successor: it is no longer a transition.

        Returns stop one row earlier and bootstrap from that row's observation, which is still valid. Where the first
        new row is no step, returns stop before it.
        """
        gap = (reset.to(self.device) & ~self._next_reset) | self._cut
        if self.rows:
            newest, before = (self.rows - 1) % self.slots, (self.rows - 2) % self.slots
            self.columns["mask"][newest].logical_and_(~gap)
            self.columns["keep"][newest].logical_and_(~gap & real.to(self.device))
            self.columns["keep"][before].logical_and_(~gap)

    def take(self, name: str, cell: Tensor) -> Tree:
        """Values of a column at cells of any shape [...]: [..., ...]."""
        return take(self._lines[name], cell)

    def observe(self, cell: Tensor) -> Tree:
        """Observations at cells of any shape [...], with frame stacks rebuilt: [..., ...]."""
        if not self.history:
            return self.take("obs", cell)
        slot, env_index, seen = cell // self.num_envs, cell % self.num_envs, [cell]
        for _ in range(self.history):
            # The first row of an episode has no earlier frames: its own frame is repeated.
            slot = slot - (~self.take("reset", seen[0])).long()
            seen.insert(0, self.cells(slot, env_index))
        cells = torch.stack(seen, -1)  # [..., history + 1], oldest first
        return tree.map(partial(_joined, cells=cells), self.observation, self._lines["obs"])

    def cuts(self, cell: Tensor) -> Tensor:
        """Where rows at cells of any shape [...] are cuts: they neither follow the row before nor start an episode.

        A row that was never written counts as none to follow. Valid where the row before was not overwritten.
        """
        before = (cell - self.num_envs) % (self.slots * self.num_envs)
        return ~(self.take("mask", before) | self.take("reset", cell))

    def has_stack(self, cell: Tensor) -> Tensor:
        """Where the frame stacks of rows at cells [N] reach across no cut."""
        slot, env_index = cell // self.num_envs, cell % self.num_envs
        found = torch.ones_like(cell, dtype=torch.bool)
        for _ in range(self.history):
            found = found & ~self.cuts(cell)
            slot = slot - (~self.take("reset", cell)).long()
            cell = self.cells(slot, env_index)
        return found

    def cells(self, slot: Tensor, env_index: Tensor) -> Tensor:
        """Cells of slots; slots beyond the end wrap around."""
        return slot % self.slots * self.num_envs + env_index

    def state_dict(self) -> dict[str, Any]:
        return {**self.counters(), "columns": tree.map(dense, self.columns), "memories": self.memories}

    def counters(self) -> dict[str, Any]:
        """The state without the rows."""
        return {
            "slots": self.slots,
            "num_envs": self.num_envs,
            "rows": self.rows,
            "next_reset": self._next_reset,
            "cut": self._cut,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raise if a saved ring has another size."""
        slots, num_envs = state["slots"], state["num_envs"]
        if (slots, num_envs) != (self.slots, self.num_envs):
            raise ConfigError(
                f"the checkpoint's replay buffer holds {slots} rows for each of {num_envs} environments, but the "
                f"settings ask for {self.slots} for each of {self.num_envs}; resume with buffer_size "
                f"{slots * num_envs} and num_envs {num_envs}"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The columns may be missing, if the rows are loaded from segment files."""
        self.check(state)
        self.rows = int(state["rows"])
        if "columns" in state:
            tree.restore_(self.columns, state["columns"])
            tree.restore_(self.memories, state["memories"])
        tree.restore_(self._next_reset, state["next_reset"])
        tree.restore_(self._cut, state["cut"])


def in_line(columns: Tree) -> Tree:
    """Columns [slots, environments, ...] as views [cells, ...], which `take` reads."""
    return tree.map(lambda leaf: leaf if isinstance(leaf, Compressed) else leaf.flatten(0, 1), columns)


def take(line: Tree, cell: Tensor) -> Tree:
    """Gather from leaves [cells, ...] at cells of any shape."""
    # Small batches cost as much as their number of operators: cells in a line are not reshaped.
    if cell.dim() == 1:
        return line.index_select(0, cell) if type(line) is Tensor else tree.map(partial(_rows_at, cell), line)
    rows = take(line, cell.reshape(-1))
    return tree.map(lambda leaf: leaf.view(cell.shape + leaf.shape[1:]), rows)


def _rows_at(cell: Tensor, leaf: Any) -> Tensor:
    return leaf.take(cell) if isinstance(leaf, Compressed) else leaf.index_select(0, cell)


def history_of(spec: Spec) -> int:
    """Number of earlier rows that belong to a row's frame stack."""
    return max(leaf.stack for leaf in tree.leaves(spec.observation)) - 1


def _newest(leaf: Array, stack: Tensor) -> Tensor:
    """The newest frame of stacks [T, B, ...]."""
    if leaf.stack == 1:
        return stack
    width = leaf.shape[leaf.axis] // leaf.stack
    return stack.narrow(2 + leaf.axis, leaf.shape[leaf.axis] - width, width)


def _joined(leaf: Array, column: Tensor, cells: Tensor) -> Tensor:
    """The frame stacks at cells [..., frames]: [..., ...]."""
    lead, cells = cells.dim() - 1, cells[..., cells.shape[-1] - leaf.stack :]
    if leaf.stack == 1:
        return take(column, cells.squeeze(-1))
    if leaf.axis == 0 and leaf.frame.shape[0] == 1:
        # Frames of a pixel adjacent in memory (channels last), the fastest layout for convolutions.
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
            f"buffer_size {buffer_size} is too small for {spec.num_envs} environments"
            f"{f' and sequence_stride {stride}' if stride > 1 else ''}; use at least {spec.num_envs * stride}"
        )
    return slots


def replay_bytes(
    spec: Spec,
    buffer_size: int,
    *,
    extras: Mapping[str, Array] | None = None,
    memory: Tree | None = None,
    stride: int = 1,
    compress: bool = False,
) -> int:
    """Size of a ring with these settings, without allocating it; of compressed images an estimate."""
    slots = slots_for(spec, buffer_size, stride)
    held = _allocate(spec, slots, extras or {}, memory or {}, stride, torch.device("meta"))
    size = _bytes(held)
    if compress:
        images = [leaf for leaf in tree.leaves(held["columns"]["obs"]) if _is_compressible(leaf)]
        size -= sum(leaf.numel() - leaf.numel() // RATIO for leaf in images)
    return size


def _allocate(
    spec: Spec,
    slots: int,
    extras: Mapping[str, Array],
    memory: Tree,
    stride: int,
    device: torch.device,
    compress: bool = False,
) -> dict[str, Tree]:
    shape, meta = (slots, spec.num_envs), torch.device("meta")
    obs = empty_obs(tree.map(lambda leaf: leaf.frame, spec.observation), shape, meta)
    if compress:
        obs = tree.map(lambda leaf: Compressed(tuple(leaf.shape)) if _is_compressible(leaf) else leaf, obs)

    def column(dtype: torch.dtype, *trailing: int) -> Tensor:
        return torch.empty(*shape, *trailing, dtype=dtype, device=meta)

    columns = {
        "obs": obs,
        "reset": column(torch.bool),
        "action": empty_action(spec.action, shape, meta),
        "reward": column(torch.float32, *([1 + len(spec.streams)] if spec.streams else [])),
        "continues": column(torch.bool),
        "keep": column(torch.bool),
        "mask": column(torch.bool),
        "extras": empty_obs(dict(extras), shape, meta),
    }
    return {
        "columns": _adjacent(columns) if device.type == "cpu" else tree.map(_zeros(device), columns),
        "memories": tree.map(
            lambda leaf: torch.zeros(
                slots // stride, spec.num_envs, *leaf.shape[1:], dtype=leaf.dtype, device=device
            ),
            memory,
        ),
    }


def _zeros(device: torch.device) -> Callable[[Any], Any]:
    """Allocates a leaf that is on the device "meta"."""
    return lambda leaf: leaf if isinstance(leaf, Compressed) else torch.zeros_like(leaf, device=device)


def _adjacent(columns: Tree) -> Tree:
    """Columns [slots, environments, ...] whose small ones are views of one tensor, with a row's values side by side.

    A random row is then one place in memory instead of one for each column.
    """
    places, end = {}, 0
    # Wide numbers first: then all of them are aligned without gaps.
    for leaf in sorted(filter(_is_small, tree.leaves(columns)), key=lambda leaf: -leaf.itemsize):
        size = leaf.shape[2:].numel() * leaf.itemsize
        places[id(leaf)] = slice(end, end + size)
        end += size
    # numpy asks for large pages, where torch does not: a random row then seldom has to look up its page.
    rows = torch.from_numpy(np.zeros((*columns["mask"].shape, -(-end // 8) * 8), np.uint8))
    zeros = _zeros(rows.device)

    def placed(leaf: Any) -> Any:
        if not _is_small(leaf):
            return zeros(leaf)
        return rows[..., places[id(leaf)]].view(leaf.dtype).view(leaf.shape)

    return tree.map(placed, columns)


def _is_small(leaf: Any) -> bool:
    """Whether a column [slots, environments, ...] takes few bytes per row."""
    return isinstance(leaf, Tensor) and leaf.shape[2:].numel() * leaf.itemsize <= SMALL


def _is_compressible(leaf: Tensor) -> bool:
    """Whether a column [slots, environments, ...] holds images."""
    return leaf.dtype == torch.uint8 and leaf.dim() >= 4


def dense(leaf: Any) -> Tensor:
    """A column as a tensor of its own, which can be saved."""
    return leaf[:] if isinstance(leaf, Compressed) else leaf.contiguous()


def _bytes(tensors: Tree) -> int:
    return sum(leaf.shape.numel() * leaf.dtype.itemsize for leaf in tree.leaves(tensors))


def _write(column: Tree, rows: Tree, at: int) -> None:
    """Copy rows into slots from `at` on, wrapping around at most once."""

    def leaf(into: Tensor, value: Tensor) -> None:
        first = min(len(value), len(into) - at)
        into[at : at + first] = value[:first]
        into[: len(value) - first] = value[first:]

    tree.map(leaf, column, rows)
