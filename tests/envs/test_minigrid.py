"""MiniGrid's tasks: what is seen, when episodes end, and that they continue exactly."""

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.core import tree
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.minigrid import SCALE, MiniGrid

torch.set_num_threads(1)
installed = pytest.mark.skipif(
    importlib.util.find_spec("minigrid") is None,
    reason="minigrid is not installed: pip install -e '.[minigrid]'",
)
LEFT, RIGHT, FORWARD = 0, 1, 2


def same(a: tree.Tree, b: tree.Tree) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def make(id: str, **options: Any) -> gymnasium.Env:
    return factory_from_id(id, **options)()


@installed
def test_a_picture_and_a_direction_are_seen_and_no_sentence():
    env = GymnasiumVector(factory_from_id("MiniGrid-Empty-8x8-v0"), 1, "empty")
    assert {key: leaf.shape for key, leaf in env.spec.observation.items()} == {
        "image": (7, 7, 3),
        "direction": (4,),
    }
    assert env.spec.action.n == 7
    obs = env.reset(0)
    assert obs["image"].dtype == torch.uint8
    assert obs["direction"].tolist() == [[1, 0, 0, 0]]


@installed
def test_numbers_are_spread_over_what_a_picture_can_hold():
    """The cell ahead is empty: object 1 of 10. On the left is a wall: object 2, of colour 5 of 5."""
    env = make("MiniGrid-Empty-8x8-v0")
    obs, _ = env.reset(seed=0)
    assert obs["image"][3, 5].tolist() == [25, 0, 0]
    assert obs["image"][2, 6].tolist() == [50, 255, 0]


SEEN = {
    "MultiRoom-N6": {},
    "MultiRoom-N6 with a view of 5": {"agent_view_size": 5},
    "KeyCorridorS3R3": {},
    "ObstructedMaze-2Dlhb": {},
    "ObstructedMaze-1Dlhb through walls": {"see_through_walls": True},
    "LavaCrossingS9N3": {},
    "Dynamic-Obstacles-6x6": {},
    "PutNear-8x8-N3": {},
}


@installed
@pytest.mark.parametrize("name", SEEN)
def test_an_image_is_the_packages_own(name: str):
    """Doors open and closed, lava, obstacles that move, things carried, walls, and what is beyond the grid."""
    from minigrid.minigrid_env import MiniGridEnv

    id = f"MiniGrid-{name.split()[0]}-v{1 if name.startswith('ObstructedMaze-2Dlhb') else 0}"
    env = make(id)
    base: Any = env.unwrapped
    for key, value in SEEN[name].items():
        setattr(base, key, value)
    obs, _ = env.reset(seed=5)
    generator = np.random.default_rng(0)
    carried = False
    for _ in range(600):
        image = MiniGridEnv.gen_obs(base)["image"]
        assert np.array_equal(obs["image"], image * SCALE)
        carried |= base.carrying is not None
        obs, _, terminated, truncated, _ = env.step(
            generator.choice(base.action_space.n, p=_mostly_forward(base))
        )
        if terminated or truncated:
            obs, _ = env.reset()
    assert carried == (name.split("-")[0] in ("KeyCorridorS3R3", "ObstructedMaze", "PutNear"))


def _mostly_forward(env: Any) -> np.ndarray:
    weights = np.ones(env.action_space.n)
    weights[FORWARD] = 4
    return weights / weights.sum()


@installed
def test_a_task_that_sees_in_its_own_way_is_left_alone():
    from minigrid.envs import EmptyEnv

    class Blind(EmptyEnv):
        def gen_obs(self) -> dict[str, Any]:
            return {**super().gen_obs(), "image": np.zeros((7, 7, 3), np.uint8)}

    assert not MiniGrid(Blind()).reset(seed=0)[0]["image"].any()
    assert MiniGrid(EmptyEnv()).reset(seed=0)[0]["image"].any()


@installed
def test_the_goal_terminates_and_the_limit_truncates():
    """From one corner of a room of 3 by 3 to the other: two steps, a turn, two steps; reward 1 - 0.9 * 5/100."""
    env = make("MiniGrid-Empty-5x5-v0")
    env.reset(seed=0)
    steps = [env.step(action) for action in (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)]
    assert steps[-1][1:4] == (pytest.approx(0.955), True, False)
    env.reset()
    assert [env.step(LEFT)[2:4] for _ in range(100)][-2:] == [(False, False), (False, True)]


@installed
def test_the_position_and_the_cells_visited_are_told():
    env = make("MiniGrid-Empty-5x5-v0")
    assert env.reset(seed=0)[1] == {"position": (1, 1), "cells_visited": 1}
    walk = [env.step(action)[4] for action in (FORWARD, RIGHT, FORWARD, LEFT, LEFT, FORWARD)]
    assert [info["position"] for info in walk] == [(1, 2), (1, 2), (2, 2), (2, 2), (2, 2), (1, 2)]
    assert [info["cells_visited"] for info in walk] == [2, 2, 3, 3, 3, 3]
    snapshot = env.get_snapshot()
    assert env.step(FORWARD)[4] == {"position": (1, 2), "cells_visited": 3}  # the wall above
    other = make("MiniGrid-Empty-5x5-v0")
    other.reset(seed=4)
    other.set_snapshot(snapshot)
    assert other.step(LEFT)[4] == {"position": (1, 2), "cells_visited": 3}
    assert env.reset()[1]["cells_visited"] == 1
    vector = GymnasiumVector(factory_from_id("MiniGrid-Empty-5x5-v0"), 2, "empty")
    vector.reset(0)
    vector.step(torch.tensor([FORWARD, LEFT]))
    assert vector.map_shape == (5, 5) and vector.cells().tolist() == [7, 6]
    assert vector.spec.measures == ("cells_visited", "success_rate")


HARD = ["DoorKey-8x8", "MultiRoom-N6", "KeyCorridorS3R3", "ObstructedMaze-2Dlh"]


@installed
@pytest.mark.parametrize("name", HARD)
def test_the_hard_ones_are_sound_and_train(name: str, tmp_path: Path):
    id = f"MiniGrid-{name}-v0"
    assert whorl.check(id) == []
    small = {
        "num_envs": 2,
        "num_steps": 16,
        "batch_size": 16,
        "n_epochs": 1,
        "workers": 0,
        "max_iterations": 2,
    }
    quiet = {"eval": False, "quiet": True, "tensorboard": False, "device": "cpu", "runs": str(tmp_path)}
    assert whorl.load(id, "ppo", {**small, **quiet}).train().steps == 64


@installed
def test_a_seed_gives_the_packages_own_episodes():
    ours, theirs = make("MiniGrid-DoorKey-6x6-v0"), gymnasium.make("MiniGrid-DoorKey-6x6-v0")
    for seed in (3, None):
        ours.reset(seed=seed)
        theirs.reset(seed=seed)
        assert ours.unwrapped.hash() == theirs.unwrapped.hash()


@installed
@pytest.mark.parametrize(
    "id",
    [
        "MiniGrid-DoorKey-6x6-v0",
        "MiniGrid-Dynamic-Obstacles-6x6-v0",
        "MiniGrid-ObstructedMaze-1Dlhb-v0",
        "BabyAI-GoToObj-v0",
    ],
)
def test_envs_survive_a_safe_file_and_continue_exactly(id: str):
    """Tasks with keys, with moving obstacles, with boxes that hold keys, and with instructions."""
    env, fresh = (GymnasiumVector(factory_from_id(id), 2, id) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    count = env.spec.action.n
    env.reset(1)
    for _ in range(30):
        last = tree.clone(env.step(torch.randint(count, (2,), generator=generator)).obs)
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    assert same(fresh.restore(torch.load(file, weights_only=True)), last)
    for _ in range(150):
        action = torch.randint(count, (2,), generator=generator)
        a, b = env.step(action), fresh.step(action)
        assert same(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


@installed
def test_an_unknown_id_names_the_nearest():
    with pytest.raises(EnvError, match="did you mean 'MiniGrid-Empty-8x8-v0'"):
        factory_from_id("MiniGrid-Emty-8x8-v0")


@installed
def test_what_is_drawn_is_the_whole_grid():
    env = make("MiniGrid-Empty-8x8-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert np.asarray(env.render()).shape == (256, 256, 3)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(WhorlError, match=r"minigrid is not installed.*\[minigrid\]"):
        factory_from_id("MiniGrid-Empty-8x8-v0")
