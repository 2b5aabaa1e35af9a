"""Agents that explore, with their presets, through the loop that users run; what takes minutes is in the full suite."""

from math import inf
from pathlib import Path
from typing import Any

import pytest

import whorl

FAMILIES = ["ngu", "agent57"]
QUIET: dict[str, Any] = {"workers": 0, "tensorboard": False, "quiet": True, "save_model": False}


def best_evaluation(
    env: str,
    algorithm: str,
    steps: int,
    folder: Path,
    metric: str = "return",
    enough: float = inf,
    **settings: Any,
) -> float:
    """The best mean return, or another metric, of the evaluations of a run, which ends when it is `enough`."""
    best = -inf
    with whorl.load(env, algorithm, total_timesteps=steps, runs=str(folder), **QUIET, **settings) as trainer:
        for row in trainer:
            best = max(best, row.get(f"evaluation/{metric}", -inf))
            if best >= enough:
                break
    return best


@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_family_of_policies_learns_to_balance_a_pole(algorithm: str, tmp_path: Path) -> None:
    """A random policy falls after 22 steps."""
    settings = {"eval_freq": 2_000, "n_eval_episodes": 10, "enough": 100}
    assert best_evaluation("CartPole-v1", algorithm, 12_000, tmp_path, **settings) >= 100


@pytest.mark.full
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_family_of_policies_balances_a_pole(algorithm: str, tmp_path: Path) -> None:
    settings = {"n_eval_episodes": 20, "enough": 475}
    assert best_evaluation("CartPole-v1", algorithm, 60_000, tmp_path, **settings) >= 475


@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_family_of_policies_remembers_the_way_in_a_maze(algorithm: str, tmp_path: Path) -> None:
    """Whoever does not remember guesses."""
    settings = {"eval_freq": 2_500, "n_eval_episodes": 50, "enough": 0.9}
    assert best_evaluation("TMaze-v0", algorithm, 20_000, tmp_path, **settings) >= 0.9


@pytest.mark.full
@pytest.mark.parametrize(("components", "solved"), [(["rnd"], True), ([], False)])
def test_a_treasure_that_random_actions_never_find_is_found_by_a_bonus(
    components: list[str], solved: bool, tmp_path: Path
) -> None:
    """Random actions find it once in a million episodes."""
    sea = {"env_options": {"size": 20}, "components": components, "eval_freq": 20_000}
    assert (best_evaluation("DeepSea-v0", "ppo", 80_000, tmp_path, **sea) > 0.9) == solved


@pytest.mark.full
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_hill_is_climbed_without_a_reward_on_the_way(algorithm: str, tmp_path: Path) -> None:
    """Random actions never reach the top."""
    hill = {"eval_freq": 20_000, "n_eval_episodes": 20, "enough": 0.95}
    assert best_evaluation("SparseMountainCar-v0", algorithm, 120_000, tmp_path, **hill) >= 0.95


@pytest.mark.full
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_pole_is_swung_up_by_a_policy_that_learns_from_those_that_explore(
    algorithm: str, tmp_path: Path
) -> None:
    """Every push costs; who stands still returns 0."""
    pole = {"enough": 500, "seed": 1}
    assert best_evaluation("SparseCartPoleSwingUp-v0", algorithm, 200_000, tmp_path, **pole) >= 500


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sac_that_takes_the_most_novel_of_its_actions_leaves_the_valley(seed: int, tmp_path: Path) -> None:
    """Samples of an untrained policy alone never do."""
    car: dict[str, Any] = {
        "components": ["rnd_actions"],
        "rnd_actions": {"candidates": 50, "lr": 1e-3},
        **dict.fromkeys(("num_envs", "num_steps", "n_step"), 10),
        "actor_hidden_sizes": [64, 64],
        "critic_hidden_sizes": [64, 64],
        **dict.fromkeys(("learning_starts", "random_steps"), 100),
        "normalize_obs": True,
        "reward_scale": 100,
        "alpha": 0.1,
        "updates_per_step": 0.1,
        "batch_size": 128,
        "eval_freq": 2_000,
        "enough": 0.95,
        "seed": seed,
    }
    assert best_evaluation("SparseMountainCarContinuous-v0", "sac", 20_000, tmp_path, **car) >= 0.95


@pytest.mark.full
@pytest.mark.parametrize(
    ("components", "crossed"), [(["episodic"], True), (["rnd"], False), ([], False)], ids=str
)
def test_a_maze_of_changing_colours_is_walked_through_by_episodic_novelty_alone(
    components: list[str], crossed: bool, tmp_path: Path
) -> None:
    """There is no reward. To visit all 17 cells takes up to 32 steps, of which many lead back."""
    maze = {"env_options": {"size": 7, "max_steps": 60}, "components": components, "eval_freq": 50_000}
    found = best_evaluation("DiscoMaze-v0", "ppo", 400_000, tmp_path, "coverage", **maze)
    assert found > 0.8 if crossed else found < 0.5
