"""How learners reach each other, by torch.distributed: sums over all of them, and blocks from and to the first.

Only tensors travel, whose shapes both sides know: nothing that comes in is unpickled.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from whorl.core.errors import WhorlError
from whorl.distributed.buffers import padded, views

Backend: TypeAlias = Literal["gloo", "nccl"]

TIMEOUT = timedelta(seconds=60)
"""how long a learner waits for another before it gives it up"""


class Lost(WhorlError):
    """Another learner is gone, or does not answer."""


@dataclass(frozen=True)
class Place:
    """Where one of several learners stands."""

    rank: int
    size: int
    device: str
    meeting: tuple[str, int]
    """address and port of the first one, where they find each other"""
    host: str
    """the address under which others reach this one"""
    backend: Backend


class Meeting:
    """A listener at which learners find each other; at 127.0.0.1 nobody outside this machine can reach it."""

    def __init__(self, host: str, size: int) -> None:
        with socket.socket() as listener:
            listener.bind((host, 0))
            listener.listen()
            port = listener.getsockname()[1]
            self.address = host, port
            self.store = dist.TCPStore(
                host,
                port,
                size,
                is_master=True,
                timeout=TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )


class Group:
    """Learners that found each other. What fails here fails because of another one, and raises `Lost`."""

    def __init__(self, place: Place, meeting: Meeting | None = None) -> None:
        self.rank, self.size = place.rank, place.size
        # gloo moves host memory: learners that share a GPU exchange through it.
        self._device = torch.device(place.device if place.backend == "nccl" else "cpu")
        self._group: Any = self._try(lambda: _joined(place, meeting))

    def close(self) -> None:
        """Leave: others who wait for this one hear of it."""
        self._group = None

    def add_(self, value: Tensor) -> None:
        """Replace `value` by the sum over all learners."""
        held = value.to(self._device).contiguous()
        self._wait(lambda: self._group.allreduce([held]))
        if held is not value:
            value.copy_(held)

    @torch.no_grad()
    def average_(self, values: Sequence[Tensor]) -> None:
        """Replace each value by its mean over all learners: one message for all."""
        flat = torch.cat([value.reshape(-1) for value in values])
        self.add_(flat)
        means = flat.div_(self.size).split([value.numel() for value in values])
        for value, mean in zip(values, means):
            value.copy_(mean.view_as(value))

    def scatter(self, like: list[Tensor], parts: Sequence[list[Tensor]] = ()) -> list[Tensor]:
        """From the first learner's `parts`, one for each, this one's: tensors `like` these."""
        own = torch.empty(sum(map(padded, like)), dtype=torch.uint8, device=self._device)
        options = dist.ScatterOptions()
        options.rootRank = 0
        blocks = [[self._packed(part) for part in parts]] if parts else []
        self._wait(lambda: self._group.scatter([own], blocks, options))
        return views(own, like)

    def gather(self, values: list[Tensor]) -> list[list[Tensor]]:
        """To the first learner, from each the values, which are alike; the others get nothing."""
        own = self._packed(values)
        options = dist.GatherOptions()
        options.rootRank = 0
        blocks = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else []
        self._wait(lambda: self._group.gather([blocks] if blocks else [], [own], options))
        return [views(block, values) for block in blocks]

    @torch.no_grad()
    def _packed(self, tensors: list[Tensor]) -> Tensor:
        block = torch.empty(sum(map(padded, tensors)), dtype=torch.uint8, device=self._device)
        for into, tensor in zip(views(block, tensors), tensors):
            into.copy_(tensor)
        return block

    def _wait(self, start: Callable[[], Any]) -> None:
        self._try(lambda: start().wait())

    @staticmethod
    def _try(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except RuntimeError as error:
            raise Lost(f"another learner is gone or does not answer: {str(error).splitlines()[0]}") from None


def _joined(place: Place, meeting: Meeting | None) -> Any:
    """torch's own groups are used directly: its default one may be the user's."""
    if meeting is None:
        store = dist.TCPStore(*place.meeting, place.size, is_master=False, timeout=TIMEOUT)
    else:
        store = meeting.store
    if place.backend == "nccl":
        # A failure is to be raised here; by default it ends the process.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, place.rank, place.size, nccl)
    gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs leave it out
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=place.host)]
    gloo._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, place.rank, place.size, gloo)
