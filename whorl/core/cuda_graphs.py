"""Recording of CUDA graphs.

While a thread records, no other may use the GPU: its calls would become part of the graph or make recording fail. Where
several threads train in one process, each works inside `working()` and calls `give_way()` where it may pause.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Gate:
    """Lets threads work at the same time, or one of them alone.

    A thread that wants to be alone waits until the others have left, pause in `give_way`, or want to be alone as well.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._here = threading.local()
        self._working = 0
        """threads at work that do not pause"""
        self._waiting = 0
        """threads that want to be alone"""
        self._alone = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """This thread works in the block."""
        self._enter()
        self._here.working = True
        try:
            yield
        finally:
            self._here.working = False
            self._leave()

    def give_way(self) -> None:
        """Pause while another thread wants to be alone."""
        if self._waiting and getattr(self._here, "working", False):
            self._leave()
            self._enter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """This thread waits for something else in the block, and does not work."""
        works = getattr(self._here, "working", False)
        if works:
            self._leave()
        try:
            yield
        finally:
            if works:
                self._enter()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread works in the block."""
        works = getattr(self._here, "working", False)
        with self._changed:
            self._working -= works
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._alone and not self._working)
            self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._working += works
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._working += 1

    def _leave(self) -> None:
        with self._changed:
            self._working -= 1
            self._changed.notify_all()


GATE = Gate()
"""of this process"""
_STREAMS: dict[int, torch.cuda.Stream] = {}
"""for recording, by the number of the device"""


def recording_stream() -> torch.cuda.Stream:
    """On which graphs of the current device are recorded; torch's own stream is on the device of its first graph."""
    device = torch.cuda.current_device()
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream()
    return _STREAMS[device]


def record(
    graph: torch.cuda.CUDAGraph,
    step: Callable[[], Any],
    tensors: Sequence[Tensor],
    generators: Sequence[torch.Generator],
) -> Any:
    """Warm `step` up on a side stream, put its state back, and record it into `graph`; returns its static result."""
    with GATE.alone():
        return _record(graph, step, tensors, generators)


class Recorded:
    """A step that a CUDA graph replays. What the step reads has to outlive it: a graph knows addresses alone."""

    def __init__(
        self, step: Callable[[], Any], tensors: list[Tensor], generators: list[torch.Generator]
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.result = record(self.graph, step, tensors, generators)

    def replay(self) -> Any:
        self.graph.replay()
        return self.result


def _record(
    graph: torch.cuda.CUDAGraph,
    step: Callable[[], Any],
    tensors: Sequence[Tensor],
    generators: Sequence[torch.Generator],
) -> Any:
    devices = [tensor.device for tensor in tensors] + [generator.device for generator in generators]
    device = next((device for device in devices if device.type == "cuda"), None)
    with torch.cuda.device(device):  # recording follows the current device, replaying that of the graph
        return _record_here(graph, step, tensors, generators)


def _record_here(
    graph: torch.cuda.CUDAGraph,
    step: Callable[[], Any],
    tensors: Sequence[Tensor],
    generators: Sequence[torch.Generator],
) -> Any:
    saved = [tensor.detach().clone() for tensor in tensors]
    states = [generator.get_state() for generator in generators]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved):
                tensor.copy_(value)
        for generator, state in zip(generators, states):
            generator.set_state(state)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
            put_back()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    for generator in generators:
        graph.register_generator_state(generator)
    # A graph has workspaces of its own for matrix products. Torch keeps one per stream, and all graphs are recorded on
    # one stream: graphs that are replayed at the same time would share it, and give wrong results.
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.graph(graph, stream=recording_stream()):
        result = step()
    torch._C._cuda_clearCublasWorkspaces()
    # Recording sets the offsets of random generators to 0 on its stream, a replay sets them on the current one: that
    # must come last, or the first replay draws from offset 0.
    torch.cuda.synchronize()
    put_back()
    return result
