"""Compressed images in replay: the same batches bit for bit, less memory, and checkpoints in both directions."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.conformance import CHECKS, Run, same, subject
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.compressed import Compressed
from whorl.data.ring import Ring, replay_bytes
from whorl.run.build import replay_device
from whorl.settings.merge import configure

torch.set_num_threads(1)
SPEC = Spec(
    {"image": Array((12, 12, 4), "uint8", 0.0, 255.0, stack=4, axis=2), "speed": Array((2,))}, Discrete(2), 3
)


class Slow(gymnasium.Env):
    """Images of which most pixels stay: a bright column that moves to the right."""

    observation_space = gymnasium.spaces.Box(0, 255, (32, 32, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.see(), float(action), self.time == 9, False, {}

    def see(self) -> np.ndarray:
        image = np.zeros((32, 32, 1), np.uint8)
        image[:, self.time] = 200
        return image


def test_what_is_written_is_read() -> None:
    column = Compressed((5, 2, 3, 4))
    values = torch.randint(0, 256, (3, 2, 3, 4), dtype=torch.uint8)
    column[1:4] = values
    assert column[1:4].equal(values)
    assert column[torch.tensor([3, 1])].equal(values[[2, 0]])
    assert column.take(torch.tensor([2, 7])).equal(
        torch.stack([values[0, 0], values[2, 1]])
    )  # cells: slot * 2 + env
    assert not column[0:1].any() and not column[4:5].any()
    assert len(column) == 5 and column.shape == (5, 2, 3, 4)


@pytest.mark.parametrize("check", ["resumes_exactly", "masked_rows_have_no_influence", "can_be_captured"])
def test_agents_conform(check: str) -> None:
    CHECKS[check](subject("dqn", "image", "none", "discrete", compress=True))


@pytest.mark.parametrize(("memory", "settings"), [("none", {"prioritized": True, "n_step": 3}), ("lstm", {})])
def test_batches_are_those_of_an_uncompressed_buffer(memory: str, settings: dict[str, Any]) -> None:
    def learned(compress: bool) -> Any:
        run = Run(subject("dqn", "image", memory, "discrete", compress=compress, **settings), seed=1)
        cell = subject("dqn", "image", memory, "discrete", compress=compress, **settings)
        run.feed(cell.rollouts(run.agent, 6))
        held = tree.leaves(run.experience.ring.columns["obs"])[0]
        assert isinstance(held, Compressed) == compress
        return run.state()

    assert same(learned(True), learned(False))


def test_memory_is_really_lower_and_stacks_are_rebuilt() -> None:
    plain, compressed = (Ring(SPEC, 300, compress=compress) for compress in (False, True))
    assert compressed.bytes == plain.bytes
    images = 100 * 3 * 12 * 12
    column = compressed.columns["obs"]["image"]
    assert isinstance(column, Compressed)
    column[:] = torch.full((100, 3, 12, 12, 1), 7, dtype=torch.uint8)
    assert column.bytes < images / 5
    assert compressed.stored_bytes == plain.bytes - images + column.bytes
    assert plain.stored_bytes == plain.bytes
    assert replay_bytes(SPEC, 300, compress=True) == plain.bytes - images + images // 4


def test_a_resumed_run_goes_on_as_an_uncompressed_one(tmp_path: Path) -> None:
    small = {
        "total_timesteps": 120,
        "num_envs": 2,
        "num_steps": 4,
        "learning_starts": 20,
        "buffer_size": 60,
        "batch_size": 4,
        "hidden_sizes": (8,),
        "quiet": True,
        "tensorboard": False,
        "eval": False,
        "workers": 0,
    }

    def weights(compress: bool) -> list[torch.Tensor]:
        settings = {**small, "runs": str(tmp_path / str(compress)), "compress": compress}
        run = whorl.load(Slow, "dqn", settings).train().run_dir
        before = whorl.restore(run, trust=[__name__])
        whorl.resume(run, env=Slow, total_timesteps=200)
        after = list(whorl.restore(run, trust=[__name__]).agent.parameters())
        assert any(not one.equal(two) for one, two in zip(before.agent.parameters(), after))
        return after

    assert all(one.equal(two) for one, two in zip(weights(True), weights(False), strict=True))


def test_the_buffer_is_in_host_memory() -> None:
    settings = configure("dqn", "PongNoFrameskip-v4", {"compress": True})
    assert replay_device(settings, torch.device("cuda")).type == "cpu"
    settings = configure("dqn", "PongNoFrameskip-v4", {"compress": True, "replay_device": "cuda"})
    with pytest.raises(
        ConfigError, match="compress keeps the replay buffer in host memory, but replay_device"
    ):
        replay_device(settings, torch.device("cuda"))
