"""A saved policy takes an environment's own observations, whatever their form."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl.errors import WhorlError

TINY = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "lanes": 2,
    "rollout_steps": 8,
    "batch_size": 16,
    "max_epochs": 1,
    "workers": 0,
}


class Senses(gymnasium.Env):
    """Two senses whose dict is not in the order of its space, and a mask told apart."""

    observation_space = gymnasium.spaces.Dict(
        vector=gymnasium.spaces.Box(-1, 1, (4,)), image=gymnasium.spaces.Box(0, 255, (3, 4, 4), np.uint8)
    )
    action_space = gymnasium.spaces.Discrete(3)

    def _look(self) -> dict[str, np.ndarray]:
        return {"vector": np.zeros(4, np.float32), "image": np.zeros((3, 4, 4), np.uint8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {"action_mask": np.array([True, False, True])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != 1, "a forbidden action"
        return self._look(), 1.0, False, True, {"action_mask": np.array([True, False, True])}


def test_an_integer_observation_is_understood(tmp_path: Path) -> None:
    run = whorl.load("FrozenLake-v1", "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    assert whorl.restore(run).act(3) in range(4)


def test_dicts_in_any_order_and_masks_beside_them_are_understood(tmp_path: Path) -> None:
    run = whorl.load(Senses, "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    mask = np.array([False, False, True])
    assert policy.act(Senses()._look(), action_mask=mask) == 2
    batch = {key: np.stack([value] * 5) for key, value in Senses()._look().items()}
    assert policy.act(batch, action_mask=np.stack([mask] * 5)).tolist() == [2] * 5
    with pytest.raises(WhorlError, match="action_mask=mask"):
        policy.act(Senses()._look())
    with pytest.raises(WhorlError, match="lacks 'image'"):
        policy.act({"vector": np.zeros(4, np.float32)}, action_mask=mask)
