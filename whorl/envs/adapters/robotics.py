"""Gymnasium-Robotics: environments with goals (Fetch, Shadow hand, mazes) by id, such as FetchReach-v4.

Observations are dicts of observation, achieved_goal and desired_goal. Success at the end of an episode is the metric
`success_rate`.
"""

from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from whorl.envs.adapter import RegisteredAdapter, make_registered, registry_entry

PREFIXES = ("Fetch", "HandReach", "HandManipulate", "PointMaze_", "AntMaze_", "AdroitHand", "FrankaKitchen")
MAZES = ("PointMaze_", "AntMaze_")


class RoboticsAdapter(RegisteredAdapter):
    """Ids of the package; those of its own that others do not have."""

    extra = "robotics"
    packages = ("gymnasium_robotics",)
    modules = ("gymnasium_robotics.",)

    def owns(self, id: str) -> bool:
        return id.rpartition(":")[2].startswith(PREFIXES)

    def entry(self, id: str) -> EnvSpec:
        import_quietly()
        entry = registry_entry(id, "gymnasium_robotics")
        repair()
        return entry

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        repair()
        env = make_registered(entry, options)
        return Maze(env) if entry.id.startswith(MAZES) else env


ADAPTERS = (RoboticsAdapter(),)


class Maze(gymnasium.Wrapper):
    """A maze whose `compute_terminated` takes arrays of goals."""

    def compute_terminated(
        self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any
    ) -> np.ndarray | bool:
        base: Any = self.unwrapped
        if base.continuing_task:
            return False
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= 0.45


@cache
def import_quietly() -> None:
    """Import the package without what it prints about the rewards of Adroit's hands, whatever is trained."""
    # A package that is missing is named by the adapter.
    with suppress(ImportError), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        import_module("gymnasium_robotics")


@cache
def repair() -> None:
    """Let the package (1.4) recognise joints: it looks for numpy numbers among enums, which MuJoCo 3 tells apart."""
    import mujoco

    import_quietly()
    utils: Any = import_module("gymnasium_robotics.utils.mujoco_utils")
    kinds = {name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()}
    utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**kinds)})
