"""Pictures of final observations in TensorBoard."""

import io
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import whorl
from whorl.core.errors import ConfigError
from whorl.core.spec import Array
from whorl.run.callbacks import _newest

torch.set_num_threads(1)
SMALL = {
    "num_envs": 2,
    "num_steps": 12,
    "max_iterations": 3,
    "batch_size": 24,
    "eval": False,
    "quiet": True,
    "workers": 0,
}


class Brighter(gymnasium.Env):
    """Five steps, each ten shades brighter than the one before."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.see(), 0.0, self.count == 5, False, {}

    def see(self) -> np.ndarray:
        return np.full((16, 16, 3), 10 * self.count, np.uint8)


def test_every_third_episode_leaves_its_last_picture(tmp_path: Path):
    """An episode takes six rows, so four end in a rollout of 12 rows and 2 environments: the third, the sixth and the
    twelfth are the last that are due in each of the three rollouts. A rollout counts 20 steps."""
    settings = {**SMALL, "runs": str(tmp_path), "screenshot_freq": 3}
    run = whorl.load(Brighter, "ppo", settings).train().run_dir
    events = EventAccumulator(str(run), size_guidance={"images": 0})
    events.Reload()
    found = events.Images("episode/final")
    assert [picture.step for picture in found] == [0, 20, 40]
    pixels = [np.asarray(Image.open(io.BytesIO(picture.encoded_image_string))) for picture in found]
    assert all(picture.shape == (16, 16, 3) and (picture == 50).all() for picture in pixels)


def test_an_environment_without_pictures_says_so(tmp_path: Path):
    settings = {**SMALL, "runs": str(tmp_path), "screenshot_freq": 3}
    with pytest.raises(ConfigError, match="CartPole-v1 has no image observations; leave it at 0"):
        whorl.load("CartPole-v1", "ppo", settings).train()


@pytest.mark.parametrize(
    ("leaf", "shape"),
    [
        (Array((4, 84, 84), "uint8", stack=4, axis=0), (84, 84, 1)),
        (Array((84, 84, 12), "uint8", stack=4, axis=2), (84, 84, 3)),
        (Array((84, 84), "uint8"), (84, 84, 1)),
        (Array((10, 10, 7), "uint8"), (10, 10, 1)),
    ],
)
def test_the_newest_frame_of_a_stack_is_shown(leaf: Array, shape: tuple[int, ...]):
    frames = np.zeros(leaf.shape, np.uint8)
    np.moveaxis(frames, leaf.axis, 0)[-1] = 200
    picture = _newest(frames, leaf)
    assert picture.shape == shape and picture.max() == 200
