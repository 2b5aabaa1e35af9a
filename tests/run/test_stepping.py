"""Training step by step: the same run as `train()`, several trainers in one process, nothing process-wide changed."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import assert_same

import whorl
from whorl.core import process
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.process import configure_process
from whorl.core.registry import register
from whorl.log.writers import Logger
from whorl.run.reporting import SystemMetrics
from whorl.run.trainer import Trainer
from whorl.state import checkpoint

QUIET = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "workers": 0,
    "device": "cpu",
    "num_envs": 2,
    "log_freq": 1,
}
ROLLOUTS = {**QUIET, "num_steps": 16, "batch_size": 32, "n_epochs": 1, "max_iterations": 4}
REPLAY = {
    **QUIET,
    "num_steps": 8,
    "batch_size": 16,
    "buffer_size": 500,
    "learning_starts": 32,
    "max_iterations": 12,
    "updates_per_step": 0.25,
    "total_timesteps": 0,
}
SMALL = {"actor_hidden_sizes": [16], "critic_hidden_sizes": [16]}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", ROLLOUTS),
    "sac": ("Pendulum-v1", "sac", {**REPLAY, **SMALL, "random_steps": 16}),
    "dqn seed 1": ("CartPole-v1", "dqn", {**REPLAY, "hidden_sizes": [16], "seed": 1}),
    "dqn seed 2": ("CartPole-v1", "dqn", {**REPLAY, "hidden_sizes": [16], "seed": 2}),
}


def load(case: str, folder: Path, **changes: Any) -> Trainer:
    env, algorithm, settings = CASES[case]
    return whorl.load(env, algorithm, {**settings, **changes, "runs": str(folder)})


def rows(run: Path | None) -> list[dict[str, Any]]:
    assert run is not None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in lines]


def newest(run: Path | None) -> checkpoint.Loaded:
    assert run is not None
    return checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded)


def learned(trainer: Trainer) -> dict[str, Any]:
    """What training changed; where the rows of replay are stored depends on the folder."""
    return {name: value for name, value in newest(trainer.run_dir).state.items() if name != "experience"}


# One trainer


def test_stepping_gives_the_run_that_train_gives(tmp_path: Path) -> None:
    whole, stepped = load("ppo", tmp_path / "a"), load("ppo", tmp_path / "b")
    result = whole.train()
    seen = [dict(row) for row in stepped]
    stepped.close()
    assert [row["iteration"] for row in seen] == [1, 2, 3, 4] and "loss/actor" in seen[0]
    assert stepped.steps == result.steps and stepped.finished
    assert rows(stepped.run_dir) == rows(result.run_dir)
    assert_same(learned(whole), learned(stepped))


def test_a_step_logs_evaluates_and_saves_what_is_due(tmp_path: Path) -> None:
    seen = []

    class Seen(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            seen.append("start")

        def on_evaluation(self, trainer: Any, evaluation: Any) -> None:
            seen.append(f"evaluation {trainer.iteration}")

        def on_checkpoint(self, trainer: Any, folder: Path) -> None:
            seen.append(f"{folder.name} {trainer.iteration}")

        def on_end(self, trainer: Any, result: Any) -> None:
            seen.append(f"end {result.iterations}: {result.reason}")

    due = {"eval": True, "eval_freq": 55, "n_eval_episodes": 1, "checkpoint_freq": 80, "max_iterations": 9}
    trainer = load("ppo", tmp_path, **due)
    trainer.callbacks.append(Seen())
    assert trainer.run_dir is None and not list(tmp_path.iterdir()), "nothing happens before the first step"
    found = [trainer.step() for _ in range(4)]
    assert ["evaluation/return" in row for row in found] == [False, True, False, True]
    assert [row["iteration"] for row in rows(trainer.run_dir)] == [1, 2, 3, 4]
    trainer.close()
    assert seen == [
        *("start", "evaluation 2", "checkpoint_1 3", "evaluation 4", "checkpoint_2 4"),
        "end 4: the trainer was closed",
    ]


def test_the_first_random_steps_are_random_and_progress_is_the_share_of_the_budget_that_is_spent(
    tmp_path: Path,
) -> None:
    trainer = load("sac", tmp_path, num_steps=8, random_steps=32, max_iterations=4).build()
    asked: list[tuple[bool, float]] = []
    start = trainer.collector.start

    def noted(random: bool = False) -> None:
        asked.append((random, float(trainer.agent.progress)))
        start(random)

    trainer.collector.start = noted  # type: ignore[method-assign]
    with trainer:
        for _ in range(4):
            trainer.step()
    # 16 steps each, and a quarter of the budget
    assert asked == [(True, 0.0), (True, 0.25), (False, 0.5), (False, 0.75)]


def test_breaking_off_and_closing_leaves_a_checkpoint_from_which_the_run_continues(tmp_path: Path) -> None:
    whole = load("sac", tmp_path / "whole")
    whole.train()
    with load("sac", tmp_path / "half") as half:
        for metrics in half:
            if metrics["iteration"] == 5:
                break
    assert half.run_dir is not None and newest(half.run_dir).metadata["iterations"] == 5
    assert whorl.resume(half.run_dir).iterations == 12
    assert_same(learned(whole), learned(half))
    assert rows(whole.run_dir) == rows(half.run_dir)


def test_a_closed_trainer_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole, half = load("ppo", tmp_path / "whole"), load("ppo", tmp_path / "half")
    whole.train()
    half.step()
    half.close()
    assert [row["iteration"] for row in half] == [2, 3, 4]
    half.close()
    assert_same(learned(whole)["agent"], learned(half)["agent"])


def test_without_save_model_closing_leaves_no_checkpoint(tmp_path: Path) -> None:
    with load("ppo", tmp_path, save_model=False) as trainer:
        trainer.step()
    assert trainer.run_dir is not None and not checkpoint.checkpoints(trainer.run_dir)


def test_after_the_budget_the_iterator_is_exhausted_and_a_step_is_refused(tmp_path: Path) -> None:
    with load("ppo", tmp_path, max_iterations=1) as trainer:
        assert len(list(trainer)) == 1 and list(trainer) == []
        assert newest(trainer.run_dir).metadata["iterations"] == 1, "saved when the loop ends"
        with pytest.raises(WhorlError, match="training is over: the budget of iterations is spent"):
            trainer.step()


def test_a_step_that_fails_is_not_saved(tmp_path: Path) -> None:
    class Fails(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            if trainer.iteration == 2:
                raise RuntimeError("in the middle of a step")

    trainer = load("ppo", tmp_path, checkpoint_freq=1)
    trainer.callbacks.append(Fails())
    with pytest.raises(RuntimeError, match="in the middle"):
        list(trainer)
    with pytest.raises(WhorlError, match=r"the last step failed; call close\(\), then whorl.resume"):
        trainer.step()
    trainer.close()
    assert newest(trainer.run_dir).metadata["iterations"] == 2


def test_what_is_not_built_yet_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    trainer = load("ppo", tmp_path)
    with pytest.raises(
        WhorlError, match=r"nothing is built yet; call build\(\), step\(\) or train\(\) first"
    ):
        trainer.agent  # noqa: B018
    trainer.close()


# Several trainers


@pytest.mark.parametrize("pair", [("ppo", "sac"), ("dqn seed 1", "dqn seed 2")])
def test_trainers_that_take_turns_give_what_each_gives_alone(pair: tuple[str, str], tmp_path: Path) -> None:
    alone = [load(case, tmp_path / "alone" / case) for case in pair]
    for trainer in alone:
        trainer.train()
    together = [load(case, tmp_path / "together" / case) for case in pair]
    while not all(trainer.finished for trainer in together):
        for trainer in together:
            if not trainer.finished:
                trainer.step()
    for one, other in zip(alone, together):
        other.close()
        assert_same(learned(one), learned(other))
        assert rows(one.run_dir) == rows(other.run_dir)
    first, second = (newest(trainer.run_dir).policy["module"] for trainer in together)
    assert first.keys() != second.keys() or any(not torch.equal(first[key], second[key]) for key in first)


# The process


def process_wide() -> tuple[Any, ...]:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    return (
        *(torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, sys.getswitchinterval()),
        *(*handlers, torch.initial_seed(), torch.get_default_dtype()),
    )


class Watch(whorl.Callback):
    """Sees the process during training."""

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.seen = process_wide()


def test_building_and_stepping_change_nothing_process_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "keep_freed_memory", lambda: pytest.fail("it was set"))
    before, watch = process_wide(), Watch()
    # From 1024 rows on the optimizers of actor and critic step in threads.
    threaded = {"batch_size": 1024, "threads": 2, "learner_threads": 2, "tf32": not before[1]}
    with load("sac", tmp_path, **threaded, max_iterations=6) as trainer:
        trainer.callbacks.append(watch)
        assert process_wide() == before
        trainer.build()
        assert process_wide() == before
        for _ in trainer:
            assert process_wide() == before and watch.seen == before
    assert process_wide() == before


def test_train_configures_the_process_and_restores_it(tmp_path: Path) -> None:
    before, watch = process_wide(), Watch()
    threaded = {"batch_size": 1024, "threads": 2, "learner_threads": 2, "tf32": not before[1]}
    trainer = load("sac", tmp_path, **threaded, max_iterations=2)
    trainer.callbacks.append(watch)
    trainer.train()
    assert watch.seen[:2] == (2, not before[1])
    assert watch.seen[2] == pytest.approx(process.SWITCH_INTERVAL)
    assert watch.seen[3] != before[3] and watch.seen[4] != before[4], "Ctrl-C ends with a checkpoint"
    assert process_wide() == before


def test_configuring_the_process_lasts_unless_it_is_a_context() -> None:
    before = process_wide()
    with configure_process(threads=before[0] + 1, tf32=not before[1]):
        assert process_wide()[:3] == (before[0] + 1, not before[1], before[2])
    assert process_wide() == before
    configured = configure_process(threads=before[0] + 1, tf32=before[1])
    assert torch.get_num_threads() == before[0] + 1
    configured.__exit__()
    assert process_wide() == before


# Loggers


class Collected(Logger):
    """Keeps the rows of every run in memory."""

    opened: list["Collected"]

    def __init__(self, run_dir: Path, settings: Any) -> None:
        self.run_dir, self.algorithm, self.closed = run_dir, settings.algorithm, False
        self.rows: list[dict[str, Any]] = []
        Collected.opened.append(self)

    def write(self, row: Any) -> None:
        self.rows.append(dict(row))

    def close(self) -> None:
        self.closed = True


def test_loggers_by_name_and_by_class_get_every_row(tmp_path: Path) -> None:
    Collected.opened = []
    register("logger", "collected", Collected)
    env, algorithm, settings = CASES["ppo"]
    given = {**settings, "runs": str(tmp_path), "max_iterations": 2}
    result = whorl.load(env, algorithm, given, loggers=["collected", Collected]).train()
    assert len(Collected.opened) == 2
    for logger in Collected.opened:
        assert (logger.run_dir, logger.algorithm, logger.closed) == (result.run_dir, "ppo", True)
        assert [row["iteration"] for row in logger.rows] == [1, 2]


def test_an_unknown_logger_is_told_with_the_nearest(tmp_path: Path) -> None:
    register("logger", "collected", Collected)
    env, algorithm, settings = CASES["ppo"]
    trainer = whorl.load(env, algorithm, {**settings, "runs": str(tmp_path)}, loggers=["colected"])
    with pytest.raises(ConfigError, match="no logger is called 'colected'; did you mean 'collected'"):
        trainer.step()


def test_system_metrics_are_rates_since_the_last_call() -> None:
    system = SystemMetrics(updates=10)
    first = system.metrics(30, waited=0.0)
    assert first["learner/updates"] == 30 and first["learner/updates_per_second"] > 0
    assert first["system/learner_memory_mb"] > 10 and first["system/load"] >= 0
    assert system.metrics(30, waited=1e9)["learner/updates_per_second"] == 0
    assert system.metrics(30, waited=1e9)["learner/waiting"] == 1.0
