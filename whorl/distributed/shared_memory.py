"""Memory that two processes see, with no name left behind whatever kills them.

On POSIX the memory belongs to a file descriptor that children inherit, so the kernel frees it with the last process; on
Windows a tagged mapping behaves the same way. Numpy only: pool workers import this.
"""

import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

ALIGNMENT = 64
"""bytes: arrays start on a cache line, so that neighbours written by two processes never share one"""


@dataclass(frozen=True)
class Block:
    """One named array of a segment."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        size = prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


class Segment:
    """One mapping that holds all of `blocks`; made by the parent, opened again in a child by its `handle`."""

    def __init__(self, blocks: list[Block], handle: int | str | None = None) -> None:
        self.blocks = blocks
        size = max(sum(block.bytes for block in blocks), ALIGNMENT)
        if sys.platform == "win32":
            self.handle: int | str = handle or f"whorl-{os.getpid()}-{os.urandom(8).hex()}"
            self._map = mmap.mmap(-1, size, tagname=str(self.handle))
        else:
            self.handle = _descriptor(size) if handle is None else handle
            self._map = mmap.mmap(int(self.handle), size)
        self.arrays: dict[str, np.ndarray] = {}
        offset = 0
        for block in blocks:
            view = np.frombuffer(self._map, block.dtype, prod(block.shape), offset)
            self.arrays[block.name] = view.reshape(block.shape)
            offset += block.bytes

    def release(self) -> None:
        """Give the descriptor up; the arrays stay valid for as long as someone holds them."""
        if isinstance(self.handle, int) and self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _descriptor(size: int) -> int:
    """A file without a name; memfd first, since /dev/shm is often tiny in containers."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("whorl")
    else:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
