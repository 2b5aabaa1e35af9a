"""Schedules follow the budget of the run: exploration and the exponent of importance weights."""

from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.run.resume import load_run
from whorl.settings.merge import configure

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "batch_size": 8, "hidden_sizes": [8], "workers": 0}
SMALL |= {"learning_starts": 16, "log_freq": 16, "quiet": True, "tensorboard": False, "eval": False}


class Watch(whorl.Callback):
    """Epsilon and beta of every iteration, with the steps before it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, float]] = []

    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        agent = trainer.agent
        epsilon = agent.explore.epsilon(None, agent.progress).item()
        before = trainer.counters.steps_before
        self.seen.append((before, epsilon, trainer.experience.sampler.beta.item()))


def watched(folder: Path, **given: Any) -> Watch:
    watch = Watch()
    settings = {**SMALL, "runs": str(folder), "prioritized": True, "exploration_fraction": 0.5, **given}
    whorl.load("CartPole-v1", "dqn", settings, callbacks=[watch]).train()
    return watch


BUDGETS: dict[str, dict[str, int]] = {
    "steps": {"total_timesteps": 400},
    "iterations": {"max_iterations": 25},
    "both": {"total_timesteps": 10**6, "max_iterations": 25},
}


@pytest.mark.parametrize("budget", BUDGETS)
def test_epsilon_and_beta_follow_the_budget_that_ends_the_run(tmp_path: Path, budget: str) -> None:
    watch = watched(tmp_path, **BUDGETS[budget])
    for number, (steps, epsilon, beta) in enumerate(watch.seen):
        progress = steps / 400 if budget == "steps" else number / 25
        assert epsilon == pytest.approx(1 - 0.96 * min(progress / 0.5, 1), abs=1e-5)
        assert beta == pytest.approx(0.4 + 0.6 * progress, abs=1e-5)
    assert len(watch.seen) >= 25


def test_a_horizon_of_the_users_own_stays(tmp_path: Path) -> None:
    watch = watched(tmp_path, total_timesteps=400, priority_beta_steps=100)
    assert all(beta == 1 for steps, _, beta in watch.seen if steps >= 100) and watch.seen[1][2] < 1
    constant = watched(tmp_path, total_timesteps=100, priority_beta_steps=0)
    assert {round(beta, 5) for _, _, beta in constant.seen} == {0.4}


def test_a_resumed_run_with_a_larger_budget_follows_that_one(tmp_path: Path) -> None:
    watched(tmp_path, total_timesteps=160)
    run = next(tmp_path.iterdir())
    trainer = load_run(run, {"total_timesteps": 320})
    trainer.step()
    assert trainer.experience.sampler.beta.item() == pytest.approx(0.7, abs=0.02)
    trainer.close()


@pytest.mark.parametrize("algorithm", ["rainbow", "prioritized_dqn", "sac"])
def test_beta_has_no_horizon_of_its_own_unless_somebody_set_it(algorithm: str) -> None:
    assert configure(algorithm, "none", {"total_timesteps": 7}).priority_beta_steps == -1
    assert configure(algorithm, "none", {"priority_beta_steps": 7}).priority_beta_steps == 7
    assert configure(algorithm, "none", {"per_beta_total_steps": 7}).priority_beta_steps == 7


def test_papers_that_keep_beta_constant_still_do() -> None:
    assert {configure(name, "none", {}).priority_beta_steps for name in ("apex_dqn", "r2d2")} == {0}
