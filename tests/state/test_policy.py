"""A saved policy takes an environment's own observations, whatever their form."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.agent import Acted
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


class Floors(gymnasium.Env):
    """A lift with floors 3, 4, 5."""

    observation_space = gymnasium.spaces.Discrete(3, start=3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 3, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 4, 1.0, False, True, {}


def test_integer_observations_are_understood_one_by_one_and_in_batches(tmp_path: Path) -> None:
    run = whorl.load(Floors, "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    assert policy.act(4) in (0, 1)
    # the number of the column that is one; floor 3 is the first of three
    policy.agent.act = lambda obs, memory, context: Acted(obs.argmax(-1), memory)
    assert [int(policy.act(floor)) for floor in (3, 4, 5)] == [0, 1, 2]
    assert policy.act(np.array([3, 4, 5])).tolist() == [0, 1, 2]
    assert policy.act(np.array([5, 3])).tolist() == [2, 0]
    found = policy.act(torch.tensor([4, 4, 5, 3]))
    assert isinstance(found, torch.Tensor) and found.tolist() == [1, 1, 2, 0]
    assert policy.act(np.eye(3, dtype=np.float32)).tolist() == [0, 1, 2]
    with pytest.raises(WhorlError, match="the observation is 6; this policy knows 3 to 5"):
        policy.act(6)


def test_a_wrong_width_is_one_sentence(tmp_path: Path) -> None:
    run = whorl.load("CartPole-v1", "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    for shape in ((3,), (5, 3), (2, 5, 4)):
        told = f"the observation has shape {shape}; this policy knows (4,), one at a time or a batch of them"
        with pytest.raises(WhorlError, match=re.escape(told)):
            policy.act(np.zeros(shape, np.float32))


def test_dicts_in_any_order_and_masks_beside_them_are_understood(tmp_path: Path) -> None:
    run = whorl.load(Senses, "ppo", {**TINY, "runs": str(tmp_path)}).train().run_dir
    policy = whorl.restore(run)
    mask = np.array([False, False, True])
    assert policy.act(Senses()._look(), action_mask=mask) == 2
    batch = {key: np.stack([value] * 5) for key, value in Senses()._look().items()}
    assert policy.act(batch, action_mask=np.stack([mask] * 5)).tolist() == [2] * 5
    with pytest.raises(WhorlError, match="action_mask=mask"):
        policy.act(Senses()._look())
    with pytest.raises(WhorlError, match=r"the observation 'vector' has shape \(3,\)"):
        policy.act({**Senses()._look(), "vector": np.zeros(3)}, action_mask=mask)
    with pytest.raises(WhorlError, match="batches of different sizes"):
        policy.act(batch, action_mask=mask)
    with pytest.raises(WhorlError, match="lacks 'image'"):
        policy.act({"vector": np.zeros(4, np.float32)}, action_mask=mask)
