"""Maps of visited cells: counted by hand, in every way of collecting, saved, restored and drawn."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import whorl
from whorl.core.errors import WhorlError
from whorl.core.spec import Array, Discrete, Spec, Stream
from whorl.data.batch import CELL, Batch
from whorl.distributed.pool import WorkerPool
from whorl.log.maps import UNKNOWN, heat_map, read_maps, shades
from whorl.run.maps import VisitMap

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 16,
    "batch_size": 64,
    "n_epochs": 1,
    "total_timesteps": 200,
    "eval": False,
    "tensorboard": False,
    "quiet": True,
}


class Corridor(gymnasium.Env):
    """Ten cells in two lines; action 1 goes one cell on, and the last one ends the episode."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    map_shape = (2, 5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.cell += int(action)
        return self._observe(), 0.0, self.cell == 9, False, {}

    @property
    def position(self) -> tuple[int, int]:
        return divmod(self.cell, 5)

    def _observe(self) -> np.ndarray:
        return np.array([self.cell / 9], np.float32)


def test_visits_and_rewards_are_summed_by_the_cell_that_a_step_led_to() -> None:
    spec = Spec(Array((1,)), Discrete(2), 2, streams=(Stream("rnd", 0.99),), map_shape=(2, 2))
    found = VisitMap(spec, torch.device("cpu"))
    cells = torch.tensor([[0, 3], [3, 3], [1, 3]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    reward = torch.tensor([[0.5, 2.0], [4.0, torch.nan], [1.0, 3.0]])
    both = torch.stack([torch.zeros(3, 2), reward], -1)
    reset = torch.zeros(4, 2, dtype=torch.bool)
    found.add(Batch(torch.zeros(4, 2, 1), reset, cells, both, keep=mask, mask=mask, extras={CELL: cells}))
    maps = found.arrays()
    assert maps["visits"].tolist() == [[1, 1], [0, 3]]
    np.testing.assert_array_equal(maps["rnd"], [[0.5, 1.0], [np.nan, 3.0]])


@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"workers": 2, "acting": "workers"}, marks=pytest.mark.full),
        pytest.param({"workers": 2, "acting": "central"}, marks=pytest.mark.full),
        pytest.param({"actors": 2}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_every_step_is_on_the_map_wherever_it_is_made(how: dict[str, Any], tmp_path: Path) -> None:
    with whorl.load(Corridor, "ppo", components=["count"], runs=str(tmp_path), **SMALL, **how) as trainer:
        for _ in trainer:
            pass
        assert trainer.run_dir is not None
        visits = trainer.parts.map.visits
        assert visits.sum() == trainer.steps
        assert (visits > 0).all()
        assert visits[9] == trainer.episodes, "the final cell belongs to the step that led there"
        maps = read_maps(trainer.run_dir)
    assert maps["visits"].shape == (2, 5) and maps["count"][0, 0] < maps["count"][1, 4]


def test_a_pool_of_workers_tells_the_cells_of_its_environments() -> None:
    pool = WorkerPool(Corridor, 3, "corridor", 1)
    try:
        pool.reset(0)
        assert pool.spec.map_shape == (2, 5)
        pool.step(torch.tensor([0, 1, 1]))
        assert pool.step(torch.tensor([0, 0, 1])).cells.tolist() == [0, 1, 2]
    finally:
        pool.close()


def test_a_resumed_run_has_the_same_map(tmp_path: Path) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "env_options": {"size": 4}, "components": ["count"]}
    with whorl.load("DeepSea-v0", "ppo", **settings) as trainer:
        trainer.step()
        folder = trainer.save()
        for _ in trainer:
            pass
    whole = read_maps(folder.parent)
    row, column = np.indices((4, 4))
    assert (whole["visits"][column > row] == 0).all(), (
        "the diver goes at most one column to the right in a row"
    )
    assert whole["visits"].sum() == trainer.steps
    whorl.resume(folder)
    for name, values in read_maps(folder.parent).items():
        np.testing.assert_array_equal(values, whole[name])


def test_a_run_without_a_map_says_so(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match="has no map"):
        read_maps(tmp_path)


def test_the_picture_of_a_map_is_grey_where_nobody_was() -> None:
    visits = shades("visits", np.array([[0, 9], [99, 9]]))
    np.testing.assert_array_equal(visits, [[np.nan, 1.0], [2.0, 1.0]])
    pixels = heat_map(visits)
    assert pixels.shape == (320, 320, 3) and pixels.dtype == np.uint8
    assert tuple(pixels[0, 0]) == UNKNOWN
    assert pixels[0, 200].tolist() == [68, 1, 84] and pixels[200, 0].tolist() == [253, 231, 37]
    assert heat_map(np.full((1, 3), np.nan)).shape == (106, 318, 3)
