"""Agents with hindsight learn goals that they never meet by chance, and without it they do not."""

from pathlib import Path
from typing import Any

import pytest

import whorl

QUIET: dict[str, Any] = {
    "workers": 0,
    "tensorboard": False,
    "quiet": True,
    "save_model": False,
    "eval": False,
}
QUICK: dict[str, Any] = {
    "num_envs": 16,
    "num_steps": 8,
    "n_step": 1,
    "gamma": 0.98,
    "hidden_sizes": [64],
    "batch_size": 128,
    "updates_per_step": 0.2,
    "learning_rate": 2e-3,
    "learning_starts": 300,
    "target_update_interval": 100,
    "exploration_final_eps": 0.05,
    "exploration_fraction": 0.4,
    "log_freq": 1000,
}


def success(env: str, algorithm: str, steps: int, folder: Path, **settings: Any) -> float:
    """The share of episodes at the end of a run in which the goal was achieved."""
    given = {**QUIET, "runs": str(folder), "total_timesteps": steps, **settings}
    with whorl.load(env, algorithm, given) as trainer:
        rows = [row["episode/success_rate"] for row in trainer if "episode/success_rate" in row]
    return rows[-1]


@pytest.mark.parametrize(("her", "solved"), [("future", True), ("none", False)])
def test_eight_bits_are_flipped_with_hindsight_only(her: str, solved: bool, tmp_path: Path) -> None:
    """A random policy makes them equal in 3 % of the episodes."""
    found = success("BitFlip-v0", "dqn", 4_000, tmp_path, **QUICK, her=her, env_options={"bits": 8}, seed=1)
    assert found > 0.9 if solved else found < 0.2


@pytest.mark.full
@pytest.mark.parametrize(
    ("her", "solved"), [("future", True), ("final", True), ("episode", True), ("none", False)]
)
def test_fifteen_bits_are_flipped_with_hindsight_only(her: str, solved: bool, tmp_path: Path) -> None:
    """A random policy makes them equal once in 2,000 episodes."""
    found = success("BitFlip-v0", "dqn", 40_000, tmp_path, her=her)
    assert found > 0.8 if solved else found < 0.1


@pytest.mark.full
@pytest.mark.parametrize(("her", "solved"), [("future", True), ("none", False)])
def test_a_puck_is_pushed_to_its_goal_with_hindsight_only(her: str, solved: bool, tmp_path: Path) -> None:
    found = success("PointPush-v0", "sac", 200_000, tmp_path, her=her)
    assert found > 0.7 if solved else found < 0.4
