"""Named numpy arrays in memory that several processes share.

On POSIX the memory belongs to a file descriptor that child processes inherit, so the kernel frees it with the last
process and nothing is left behind after a crash; on Windows a tagged mapping behaves the same way. This module does not
import torch, because environment workers start without it.
"""

import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 64
"""bytes; arrays start on a cache line, so that arrays written by different processes never share one"""


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype of one array of a segment."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        size = prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


class SharedSegment:
    """One memory mapping that holds all of `specs`; sent to a child process, it opens the same memory there."""

    def __init__(self, specs: list[ArraySpec], handle: int | str | None = None) -> None:
        self.specs = specs
        size = max(sum(spec.bytes for spec in specs), ALIGNMENT)
        if sys.platform == "win32":
            self.handle: int | str = handle or f"whorl-{os.getpid()}-{os.urandom(8).hex()}"
            self._map = mmap.mmap(-1, size, tagname=str(self.handle))
        else:
            self.handle = _descriptor(size) if handle is None else handle
            self._map = mmap.mmap(int(self.handle), size)
        self.arrays: dict[str, np.ndarray] = {}
        offset = 0
        for spec in specs:
            view = np.frombuffer(self._map, spec.dtype, prod(spec.shape), offset)
            self.arrays[spec.name] = view.reshape(spec.shape)
            offset += spec.bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedSegment, (self.specs, self.handle)

    @property
    def handles(self) -> tuple[int | str, ...]:
        """What a child process must inherit to open this segment."""
        return (self.handle,)

    def release(self) -> None:
        """Close the descriptor; the arrays stay valid as long as they are referenced."""
        if isinstance(self.handle, int) and self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _descriptor(size: int) -> int:
    """A file without a name; memfd first, because /dev/shm is often tiny in containers."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("whorl")
    else:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
