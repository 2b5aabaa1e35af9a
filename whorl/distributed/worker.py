"""The object inside a worker process of the environment pool: a slice of the environments, stepped on command.

This module does not import torch, so that a worker starts fast.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from whorl.core.errors import EnvError
from whorl.distributed.hang_timer import HangTimer, Report
from whorl.distributed.shared_memory import SharedSegment

ARRAY_PREFIX = "user/"
BUFFERS = 2
"""copies of the result buffers: one is written while the caller still reads the other"""


@dataclass(frozen=True)
class Slice:
    """One worker's environments of one group: `start` on the axis of all environments, `first` within the worker."""

    start: int
    stop: int
    first: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


class EnvWorker:
    """Steps its environments; `commands` holds one function for each group and buffer (see `process.main`)."""

    def __init__(
        self, environment: bytes, slices: list[Slice], segment: SharedSegment, timeout: float = 0.0
    ) -> None:
        from whorl.envs.stepping import Buffers, EnvStepper  # the parent's sys.path has to be in place first

        factory, layout = pickle.loads(environment)
        self.slices, self.timeout, arrays = slices, timeout, segment.arrays
        numbers = [env_index for part in slices for env_index in range(part.start, part.stop)]
        self.stepper = EnvStepper(factory, layout, numbers)
        self.arrays = user_arrays(arrays)
        self._attached: Any = None
        action = [arrays[f"action/{index}"] for index in range(len(layout.action))]
        self._outputs = []
        for buffer in range(BUFFERS):
            obs = [arrays[f"obs/{index}"][buffer] for index in range(len(layout.observation))]
            names = ("reward", "terminated", "truncated", "reset", "soft", "measures", "cells")
            whole = Buffers(obs, *(arrays[name][buffer] for name in names))
            self._outputs.append([whole[part.rows] for part in slices])
        self.commands = [
            partial(
                self.stepper.step,
                [leaf[part.rows] for leaf in action],
                self._outputs[buffer][group],
                part.first,
            )
            for group, part in enumerate(slices)
            for buffer in range(BUFFERS)
        ]

    def watch_hangs(self, report: Report) -> None:
        """Report a step that takes longer than `timeout`."""
        HangTimer(self.timeout, self.stepper.under_way, self.stepper.where, report)

    def reset(self, seed: int) -> None:
        for part, out in zip(self.slices, self._outputs[0]):
            self.stepper.reset(seed, out, part.first)

    def snapshot(self) -> list[dict[str, Any]] | str:
        """Of each environment; or why one has none: an error would end the pool."""
        try:
            return self.stepper.snapshot()
        except EnvError as error:
            return error.message

    def restore(self, snapshots: list[dict[str, Any]]) -> None:
        self.stepper.restore(snapshots)

    def render(self, env_index: int) -> np.ndarray | None:
        return self.stepper.render(self.stepper.numbers.index(env_index))

    def attach(self, packed: bytes) -> None:
        """Make an object next to the environments, whose methods `call` runs."""
        make: Callable[..., Any]
        make, arguments = pickle.loads(packed)
        self._attached = make(self.stepper, self.arrays, *arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._attached, method)(*arguments)

    def close(self) -> None:
        self.stepper.close()


def user_arrays(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a segment that the user of the pool requested, under the names they gave."""
    return {name.removeprefix(ARRAY_PREFIX): x for name, x in arrays.items() if name.startswith(ARRAY_PREFIX)}
