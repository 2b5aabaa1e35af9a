"""From a dataset of a scripted policy: cloning repeats it, and offline algorithms do better than it did."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whorl
from whorl.datasets.rows import read

sys.path.append(str(Path(__file__).parents[1] / "datasets"))
from scripted import Match, scripted

SMALL: dict[str, Any] = {
    "device": "cpu",
    "workers": 0,
    "num_envs": 1,
    "num_steps": 50,
    "batch_size": 32,
    "buffer_size": 3_000,
    "actor_hidden_sizes": [32],
    "actor_lr": 1e-2,
    "n_eval_episodes": 10,
    "eval_freq": 10_000,
    "tensorboard": False,
    "quiet": True,
    "save_model": False,
}
CRITICS = {"critic_hidden_sizes": [32], "critic_lr": 1e-2, "gamma": 0.5, "tau": 0.05}


@pytest.fixture(scope="module")
def random_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted(tmp_path_factory.mktemp("random") / "data", 200)


def test_cloning_repeats_a_scripted_policy(tmp_path: Path) -> None:
    def script(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return (obs[::-1] * np.float32([0.8, 0.4])).copy()

    folder = scripted(tmp_path / "data", 60, script)
    trainer = whorl.load(Match, "bc", {**SMALL, "runs": str(tmp_path), "eval": False}, dataset=str(folder))
    with trainer:
        while trainer.steps < 100:
            trainer.step()
        obs = np.random.default_rng(1).uniform(-1, 1, (200, 2)).astype(np.float32)
        policy = whorl.state.policy.SavedPolicy(trainer.agent, trainer.settings)  # type: ignore[attr-defined]
        error = np.abs(policy.act(obs) - obs[:, ::-1] * np.float32([0.8, 0.4]))
    assert error.mean() < 0.1, error.mean()


@pytest.mark.parametrize(
    ("algorithm", "updates"),
    [
        ("td3_bc", 150),
        pytest.param("iql", 300, marks=pytest.mark.full),
        pytest.param("cql", 300, marks=pytest.mark.full),
    ],
)
def test_offline_algorithms_do_better_than_the_policy_of_their_data(
    algorithm: str, updates: int, random_data: Path, tmp_path: Path
) -> None:
    behavior = np.mean(read(str(random_data), whorl.make(Match).source.spec(1)).returns)
    asked = {
        **SMALL,
        **CRITICS,
        "runs": str(tmp_path),
        "dataset": str(random_data),
        "total_timesteps": updates,
    }
    more = {"cql_weight": 0.5, "alpha_lr": 3e-3} if algorithm == "cql" else {}
    result = whorl.train(Match, algorithm, asked, **more)
    # Random actions earn about -6.6 in five steps, the best ones 0.
    assert result.mean_return > 0.55 * behavior, (result.mean_return, behavior)
