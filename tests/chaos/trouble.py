"""An environment that raises, hangs and leaks memory now and then, and counts its steps where nothing can undo it."""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LEAK_BYTES = 2**20
"""per step of an environment that leaks"""
LEAK_LIMIT = 60 * 2**20
"""after which it raises"""


class Trouble(gymnasium.Env):
    """Reward for repeating the sign that is shown; episodes of 20 steps.

    Args:
        notes: a folder. In `steps-PID-NUMBER` an environment counts its steps, in memory that survives its process;
            `leak-PID` says that this process leaks because of its environment.
        raises, hangs, leaks: how likely a step is to raise, to hang, or to be the first one that leaks.
        slow: seconds that a step sleeps.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(
        self, notes: str, raises: float = 0.0, hangs: float = 0.0, leaks: float = 0.0, slow: float = 0.0
    ) -> None:
        self.notes, self.slow = Path(notes), slow
        self.chances = np.cumsum((raises, hangs, leaks))
        self.leaked: list[np.ndarray] | None = None
        self.luck = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
        self.time, self.sign = 0, 0
        Trouble.made += 1
        path = self.notes / f"steps-{os.getpid()}-{Trouble.made}"
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self.count = mmap.mmap(file.fileno(), 8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._misbehave()
        if self.slow:
            time.sleep(self.slow)
        reward = float(int(action) == self.sign)
        self.time += 1
        self.count[:] = struct.pack("<q", struct.unpack("<q", self.count[:])[0] + 1)
        return self._observe(), reward, False, self.time == 20, {}

    def _observe(self) -> np.ndarray:
        self.sign = int(self.np_random.integers(2))
        return np.full(4, 2 * self.sign - 1, np.float32)

    def _misbehave(self) -> None:
        what = int(np.searchsorted(self.chances, self.luck.random(), side="right"))
        if what == 0:
            raise OSError("the simulator lost its connection")
        if what == 1:
            time.sleep(10**6)
        if what == 2 and self.leaked is None:
            (self.notes / f"leak-{os.getpid()}").touch()
            self.leaked = []
        if self.leaked is not None:
            self.leaked.append(np.ones(LEAK_BYTES, np.uint8))
            if len(self.leaked) * LEAK_BYTES >= LEAK_LIMIT:
                raise MemoryError("the simulator used up its memory")


def steps_in(notes: Path) -> int:
    """Steps that all environments together have made."""
    return sum(struct.unpack("<q", path.read_bytes())[0] for path in notes.glob("steps-*"))
