"""A run killed at any moment and resumed equals the uninterrupted run, bit for bit."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from comparing import assert_same
from gymnasium.envs.classic_control import CartPoleEnv

import whorl
from whorl.core import tree
from whorl.run.resume import load_run
from whorl.run.trainer import Result
from whorl.state import checkpoint

QUIET = {"quiet": True, "tensorboard": False, "n_eval_episodes": 2, "keep_checkpoints": 2}
SMALL = {
    **QUIET,
    "num_envs": 4,
    "num_steps": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "eval_freq": 480,
    "checkpoint_freq": 120,
    "log_freq": 1,
    "max_iterations": 16,
}


class Forgetful(CartPoleEnv):
    """A cart-pole of somebody else: nobody knows what its state is, so there is no snapshot of it."""


def forgetful() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Forgetful(), 60)


EPISODIC = {
    "components": ["episodic", "rnd"],
    "episodic": {"capacity": 12, "hidden_sizes": [8], "features": 4},
    "rnd": {"hidden_sizes": [8], "features": 4},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "in process": ("CartPole-v1", SMALL),
    "recurrent": ("CartPole-v1", {**SMALL, "memory": "gru", "memory_size": 8, "chunk": 8}),
    "episodic memories": ("CartPole-v1", {**SMALL, **EPISODIC}),
    "episodic memories, workers, no snapshots": (
        "Forgetful-v0",
        {**SMALL, **EPISODIC, "reset_every": 200, "workers": 2},
    ),
    "native": ("Quadrotor-v0", {**SMALL, "total_timesteps": 1000, "eval": False}),
    "workers": ("Pendulum-v1", {**SMALL, "workers": 2, "overlap_rollouts": True}),
    "central pool": ("Pendulum-v1", {**SMALL, "workers": 2, "acting": "central"}),
    "no snapshots": ("Forgetful-v0", {**SMALL, "reset_every": 200}),
    "sparse log": ("CartPole-v1", {**SMALL, "log_freq": 190, "eval": False}),
}


@pytest.fixture(autouse=True)
def registered() -> None:
    whorl.register("environment", "Forgetful-v0", forgetful)


def in_child(work: Callable[[], object], seconds: float | None) -> bool:
    """Run `work` in a forked process, killed after `seconds`; whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + (seconds if seconds is not None else 1200)
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0, "the run failed"
            return True
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert seconds is not None, "the run hung"
    return False


def the_run(folder: Path) -> Path | None:
    found = [run for run in folder.iterdir() if (run / "config.yaml").exists()] if folder.exists() else []
    return found[0] if found else None


def rows(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in lines]


def state(run: Path) -> dict[str, Any]:
    return checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded).state


def start(env: str, settings: dict[str, Any], folder: Path) -> Result:
    return whorl.load(env, "ppo", {**settings, "runs": str(folder)}).train()


@pytest.mark.parametrize("case", CASES)
def test_killed_at_random_moments_and_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    compare(case, tmp_path, most_kills=3)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_killed_many_times_and_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    compare(case, tmp_path, most_kills=25)


def compare(case: str, tmp_path: Path, most_kills: int) -> None:
    env, settings = CASES[case]
    began = time.monotonic()
    assert in_child(lambda: start(env, settings, tmp_path / "whole"), None)
    whole_time = time.monotonic() - began
    chance = random.Random(case)
    finished, kills, attempt = False, 0, 0
    while not finished:
        pieces = tmp_path / f"pieces{attempt}"
        run = the_run(pieces)
        patience = chance.uniform(0.2, 0.9) * whole_time if kills < most_kills else None
        if run is None:
            finished = in_child(lambda pieces=pieces: start(env, settings, pieces), patience)
        else:
            finished = in_child(lambda run=run: whorl.resume(run), patience)
        kills += not finished
        if finished and not kills:
            # The machine was busier before than it is now: begin again, and be quicker with the knife.
            finished, attempt, whole_time = False, attempt + 1, whole_time / 2
    one, other = the_run(tmp_path / "whole"), the_run(pieces)
    assert one and other
    assert_same(state(one), state(other))
    assert rows(one) == rows(other)


def test_looking_more_often_changes_nothing(tmp_path: Path) -> None:
    plain = start("CartPole-v1", {**SMALL, "eval": False, "checkpoint_freq": 10_000}, tmp_path / "a")
    watched = start("CartPole-v1", {**SMALL, "eval_freq": 1, "checkpoint_freq": 1}, tmp_path / "b")
    assert_same(state(plain.run_dir)["agent"], state(watched.run_dir)["agent"])
    assert_same(state(plain.run_dir)["streams"], state(watched.run_dir)["streams"])


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        state(start("CartPole-v1", {**SMALL, "seed": seed}, tmp_path / str(number)).run_dir)["agent"][
            "module"
        ]
        for number, seed in enumerate((1, 1, 2))
    )
    assert_same(first, again)
    assert not torch.equal(tree.first(first), tree.first(other)) or any(
        not torch.equal(first[key], other[key]) for key in first
    )


@pytest.mark.parametrize("case", ["in process", "workers"])
def test_a_run_can_be_asked_for_more(case: str, tmp_path: Path) -> None:
    env, settings = CASES[case]
    # A rate that falls over the budget would know the budget.
    steady = {**settings, "lr_schedule": "constant"}
    once = start(env, {**steady, "max_iterations": 12}, tmp_path / "once")
    part = start(env, {**steady, "max_iterations": 6}, tmp_path / "part")
    more = whorl.resume(part.run_dir, max_iterations=12)
    assert more.steps == once.steps and more.run_dir == part.run_dir
    assert_same(state(once.run_dir)["agent"], state(more.run_dir)["agent"])


@pytest.mark.parametrize("overlap", [False, True])
def test_returns_do_not_go_on_where_environments_without_snapshots_begin_new_episodes(
    overlap: bool, tmp_path: Path
) -> None:
    settings = {**SMALL, "reset_every": 10**6, "workers": 2, "overlap_rollouts": overlap}
    trainer = load_run(start("Forgetful-v0", settings, tmp_path).run_dir, {"max_iterations": 17})
    try:
        running = trainer.agent.state_dict()["rewards.running"]
        waiting = trainer.experience.state_dict()["pending"]
    finally:
        trainer._release()
    if overlap:  # the last rollout is merged with the next one: from the returns before it, and up to its end
        assert running.any() and not waiting["keep"][-1].any() and waiting["keep"].any()
    else:
        assert not running.any() and not waiting


class Saves(whorl.Callback):
    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.iteration == 3:
            trainer.save()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_checkpoint_of_a_callback_begins_new_episodes_and_the_run_goes_on_with_its_own(
    overlap: bool, tmp_path: Path
) -> None:
    more = {"workers": 2, "overlap_rollouts": True} if overlap else {"workers": 0}
    settings = {**SMALL, **more, "reset_every": 10**6, "eval": False, "max_iterations": 4}
    run = whorl.load(
        "Forgetful-v0", "ppo", {**settings, "runs": str(tmp_path / "a")}, callbacks=[Saves()]
    ).train()
    plain = start("Forgetful-v0", settings, tmp_path / "b")
    assert_same(state(run.run_dir)["agent"], state(plain.run_dir)["agent"])
    trainer = load_run(run.run_dir / "checkpoint_1", {})
    try:
        assert (
            trainer.iteration == 3 and trainer.counters.resets == 1
        )  # other seeds than those of the first reset
        assert not trainer.collector.episode_statistics.open.any()  # type: ignore[attr-defined]
        waiting = trainer.experience.state_dict()["pending"]
        if overlap:
            assert not waiting["keep"][-1].any() and waiting["keep"].any()
        else:
            assert not trainer.agent.state_dict()["rewards.running"].any()
    finally:
        trainer._release()


def test_a_run_that_goes_on_from_an_older_checkpoint_without_snapshots_can_be_killed_at_once(
    tmp_path: Path,
) -> None:
    """Environments that were reset on loading, and not stepped since, are reset with the same seeds again."""
    settings = {**SMALL, "reset_every": 10**6, "eval": False, "max_iterations": 4, "workers": 0}
    run = whorl.load("Forgetful-v0", "ppo", {**settings, "runs": str(tmp_path)}, callbacks=[Saves()]).train()
    found = []
    for name in ("checkpoint_1", ""):  # the second time from the checkpoint that the first one began with
        trainer = load_run(run.run_dir / name, {})
        try:
            trainer._open()
            found.append(tree.clone(trainer.collector.state_dict()))
        finally:
            trainer._release()
    assert_same(*found)


def test_a_budget_that_is_spent_already_is_said(tmp_path: Path) -> None:
    run = start("CartPole-v1", {**SMALL, "max_iterations": 2}, tmp_path)
    with pytest.warns(UserWarning, match=r"total_timesteps counts from its start, so 10 adds none"):
        assert whorl.resume(run.run_dir, total_timesteps=10).steps == run.steps


def test_a_damaged_newest_checkpoint_is_skipped_and_left_alone(tmp_path: Path) -> None:
    run = start(
        "CartPole-v1", {**SMALL, "max_iterations": 6, "keep_checkpoints": 0}, tmp_path / "runs"
    ).run_dir
    newest = checkpoint.checkpoints(run)[0]
    content = (newest / "checkpoint.pt").read_bytes()[:-100]
    (newest / "checkpoint.pt").write_bytes(content)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
        result = whorl.resume(run, max_iterations=8)
    assert result.iterations == 8
    assert (newest / "checkpoint.pt").read_bytes() == content


def test_going_on_from_an_older_checkpoint_makes_that_line_the_newest(tmp_path: Path) -> None:
    run = start(
        "CartPole-v1", {**SMALL, "max_iterations": 6, "keep_checkpoints": 0}, tmp_path / "runs"
    ).run_dir
    whorl.resume(run / "checkpoint_1", max_iterations=3)
    assert checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded).metadata["iterations"] == 3
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3]
