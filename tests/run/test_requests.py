"""What a user asks of a run: a checkpoint by a file in its folder, greedy actions while it collects."""

from pathlib import Path
from typing import Any

import pytest
import torch

import whorl
from whorl.data.batch import Batch
from whorl.run.trainer import Trainer
from whorl.state import checkpoint

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "quiet": True,
    "eval": False,
    "tensorboard": False,
    "hidden_sizes": [8],
}


@pytest.mark.parametrize("name", ["save_model", "save_replay_buffer"])
def test_a_file_in_the_run_folder_asks_for_a_checkpoint(name: str, tmp_path: Path) -> None:
    settings = {**SMALL, "batch_size": 16, "total_timesteps": 10_000, "runs": str(tmp_path)}
    with whorl.load("CartPole-v1", "ppo", settings) as trainer:
        trainer.step()
        assert trainer.run_dir is not None
        assert checkpoint.checkpoints(trainer.run_dir) == []
        request = trainer.run_dir / name
        request.touch()
        trainer.step()
        assert [found.name for found in checkpoint.checkpoints(trainer.run_dir)] == ["checkpoint_1"]
        assert not request.exists()
        trainer.step()
        assert len(checkpoint.checkpoints(trainer.run_dir)) == 1


def test_where_nothing_is_saved_a_file_asks_in_vain(tmp_path: Path) -> None:
    settings = {**SMALL, "batch_size": 16, "max_iterations": 3, "save_model": False, "runs": str(tmp_path)}
    with whorl.load("CartPole-v1", "ppo", settings) as trainer:
        trainer.step()
        assert trainer.run_dir is not None
        (trainer.run_dir / "save_model").touch()
        trainer.step()
        assert checkpoint.checkpoints(trainer.run_dir) == []


class Rollouts(whorl.Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def on_rollout(self, trainer: Trainer, rollout: Batch) -> None:
        self.seen.append((rollout.obs[0].clone(), rollout.action[0].clone()))


@pytest.mark.parametrize(
    ("algorithm", "env", "other"),
    [
        ("ppo", "Pendulum-v1", {"batch_size": 16}),
        ("sac", "Pendulum-v1", {"random_steps": 0, "learning_starts": 10**6}),
        ("td3", "Pendulum-v1", {"random_steps": 0, "learning_starts": 10**6}),
        ("dqn", "CartPole-v1", {"learning_starts": 10**6}),
    ],
)
@pytest.mark.parametrize("greedy", [True, False])
def test_without_sampling_rollouts_have_greedy_actions(
    algorithm: str, env: str, other: dict[str, Any], greedy: bool, tmp_path: Path
) -> None:
    settings = {**SMALL, **other, "num_envs": 16, "max_iterations": 1, "disable_sample": greedy}
    settings |= {"workers": 0, "runs": str(tmp_path), "normalize_obs": False, "save_model": False}
    settings |= {"batch_size": 128} if algorithm == "ppo" else {}
    rollouts = Rollouts()
    with whorl.load(env, algorithm, settings, callbacks=[rollouts]) as trainer:
        trainer.build()
        weights = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
        trainer.step()
        trainer.agent.load_state_dict(weights)
        obs, action = rollouts.seen[0]
        context = whorl.agents.agent.Context(
            torch.ones(16, dtype=torch.bool), torch.Generator().manual_seed(0), greedy=True
        )
        with torch.no_grad():
            expected = trainer.agent.act(obs, trainer.agent.initial_memory(16), context).action
        assert torch.equal(action, expected) == greedy
