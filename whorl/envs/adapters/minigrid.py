"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023, arXiv:2306.13831): partially observed grid worlds.

An observation is a dict: `image` uint8 [7, 7, 3], the type, colour and state of the object in each visible cell, and
`direction`. The numbers are scaled to 0 to 255, because networks divide images by 255. The mission, a sentence, is left
out. A time limit truncates. `info` has the agent's `position`, row and column, and how many cells it visited in the
episode, `cells_visited`, whose mean over episodes is a metric.

The package computes an image in Python, cell by cell and several times over: 85 % of its time per step. `image_of`
computes the same image in a fifth of that.

A snapshot is the random stream at the start of the episode and the actions since: tasks keep their state in many kinds
of objects, but replaying the actions gives exactly the same state.
"""

import copy
from functools import lru_cache, partial
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.envs.adapter import RegisteredAdapter, make_registered, registry_entry

SCALE = np.array([25, 51, 127], np.uint8)
"""factors of object types (0 to 10), colours (0 to 5) and states (0 to 2)"""


class MiniGridAdapter(RegisteredAdapter):
    """Ids of the package, such as MiniGrid-Empty-8x8-v0; environments are made without mission and with snapshots."""

    extra = "minigrid"
    packages = ("minigrid",)
    modules = ("minigrid.",)

    def owns(self, id: str) -> bool:
        return id.rpartition(":")[2].startswith(("MiniGrid-", "BabyAI-"))

    def entry(self, id: str) -> EnvSpec:
        return registry_entry(id, "minigrid")

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        return MiniGrid(make_registered(entry, options))


ADAPTERS = (MiniGridAdapter(),)


class MiniGrid(gymnasium.Wrapper):
    """An environment of the package without mission, with scaled images, visited cells and snapshots."""

    measures = ("cells_visited",)

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._base: Any = env.unwrapped
        _see_faster(self._base)
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        self.observation_space = spaces.Dict({key: inner[key] for key in ("image", "direction")})
        self._start = self._base.np_random
        self._actions: list[int] = []
        self._visited: set[tuple[int, int]] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._base.np_random, _ = gymnasium.utils.seeding.np_random(seed)
        self._start = copy.deepcopy(self._base.np_random)
        self._actions = []
        self._visited = set()
        obs, info = self.env.reset(options=options)
        return _observe(obs), {**info, **self._found()}

    def step(self, action: Any) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        self._actions.append(int(action))
        obs, reward, terminated, truncated, info = self.env.step(action)
        return (
            _observe(obs),
            float(reward),
            bool(terminated),
            bool(truncated and not terminated),
            {**info, **self._found()},
        )

    @property
    def map_shape(self) -> tuple[int, int]:
        """Rows and columns of the grid, walls included."""
        return int(self._base.height), int(self._base.width)

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of the agent."""
        column, row = self._base.agent_pos
        return int(row), int(column)

    def get_snapshot(self) -> dict[str, Any]:
        return {"random": self._start, "actions": np.array(self._actions, np.int64)}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        self._base.np_random = snapshot["random"]
        self.reset()
        for action in snapshot["actions"].tolist():
            self.step(action)

    def _found(self) -> dict[str, Any]:
        self._visited.add(self.position)
        return {"position": self.position, "cells_visited": len(self._visited)}


def _observe(obs: dict[str, Any]) -> dict[str, Any]:
    return {"image": obs["image"] * SCALE, "direction": obs["direction"]}


def _see_faster(env: Any) -> None:
    """Replace `gen_obs` of a task that observes with the package's own methods."""
    from minigrid.minigrid_env import MiniGridEnv

    names = ("gen_obs", "gen_obs_grid")
    if all(getattr(type(env), name, None) is getattr(MiniGridEnv, name) for name in names):
        env.gen_obs = partial(_gen_obs, env)


def _gen_obs(env: Any) -> dict[str, Any]:
    """`MiniGridEnv.gen_obs`, faster."""
    return {"image": image_of(env), "direction": env.agent_dir, "mission": env.mission}


def image_of(env: Any) -> np.ndarray:
    """What the agent of a `MiniGridEnv` sees: type, colour and state, uint8 [columns, rows, 3], of the cells ahead.

    Row by row from the agent on, as long as anything is visible. A row of the view is a slice of the grid.
    """
    size: int = env.agent_view_size
    width, height, cells = env.grid.width, env.grid.height, env.grid.grid
    (x, y), direction = env.agent_pos, env.agent_dir
    along_x = direction % 2 == 0  # a row of the view is then a column of the grid
    position, length, stride = (y, height, width) if along_x else (x, width, 1)
    first, last = position - size // 2, position + size // 2
    low, high = max(first, 0), min(last, length - 1)
    left, right = [WALL] * (low - first), [WALL] * (last - high)
    mirrored = direction in (1, 2)  # coordinates decrease to the right
    everything = (1 << size) - 1
    image = bytearray(3 * size * size)
    seen = everything if env.see_through_walls else 1 << size // 2
    for row in range(size - 1, -1, -1):
        ahead = size - 1 - row if direction < 2 else row - size + 1
        if along_x:
            start = x + ahead if 0 <= x + ahead < width else None
        else:
            start = (y + ahead) * width if 0 <= y + ahead < height else None
        if start is None:
            line = [WALL] * size
        else:
            line = left + cells[start + low * stride : start + high * stride + 1 : stride] + right
            if mirrored:
                line.reverse()
        if env.see_through_walls:
            further = everything
        else:
            clear = 0
            for column, cell in enumerate(line):
                if cell is None or cell.see_behind():
                    clear |= 1 << column
            seen, further = _look(seen, clear, size)
        if row == size - 1:
            line[size // 2] = env.carrying
        for column, cell in enumerate(line):
            if seen >> column & 1:
                place = 3 * (column * size + row)
                if cell is None:
                    image[place] = EMPTY
                else:
                    image[place : place + 3] = bytes(cell.encode())
        if not further:
            break
        seen = further
    return np.frombuffer(image, np.uint8).reshape(size, size, 3)


class _Wall:
    """What is beyond the grid."""

    @staticmethod
    def see_behind() -> bool:
        return False

    @staticmethod
    def encode() -> tuple[int, int, int]:
        return 2, 5, 0


WALL = _Wall()
EMPTY = 1
"""type of a cell without object"""


@lru_cache(2**15)
def _look(seen: int, clear: int, size: int) -> tuple[int, int]:
    """Which cells of a row are visible, and which of the next one, as bits, where `seen` of this row are visible from
    the row before; `clear` cells don't hide what is behind them."""
    further = 0
    for column in range(size - 1):
        if seen & clear & 1 << column:
            seen |= 2 << column
            further |= 3 << column
    for column in range(size - 1, 0, -1):
        if seen & clear & 1 << column:
            seen |= 1 << column - 1
            further |= 3 << column - 1
    return seen, further
