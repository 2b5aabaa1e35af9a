"""Communication between learners with torch.distributed: sums over all, and tensors from and to the first.

Only tensors travel whose shapes both sides know: nothing that is received is unpickled. The groups are made from their
classes and not with `init_process_group`, because that has one default group per process, which may be the user's, and
several trainers in one process each need a group.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from whorl.core.errors import WhorlError
from whorl.distributed.tensors import padded, views

Transport: TypeAlias = Literal["gloo", "nccl"]

TIMEOUT = timedelta(seconds=60)
"""how long a learner waits for another"""


class LearnerLost(WhorlError):
    """Another learner has gone, or does not answer."""


@dataclass(frozen=True)
class GroupMember:
    """What one of several learners needs to join the others."""

    rank: int
    size: int
    device: str
    rendezvous: tuple[str, int]
    """address and port of the first one's `Rendezvous`"""
    transport: Transport


class Rendezvous:
    """A listener at which learners find each other; at 127.0.0.1 it can't be reached from other machines."""

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
    """Learners that have joined. What fails here fails because of another one, and raises `LearnerLost`."""

    def __init__(self, member: GroupMember, rendezvous: Rendezvous | None = None) -> None:
        self.rank, self.size = member.rank, member.size
        # gloo moves host memory: learners that share a GPU exchange through it.
        self._device = torch.device(member.device if member.transport == "nccl" else "cpu")
        self._group: Any = self._try(lambda: _joined(member, rendezvous))

    def close(self) -> None:
        """Leave; learners that wait for this one get an error."""
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
        """This learner's of the first one's `parts`: tensors shaped `like` these."""
        own = torch.empty(sum(map(padded, like)), dtype=torch.uint8, device=self._device)
        options = dist.ScatterOptions()
        options.rootRank = 0
        blocks = [[self._packed(part) for part in parts]] if parts else []
        self._wait(lambda: self._group.scatter([own], blocks, options))
        return views(own, like)

    def gather(self, values: list[Tensor]) -> list[list[Tensor]]:
        """To the first learner: the values of each, which have equal shapes; the others get nothing."""
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
            raise LearnerLost(
                f"another learner has gone or does not answer: {str(error).splitlines()[0]}"
            ) from None


def _joined(member: GroupMember, rendezvous: Rendezvous | None) -> Any:
    if rendezvous is None:
        store = dist.TCPStore(*member.rendezvous, member.size, is_master=False, timeout=TIMEOUT)
    else:
        store = rendezvous.store
    if member.transport == "nccl":
        # A failure is to be raised here; by default it ends the process.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        return dist.ProcessGroupNCCL(store, member.rank, member.size, TIMEOUT)  # type: ignore[arg-type]  # not in the stubs
    with _gloo_interface(member.rendezvous):
        return dist.ProcessGroupGloo(store, member.rank, member.size, TIMEOUT)


@contextmanager
def _gloo_interface(rendezvous: tuple[str, int]) -> Iterator[None]:
    """Let gloo listen on the network interface that leads to the first learner; loopback on one machine."""
    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    found = before or _interface(rendezvous)
    if found:
        os.environ[name] = found
    try:
        yield
    finally:
        if found and before is None:
            del os.environ[name]


def _interface(rendezvous: tuple[str, int]) -> str:
    """The name of the interface whose address connections to `rendezvous` come from; empty if it can't be found."""
    if sys.platform != "linux":
        return "lo0" if sys.platform == "darwin" and rendezvous[0] == "127.0.0.1" else ""
    import fcntl  # POSIX alone has it

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(rendezvous)  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no address
            if answer[20:24] == own:
                return name
    return ""
