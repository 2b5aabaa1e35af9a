"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023, arXiv:2306.13831): partially observed grid worlds.

An observation is a dict: `image` uint8 [7, 7, 3], the type, colour and state of the object in each visible cell, and
`direction`. The numbers are scaled to 0 to 255, because networks divide images by 255. The mission, a sentence, is left
out. A time limit truncates. `info` has the agent's `position`, row and column, and how many cells it visited in the
episode, `cells_visited`, whose mean over episodes is a metric.

A snapshot is the random stream at the start of the episode and the actions since: tasks keep their state in many kinds
of objects, but replaying the actions gives exactly the same state.
"""

import copy
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
