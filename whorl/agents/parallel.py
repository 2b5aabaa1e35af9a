"""Independent steps of one update that run at the same time."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

SWITCH_INTERVAL = 5e-5
"""seconds between thread switches while steps run; Python's default, 5 ms, is longer than many a step takes"""


class Parallel:
    """Runs steps on streams of one CUDA graph on a GPU, and in threads on a CPU.

    They must not share parameters, buffers that they write, or random generators.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def use_threads(self, count: int) -> None:
        """Use `count` threads on a CPU; 1 runs one step after the other."""
        self._pool = ThreadPoolExecutor(count - 1, thread_name_prefix="learner") if count > 1 else None

    def run(self, device: torch.device, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of all steps, in their order."""
        if device.type == "cuda":
            return self._on_streams(device, steps)
        if self._pool is None:
            return [step() for step in steps]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            futures = [self._pool.submit(step) for step in steps[1:]]
            first = steps[0]()
            return [first, *(future.result() for future in futures)]
        finally:
            sys.setswitchinterval(interval)

    @staticmethod
    def _on_streams(device: torch.device, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        here = torch.cuda.current_stream(device)
        results, streams = [], []
        for step in steps[1:]:
            stream = torch.cuda.Stream(device)
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                results.append(step())
            streams.append(stream)
        first = steps[0]()
        for stream in streams:
            here.wait_stream(stream)
        return [first, *results]
