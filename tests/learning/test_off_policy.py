"""Short seeded runs of the algorithms with replay: does it learn at all, through the loop that users run?"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl

SMALL = {
    "workers": 0,
    "num_envs": 2,
    "num_steps": 8,
    "learning_starts": 64,
    "random_steps": 256,
    "actor_hidden_sizes": [64, 64],
    "critic_hidden_sizes": [64, 64],
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "batch_size": 64,
    "buffer_size": 20_000,
    "gamma": 0.5,
    "n_eval_episodes": 20,
    "eval_freq": 10_000,
    "tensorboard": False,
    "quiet": True,
    "save_model": False,
}


class Match(gymnasium.Env):
    """Answer each observation with half of it: reward -|a - s / 2|, ten steps, never terminated."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, choices: bool = False) -> None:
        # Bounds of its own in each dimension: answers must be rescaled.
        self.action_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Discrete(2)
            if choices
            else gymnasium.spaces.Box(np.float32([-1, -0.5]), np.float32([1, 2]))
        )
        self.choices = choices

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        if self.choices:
            reward = -abs(float(action) - float(self.seen[0] > 0))
        else:
            reward = -float(np.abs(action - self.seen / 2).sum())
        self.steps += 1
        return self._look(), reward, False, self.steps == 10, {}

    def _look(self) -> np.ndarray:
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen


def learned(algorithm: str, folder: Path, choices: bool = False, **changes: Any) -> float:
    settings = {**SMALL, "runs": str(folder), "total_timesteps": 1_200, **changes}
    return whorl.load(lambda: Match(choices), algorithm, settings).train().mean_return


# A random policy gets -13, always zero -5, a right one 0.


SOFT = {"alpha": 0.1, "alpha_lr": 3e-3}
OWN: dict[str, dict[str, Any]] = {
    "ddpg": {},
    "ddpg_lillicrap": {},
    "td3": {},
    "sac": SOFT,
    "tqc": {**SOFT, "n_critics": 2, "n_quantiles": 8, "top_quantiles_to_drop": 1},
}


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=pytest.mark.full) if name == "ddpg_lillicrap" else name for name in OWN],
)
def test_it_learns_to_answer(algorithm: str, tmp_path: Path) -> None:
    assert learned(algorithm, tmp_path, **OWN[algorithm]) > -2.5


LARGE = {
    "num_envs": 32,
    "num_steps": 1,
    "updates_per_iteration": 4,
    "total_timesteps": 4_000,
    "batch_size": 128,
    "v_min": -8.0,
    "v_max": 0.0,
    "n_atoms": 41,
    "random_steps": 0,
}


@pytest.mark.full
def test_fast_td3_learns_to_answer_in_many_environments(tmp_path: Path) -> None:
    assert learned("fast_td3", tmp_path, **LARGE, buffer_size_per_env=200) > -2.5


@pytest.mark.full
def test_flash_sac_learns_to_answer_in_many_environments(tmp_path: Path) -> None:
    small = {key: value for key, value in SMALL.items() if not key.endswith("hidden_sizes")}
    own = {"actor_width": 32, "critic_width": 32, "blocks": 1, "v_min": -5.0, "v_max": 5.0}
    settings = {**small, "runs": str(tmp_path), **LARGE, **own, "alpha_lr": 3e-3}
    assert whorl.load(Match, "flash_sac", settings).train().mean_return > -2.5


def test_soft_actor_critic_learns_to_choose(tmp_path: Path) -> None:
    """A random policy gets -5."""
    assert learned("sac", tmp_path, choices=True, entropy_ratio=0.3, alpha=0.1) > -0.7


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_it_learns_by_priorities_and_several_steps(algorithm: str, tmp_path: Path) -> None:
    changes = {**OWN[algorithm], "prioritized": True, "n_step": 3, "priority_beta_steps": 1_000}
    assert learned(algorithm, tmp_path, **changes) > -2.5


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac", "tqc"])
def test_pendulum_is_swung_up_within_ten_thousand_steps(algorithm: str, seed: int, tmp_path: Path) -> None:
    """-287 and -292 were seen where truncation counted as the end."""
    changes = {"runs": str(tmp_path), "seed": seed, "quiet": True, "tensorboard": False}
    assert whorl.load("Pendulum-v1", algorithm, changes).train().mean_return >= -200
