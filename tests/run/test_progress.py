"""Progress within an iteration: rollouts, updates and evaluations report it, wherever environments are stepped."""

from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.log.console import Console
from whorl.run.progress import EVERY_SECONDS, Progress
from whorl.run.trainer import Trainer

SMALL = {
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 4,
    "n_epochs": 2,
    "max_iterations": 2,
    "workers": 0,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "save_model": False,
    "eval_freq": 2,
    "n_eval_episodes": 1,
}


def test_a_rollout_and_its_updates_count_by_the_time_they_took_before() -> None:
    drawn: list[tuple[float, float, str]] = []
    now = [0.0]

    def later() -> float:
        now[0] += EVERY_SECONDS
        return now[0]

    progress = Progress(lambda *given: drawn.append(given), later)
    progress.collected(0.5)
    progress.collected(1.0)
    for _ in range(4):
        progress.updated()
    assert [share for share, *_ in drawn] == [0.25, 0.5, 0.5, 0.5, 0.5, 0.5], (
        "the number of updates is not known yet"
    )
    progress.next(collecting=3.0, updating=1.0)
    drawn.clear()
    progress.collected(1.0)
    progress.updated()
    progress.updated()
    progress.evaluated()
    assert drawn == [
        (0.75, 1.0, "collecting"),
        (0.8125, 1.0, "updating"),
        (0.875, 1.0, "updating"),
        (0.875, 1.0, "evaluating"),
    ]


def test_it_draws_a_few_times_a_second_however_often_it_is_called() -> None:
    drawn: list[Any] = []
    progress = Progress(lambda *given: drawn.append(given), lambda: 0.0)
    for _ in range(1000):
        progress.updated()
    assert len(drawn) == 1


@pytest.mark.parametrize("how", [{}, {"workers": 1}, {"actors": 1}])
def test_the_console_hears_of_every_phase(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, float, str]] = []
    monkeypatch.setattr("whorl.run.progress.EVERY_SECONDS", -1.0)
    monkeypatch.setattr(Console, "tick", lambda self, *given: seen.append(given))
    budget = {"total_timesteps": 32, "max_iterations": 50}
    whorl.load("Pendulum-v1", "ppo", {**SMALL, **how, **budget, "runs": str(tmp_path)}).train()
    assert {doing for *_, doing in seen} == {"collecting", "updating", "evaluating"}
    shares = [done for done, _, doing in seen if doing == "updating"]
    assert 16 < shares[-1] < 40 and len(set(shares)) > 2, "the bar advances during updates"
    if not how:
        assert [count for _, count, doing in seen if doing == "collecting"] == list(range(2, 33, 2))


def test_stepping_by_hand_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_tick", lambda *given: pytest.fail("nobody asked for a display"))
    with whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path)}) as trainer:
        trainer.step()
