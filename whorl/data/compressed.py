"""A column of a replay buffer whose rows are compressed in host memory (`compress`)."""

import zlib
from typing import Any

import torch
from torch import Tensor

RATIO = 4
"""by how much frames are expected to shrink, where memory has to be estimated; those of Pong shrink by more"""


class Compressed:
    """[slots, environments, ...] of uint8, each row of each environment compressed by zlib at its fastest level.

    It is written and read by slots or cells, as a tensor is; what was never written is zero. Rows are exact.
    """

    dtype = torch.uint8
    device = torch.device("cpu")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = torch.Size(shape)
        self.rows: list[bytes | None] = [None] * (shape[0] * shape[1])
        self._empty = bytes(self.shape[2:].numel())

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        """Size of what is stored."""
        return sum(len(row) for row in self.rows if row is not None)

    def take(self, cells: Tensor) -> Tensor:
        """Rows at cells [N]: [N, ...]."""
        rows = [self.rows[cell] for cell in cells.tolist()]
        raw = b"".join(self._empty if row is None else zlib.decompress(row) for row in rows)
        if not raw:
            return torch.zeros(len(rows), *self.shape[2:], dtype=self.dtype)
        return torch.frombuffer(bytearray(raw), dtype=self.dtype).reshape(len(rows), *self.shape[2:])

    def __getitem__(self, slots: Any) -> Tensor:
        cells = self._cells(slots)
        return self.take(cells.reshape(-1)).reshape(*cells.shape, *self.shape[2:])

    def __setitem__(self, slots: Any, values: Tensor) -> None:
        cells = self._cells(slots).reshape(-1).tolist()
        flat = values.to("cpu", self.dtype).reshape(len(cells), self.shape[2:].numel()).contiguous().numpy()
        for cell, row in zip(cells, flat):
            self.rows[cell] = zlib.compress(row, 1)

    def copy_(self, values: Tensor) -> None:
        """Replace all rows."""
        self[:] = values

    def _cells(self, slots: Any) -> Tensor:
        """Cells [slots, environments] of a slice or indices of slots."""
        every = torch.arange(self.shape[0] * self.shape[1]).reshape(self.shape[0], self.shape[1])
        return every[slots]
