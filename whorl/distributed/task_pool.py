"""A pool of processes, on this machine or on Ray, that work on one task after the other; one that fails is replaced."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from whorl.core.hardware import shares, usable_cores
from whorl.core.registry import KINDS, register, registered
from whorl.distributed.remote import Backend, Remote, RemoteError


class ProcessPool:
    """The processes. Each running task has a slot, by which it is identified.

    Args:
        name: what the processes work on, in messages.
        make: makes the object in each process, whose methods take a task.
        arguments: what it is made with, given the place of the process: 0 to count - 1.
        gpus: the share of a GPU that each process gets on Ray.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        make: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]],
        count: int,
        gpus: float = 0.0,
    ) -> None:
        self.backend, self.name, self.make, self.arguments = backend, name, make, arguments
        self.gpus, self.count = gpus, count
        self.started = 0
        self.idle: list[Remote] = []
        self.busy: dict[int, tuple[Remote, Any, Any]] = {}
        """by the id of the process object: with the slot and the task that it works on"""
        self._places: dict[int, int] = {}
        """of each process, by the id of its object"""
        self._last: dict[Hashable, Remote] = {}
        """the process that worked on a slot last"""
        for place in range(count):
            self._start(place)

    def give(self, slot: Any, task: Any, method: str = "train") -> None:
        """Let an idle process work on a task."""
        self._post(self.idle.pop(), slot, task, method)

    def give_next(self, slot: Any, task: Any, method: str) -> None:
        """Give another task to the process that last answered for this slot."""
        remote = self._last[slot]
        self.idle.remove(remote)
        self._post(remote, slot, task, method)

    def ready(self, timeout: float) -> list[tuple[Any, Any, Any]]:
        """Slots, tasks and answers, or errors, of the processes that are done."""
        if not self.busy:
            return []
        found = []
        for remote in self.backend.wait([remote for remote, _, _ in self.busy.values()], timeout):
            _, slot, task = self.busy[id(remote)]
            try:
                answer = remote.take()
            except RemoteError as error:
                answer = error
                remote.close()
            if answer is None:  # its object was made, and now it works
                continue
            del self.busy[id(remote)]
            found.append((slot, task, answer))
            if isinstance(answer, RemoteError):
                self._last = {key: last for key, last in self._last.items() if last is not remote}
                self._start(self._places.pop(id(remote)))
            else:
                self._last[slot] = remote
                self.idle.append(remote)
        return found

    def _post(self, remote: Remote, slot: Any, task: Any, method: str) -> None:
        self.busy[id(remote)] = (remote, slot, task)
        with suppress(RemoteError):  # `ready` reports that it died
            remote.post(method, task)

    def _start(self, place: int) -> None:
        self.started += 1
        name = f"{self.name} process {self.started}"
        remote = self.backend.start(name, self.make, *self.arguments(place), cpus=1, gpus=self.gpus)
        self._places[id(remote)] = place
        self.idle.append(remote)


def prepare_process(cores: Sequence[int], things: Mapping[str, Mapping[str, Any]]) -> None:
    """Prepare a process of the pool: it runs on these cores only (none: where the system likes) and knows what the
    user registered."""
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # they were taken from this process meanwhile
            os.sched_setaffinity(0, cores)
    for kind, named in things.items():
        for name, thing in named.items():
            register(kind, name, thing)


def process_arguments(count: int, ray: bool) -> list[tuple[list[int], dict[str, dict[str, Any]]]]:
    """What `prepare_process` takes in each of `count` processes; on Ray the cluster says where they run."""
    there = {kind: registered(kind) for kind in KINDS if kind != "adapter"}
    each = [[] for _ in range(count)] if ray else shares(usable_cores(), count)
    return [(cores, there) for cores in each]


def gpu_share(backend: Backend, device: str, count: int) -> float:
    """The share of a GPU that each of `count` processes gets on Ray."""
    return 0.0 if not backend.gpus or device == "cpu" else min(1.0, backend.gpus / count)
