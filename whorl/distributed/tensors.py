"""Tensors that several processes read and write: slots for trajectories and batches, and published weights."""

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.distributed.shared_memory import ArraySpec, SharedSegment

Layout: TypeAlias = Tree
"""a tree whose leaves are (shape, dtype)"""


def layout_of(tensors: Tree) -> Layout:
    """Shape and dtype of each tensor."""
    return tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype), tensors)


def empty(layout: Layout, device: str = "cpu") -> Tree:
    """Uninitialised tensors of this layout."""
    return tree.map(lambda leaf: torch.empty(leaf[0], dtype=leaf[1], device=device), layout)


def env_slice(rows: dict[str, Tree], where: slice) -> dict[str, Tree]:
    """The part of a batch's tensors that belongs to some environments.

    The environment axis is the first of `memory` and of leaves [B], the second of leaves [T, B, ...].
    """
    timed = {name: value for name, value in rows.items() if name != "memory"}
    found = tree.map(lambda leaf: leaf[where] if leaf.dim() == 1 else leaf[:, where], timed)
    return {**found, "memory": tree.index(rows["memory"], where)} if "memory" in rows else found


def array(tensor: Tensor) -> np.ndarray:
    """As a numpy array; a scalar stays a scalar."""
    return np.asarray(tensor.detach().cpu().numpy(), order="C")


def tensor_of(array: np.ndarray) -> Tensor:
    """A writable copy of an array (arrays received through Ray are read-only)."""
    return torch.from_numpy(array.copy())


def padded(tensor: Tensor) -> int:
    """Bytes of a tensor in a packed block, where each tensor is aligned to eight bytes."""
    return -(-tensor.numel() * tensor.element_size() // 8) * 8


def views(block: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Views of one block of bytes with the shapes and dtypes of `tensors`."""
    found, start = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        found.append(block[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += padded(tensor)
    return found


def array_specs(layout: Layout, prefix: str = "") -> list[ArraySpec]:
    """One array of a shared segment for each leaf, named by its path."""
    return [
        ArraySpec(prefix + path, shape, str(dtype).removeprefix("torch."))
        for path, (shape, dtype) in tree.items(layout)
    ]


def nested(layout: Layout, arrays: dict[str, np.ndarray], prefix: str = "") -> Tree:
    """Arrays named by path as a tree of tensors that share their memory."""
    if isinstance(layout, dict):
        return {key: nested(value, arrays, f"{prefix}.{key}".lstrip(".")) for key, value in layout.items()}
    return torch.from_numpy(arrays[prefix])


class SharedSlots:
    """`count` copies of a tree of tensors in shared memory; the token of a written slot is its number."""

    def __init__(self, layout: Layout, count: int, segment: SharedSegment | None = None) -> None:
        self.layout, self.count = layout, count
        specs = [spec for slot in range(count) for spec in array_specs(layout, f"{slot}.")]
        self.segment = segment or SharedSegment(specs)
        self._slots = [nested(layout, self.segment.arrays, str(slot)) for slot in range(count)]
        self.handles = self.segment.handles

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedSlots, (self.layout, self.count, self.segment)

    def write(self, slot: int, tensors: Tree) -> int:
        tree.copy_(self._slots[slot], tensors)
        return slot

    def read(self, token: int) -> Tree:
        return self._slots[token]


class SharedWeights:
    """Weights in shared memory that one process writes and any number of processes read, without a lock.

    Two copies take turns. `begun` is set before a copy is written and `done` after it: a reader whose copy may have
    been overwritten meanwhile reads again.
    """

    def __init__(self, tensors: list[Tensor], segment: SharedSegment | None = None) -> None:
        self._like = [torch.empty_like(tensor, device="meta") for tensor in tensors]
        self.bytes = sum(map(padded, tensors))
        specs = [
            ArraySpec("begun", (1,), "int64"),
            ArraySpec("done", (1,), "int64"),
            ArraySpec("copies", (2, self.bytes), "uint8"),
        ]
        self.segment = segment or SharedSegment(specs)
        self.handles = self.segment.handles
        arrays = self.segment.arrays
        self._begun, self._done = arrays["begun"], arrays["done"]
        self._views = [views(torch.from_numpy(copy), tensors) for copy in arrays["copies"]]

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedWeights, (self._like, self.segment)

    def write(self, tensors: list[Tensor], version: int) -> None:
        """Publish new weights; versions count up by one."""
        self._begun[0] = version
        for into, tensor in zip(self._views[version % 2], tensors):
            into.copy_(tensor)
        self._done[0] = version

    def read(self, into: list[Tensor], token: None = None) -> int:
        """Copy the newest weights; returns their version, 0 if none were written yet."""
        while True:
            version = int(self._done[0])
            if version == 0:
                return 0
            for tensor, value in zip(into, self._views[version % 2]):
                tensor.copy_(value)
            if int(self._begun[0]) - version < 2:
                return version
