"""Copies between a replay buffer on the host and a learner on a GPU."""

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import Batch


class Transfer:
    """Sends batches from the host to a GPU and TD errors back, through pinned memory, without waiting."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._buffers: list[dict[str, Tree]] = []
        self._sent = [torch.cuda.Event(), torch.cuda.Event()]
        self._fetched = torch.cuda.Event()
        self._turn = 0

    def send(self, batch: Batch) -> Batch:
        """The batch on the device; its buffer is reused only after the copy has finished."""
        tensors = batch.tensors()
        if len(self._buffers) < 2:
            self._buffers.append(tree.map(lambda leaf: torch.empty_like(leaf).pin_memory(), tensors))
        else:
            self._sent[self._turn].synchronize()
        buffer, event = self._buffers[self._turn], self._sent[self._turn]
        self._turn = 1 - self._turn
        tree.copy_(buffer, tensors)
        moved = batch.replace(**tree.to(buffer, self.device))
        event.record(torch.cuda.current_stream(self.device))
        return moved

    def fetch(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Start copying tensors to the host; call `wait` before reading them."""
        found = {
            name: torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
            for name, value in tensors.items()
        }
        self._fetched.record(torch.cuda.current_stream(self.device))
        return found

    def wait(self) -> None:
        """Wait for the tensors of `fetch`."""
        self._fetched.synchronize()
