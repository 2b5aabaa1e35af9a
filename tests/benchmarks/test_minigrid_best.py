"""The best return of MiniGrid tasks, found by search."""

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("minigrid") is None:
    pytest.skip("minigrid is not installed: pip install -e '.[minigrid]'", allow_module_level=True)
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gymnasium
import minigrid_best


def task(id: str, seed: int) -> Any:
    env: Any = gymnasium.make(id).unwrapped
    env.reset(seed=seed)
    return env


def tried(env: Any) -> int:
    """Steps of the quickest solution, found by trying all actions in copies of the task itself."""
    known, front = {key(env)}, [env]
    for steps in range(1, env.max_steps):
        following = []
        for before in front:
            for action in range(6):
                after = copy.deepcopy(before)
                if after.step(action)[1] > 0:
                    return steps
                if key(after) not in known:
                    known.add(key(after))
                    following.append(after)
        front = following
    raise AssertionError("not solved")


def key(env: Any) -> Any:
    return env.grid.encode().tobytes(), tuple(env.agent_pos), env.agent_dir, env.carrying is not None


def test_a_corner_is_five_steps_from_the_other() -> None:
    """Two steps, a turn, two steps."""
    assert minigrid_best.Layout(task("MiniGrid-Empty-5x5-v0", 0)).shortest() == 5


@pytest.mark.parametrize("seed", [0, 3])
def test_nothing_is_quicker_than_what_is_found(seed: int) -> None:
    """A key, a locked door, a goal behind it."""
    found = minigrid_best.Layout(task("MiniGrid-DoorKey-5x5-v0", seed)).shortest()
    assert found == tried(task("MiniGrid-DoorKey-5x5-v0", seed))


def test_a_ball_behind_a_locked_door_needs_free_hands() -> None:
    """The key has to be dropped before the ball is picked up."""
    env = task("MiniGrid-KeyCorridorS3R1-v0", 0)
    layout = minigrid_best.Layout(env)
    assert layout.wanted is env.obj
    assert layout.shortest() == tried(env)
