"""Environments that raise, hang or give NaN, and callbacks that raise: what was learned is saved, and one hears how to
go on."""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.bench import cell
from whorl.core import registry
from whorl.core.errors import CheckpointError, ConfigError, DivergedError, EnvError, WhorlError
from whorl.envs.make import find
from whorl.envs.stepping import env_seed
from whorl.population import member
from whorl.population.config import EvolveConfig
from whorl.run.checkpointing import RESTARTS
from whorl.run.hang_watch import HangWatch
from whorl.run.reporting import Terminated
from whorl.run.resume import load_run
from whorl.settings.merge import configure
from whorl.state import checkpoint
from whorl.sweep import worker as sweep

ROLLOUTS = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "n_epochs": 1,
    "log_freq": 1,
    "checkpoint_freq": 1000,
    "max_iterations": 6,
    "workers": 0,
    "lr_schedule": "constant",
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
}
REPLAY = {
    **{name: ROLLOUTS[name] for name in ("quiet", "tensorboard", "eval", "num_envs", "num_steps")},
    "batch_size": 8,
    "buffer_size": 200,
    "learning_starts": 16,
    "hidden_sizes": [8],
    "max_iterations": 6,
    "workers": 0,
    "checkpoint_freq": 1000,
    "total_timesteps": 0,
}


class Faulty(gymnasium.Env):
    """Does `what` at its `at`-th step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what: str = "", at: int = 24) -> None:
        self.what, self.at, self.steps = what, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = 1.0
        if self.steps == self.at:
            if self.what == "raise":
                raise OSError("the simulator is gone")
            if self.what in ("hang", "nap"):
                time.sleep(1000 if self.what == "hang" else 20)
            while self.what == "spin":
                pass
            if self.what == "nan":
                reward = float("nan")
        return np.full(3, 0.1, np.float32), reward, self.steps % 5 == 0, False, {}


def run_of(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def newest(run: Path) -> checkpoint.Loaded:
    return checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded)


def text_of(error: BaseException) -> str:
    """The message and what was added to it."""
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def fail(what: str, folder: Path, algorithm: str = "ppo", **settings: Any) -> str:
    """Train until the environment fails; what one hears then."""
    given = {**(ROLLOUTS if algorithm == "ppo" else REPLAY), **settings, "runs": str(folder)}
    with pytest.raises((OSError, WhorlError)) as error:
        whorl.load(lambda: Faulty(what), algorithm, given).train()
    return text_of(error.value)


def test_environments_without_snapshots_are_reset_with_new_seeds(tmp_path: Path) -> None:
    """Every 32 steps: after iterations 2, 4 and 6."""
    given = {**ROLLOUTS, "num_envs": 1, "num_steps": 16, "reset_every": 32, "runs": str(tmp_path)}
    seeds: list[int] = []

    class Seeded(Faulty):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            if seed is not None:
                seeds.append(seed)
            return super().reset(seed=seed, options=options)

    trainer = whorl.load(Seeded, "ppo", given)
    trainer.train()
    wanted = [env_seed(trainer.streams.seed("env", str(number)), 0) for number in (1, 2, 3)]
    assert seeds[-3:] == wanted

    class Raises(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, Any]) -> None:
            if trainer.iteration == 4:
                raise OSError("the disk is gone")

    given["runs"] = str(tmp_path / "other")
    with pytest.raises(OSError):
        whorl.load(Seeded, "ppo", given, callbacks=[Raises()]).train()
    seeds.clear()
    whorl.resume(run_of(tmp_path / "other"), env=Seeded)
    assert seeds[-2:] == wanted[1:]


class LostAtReset(Faulty):
    """Its connection is lost when it is reset with a seed for the second time, as `reset_every` does."""

    made: ClassVar[list["LostAtReset"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.seeded = 0
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.seeded += seed is not None
        if self.seeded == 2 and self is self.made[-1]:
            raise OSError("the simulator is gone")
        return super().reset(seed=seed, options=options)


def test_an_iteration_after_which_the_reset_of_all_environments_fails_has_its_row(tmp_path: Path) -> None:
    given = {**ROLLOUTS, "reset_every": 32, "runs": str(tmp_path)}
    with pytest.raises((OSError, WhorlError), match="simulator") as error:
        whorl.load(LostAtReset, "ppo", given).train()
    run = run_of(tmp_path)
    assert "is saved in checkpoint_1, without the episodes under way" in text_of(error.value)
    whorl.resume(run, env=Faulty)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("what", "workers"), [("raise", 0), ("nan", 0), ("raise", 2)])
def test_the_last_complete_iteration_is_saved_when_an_environment_fails(
    what: str, workers: int, tmp_path: Path
) -> None:
    """Rows of a reset are no steps: three iterations of eight rows are four episodes of five steps in each."""
    text = fail(what, tmp_path / "a", workers=workers)
    run = run_of(tmp_path / "a")
    assert (
        "iteration 3 (step 40) is saved in checkpoint_1, without the episodes under way; continue with"
        in text
    )
    assert f"whorl.resume('{run}', env=...)" in text
    saved = newest(run)
    assert saved.metadata["iterations"] == 3 and saved.metadata[RESTARTS]
    whole = {**ROLLOUTS, "max_iterations": 3, "workers": workers, "runs": str(tmp_path / "b")}
    other = newest(whorl.load(Faulty, "ppo", whole).train().run_dir)
    for key, value in other.state["agent"]["module"].items():
        assert key == "progress" or torch.equal(saved.state["agent"]["module"][key], value), key
    with pytest.warns(UserWarning, match="an environment had failed; all of them start new episodes"):
        result = whorl.resume(run, env=Faulty)
    assert result.iterations == 6
    rows = [json.loads(line)["iteration"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4, 5, 6]


def test_steps_of_a_rollout_that_was_lost_are_not_counted_on_resume(tmp_path: Path) -> None:
    with whorl.load("CartPole-v1", "ppo", {**ROLLOUTS, "runs": str(tmp_path)}) as trainer:
        trainer.step()
        statistics = trainer.collector.episode_statistics
        for name in statistics.fields:
            statistics.sums[statistics.fields.index(name)] = (
                42.0  # what had arrived when the next part failed
            )
        trainer.checkpointing.save({}, failed=True)
        assert not statistics.sums.any()


class Later(gymnasium.Wrapper):
    """Holds an object that no snapshot can have, from its first step on."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.last: object = None

    def step(self, action: Any) -> Any:
        self.last = object()
        return super().step(action)


class Busy(Faulty):
    """Its own snapshot fails from its first step on."""

    def get_snapshot(self) -> dict[str, Any]:
        if self.steps:
            raise OSError("the simulator is busy")
        return {}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("env", "workers", "why"),
    [
        (Later, 0, "environment 0: .* has no snapshot; define get_snapshot and set_snapshot"),
        (Later, 2, "environment 0: .* has no snapshot; define get_snapshot and set_snapshot"),
        (Busy, 0, r"get_snapshot\(\) raised OSError: the simulator is busy"),
    ],
)
def test_an_environment_that_loses_its_snapshots_is_trained_and_resumed(
    env: Any, workers: int, why: str, tmp_path: Path
) -> None:
    given = {**ROLLOUTS, "checkpoint_freq": 1, "max_iterations": 3, "workers": workers, "runs": str(tmp_path)}
    with pytest.warns(UserWarning, match=f"{why}; checkpoints are saved without the episodes under") as told:
        run = whorl.load(env, "ppo", given).train().run_dir
    assert sum("snapshot" in str(one.message) for one in told) == 1
    assert checkpoint.number(checkpoint.checkpoints(run)[0]) == 3
    with pytest.warns(UserWarning, match="had no snapshot; all of them start new episodes"):
        trainer = load_run(run, {"max_iterations": 4}, env=env)
    assert trainer.counters.resets == 1 and trainer.train().iterations == 4


def test_workers_that_begin_again_do_not_repeat_their_exploration(tmp_path: Path) -> None:
    def generators(trainer: Any) -> list[torch.Tensor]:
        try:
            return [worker["generator"] for worker in trainer.collector.state_dict()["workers"]]
        finally:
            trainer._release()

    fail("raise", tmp_path, workers=2)
    first = generators(whorl.load(Faulty, "ppo", {**ROLLOUTS, "workers": 2}).build())
    with pytest.warns(UserWarning, match="start new episodes"):
        again = generators(load_run(run_of(tmp_path), {}, env=Faulty))
    assert not any(torch.equal(one, other) for one in first for other in again)
    assert not torch.equal(*again)


def test_a_checkpoint_that_could_not_be_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise CheckpointError("the disk is full")

    with whorl.load("CartPole-v1", "ppo", {**ROLLOUTS, "runs": str(tmp_path)}) as trainer:
        trainer.step()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", full)
            with pytest.raises(CheckpointError, match="the disk is full"):
                trainer.save()
        assert trainer.checkpointing.saved == trainer.counters.saved_steps == 0
        assert trainer.save().name == "checkpoint_1"
        assert trainer.counters.saved_steps == trainer.steps


def test_the_replay_buffer_is_saved_too(tmp_path: Path) -> None:
    text = fail("raise", tmp_path, "dqn")
    assert "iteration 3 (step 40) is saved in checkpoint_1" in text
    run = run_of(tmp_path)
    with pytest.warns(UserWarning, match="start new episodes"):
        trainer = load_run(run, {}, env=Faulty)
    assert trainer.experience.steps == 40 and trainer.experience.ring.rows == 24  # type: ignore[attr-defined]
    assert trainer.train().iterations == 6


def test_an_environment_that_is_found_by_its_id_is_continued_on_the_command_line(tmp_path: Path) -> None:
    whorl.register("environment", "Faulty-v0", lambda: Faulty("raise"))
    with pytest.raises(Exception, match="simulator is gone") as error:
        whorl.load("Faulty-v0", "ppo", {**ROLLOUTS, "runs": str(tmp_path)}).train()
    assert text_of(error.value).endswith(f"continue with: whorl resume {run_of(tmp_path)}")


@pytest.mark.parametrize("what", ["raise", "nan"])
def test_where_there_is_nothing_to_save_yet_one_hears_so(what: str, tmp_path: Path) -> None:
    text = fail(what, tmp_path, num_steps=64, batch_size=128)
    assert "there was no checkpoint yet; start again with: whorl.resume(" in text and "kept" not in text
    assert not checkpoint.checkpoints(run_of(tmp_path))


def test_without_save_model_one_hears_that_nothing_was_saved(tmp_path: Path) -> None:
    assert fail("raise", tmp_path, save_model=False).endswith(
        "nothing was saved, because save_model is false"
    )


def test_a_checkpoint_of_the_last_iteration_is_not_written_twice(tmp_path: Path) -> None:
    text = fail("raise", tmp_path, checkpoint_freq=1, reset_every=1)
    assert "the newest checkpoint is that of step 40, the error came after 40; continue with" in text
    assert RESTARTS not in newest(run_of(tmp_path)).metadata


def test_an_error_in_an_update_leaves_the_older_checkpoint_and_says_how_old_it_is(tmp_path: Path) -> None:
    settings = {**ROLLOUTS, "checkpoint_freq": 25, "reset_every": 1, "runs": str(tmp_path)}
    trainer = whorl.load(Faulty, "ppo", settings).build()
    update = trainer.agent.update

    def fails(batch: Any) -> Any:
        if trainer.iteration == 3:
            raise RuntimeError("out of memory")
        return update(batch)

    trainer.agent.update = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory") as error:
        trainer.train()
    assert "the newest checkpoint is that of step 28, the error came after 40; continue with" in text_of(
        error.value
    )


def test_a_callback_that_raises_after_an_iteration_loses_nothing(tmp_path: Path) -> None:
    class Fails(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.iteration == 2:
                raise RuntimeError("a mistake in a callback")

    settings = {**ROLLOUTS, "max_iterations": 4}
    with pytest.raises(RuntimeError, match="a mistake") as error:
        whorl.load(
            "CartPole-v1", "ppo", {**settings, "runs": str(tmp_path / "a")}, callbacks=[Fails()]
        ).train()
    run = run_of(tmp_path / "a")
    assert f"is saved in checkpoint_1; continue with: whorl resume {run}" in text_of(error.value)
    resumed = newest(whorl.resume(run).run_dir)
    whole = newest(
        whorl.load("CartPole-v1", "ppo", {**settings, "runs": str(tmp_path / "b")}).train().run_dir
    )
    for key, value in whole.state["agent"]["module"].items():
        assert torch.equal(resumed.state["agent"]["module"][key], value), key
    rows = [json.loads(line)["iteration"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4]


def test_diverged_weights_are_not_saved(tmp_path: Path) -> None:
    class Spoil(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            if trainer.iteration == 2:
                with torch.no_grad():
                    trainer.agent.actor.head.logits.bias.fill_(torch.nan)
                raise RuntimeError("and then this")

    trainer = whorl.load(Faulty, "ppo", {**ROLLOUTS, "runs": str(tmp_path)}, callbacks=[Spoil()])
    with pytest.raises(RuntimeError, match="and then") as error:
        trainer.train()
    assert "there was no checkpoint yet" in text_of(error.value)
    with pytest.raises(DivergedError):
        trainer.checkpointing.save({})


@pytest.mark.parametrize("acting", ["workers", pytest.param("central", marks=pytest.mark.full)])
def test_a_worker_that_hangs_ends_the_run_with_a_checkpoint(acting: str, tmp_path: Path) -> None:
    text = fail("hang", tmp_path, workers=2, acting=acting, env_timeout=3.0)
    assert "step() did not return within 3 seconds, the setting env_timeout; iteration 3 " in text
    # The 24th step is the fourth of the fifth episode, each of which has five.
    wheres = [f"worker {n} (environments {n}): environment {n}, step 4 of episode 5: step()" for n in (0, 1)]
    assert text.startswith(tuple(wheres))
    assert newest(run_of(tmp_path)).metadata["iterations"] == 3


def test_an_environment_in_this_process_that_hangs_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    text = fail("hang", tmp_path, env_timeout=1.0)
    assert text.startswith(
        "environment 0, step 4 of episode 5: step() did not return within 1 seconds, the setting env_timeout; "
        "iteration 3 "
    )
    assert newest(run_of(tmp_path)).metadata["iterations"] == 3


@pytest.mark.parametrize("given", ["instance", "function"])
def test_a_batch_of_the_user_that_hangs_ends_the_run_with_a_checkpoint(given: str, tmp_path: Path) -> None:
    """Gymnasium's own vector environments are stepped by a bound function."""

    def make() -> Any:
        return gymnasium.vector.SyncVectorEnv([lambda: Faulty("hang"), Faulty])

    settings = {**ROLLOUTS, "env_timeout": 1.0, "runs": str(tmp_path)}
    with pytest.raises(EnvError) as error:
        whorl.load(make() if given == "instance" else make, "ppo", settings).train()
    assert text_of(error.value).startswith(
        "a call of the environment did not return within 1 seconds, the setting env_timeout; iteration "
    )
    assert newest(run_of(tmp_path)).metadata[RESTARTS]


def test_it_is_noticed_in_another_thread_and_in_evaluations(tmp_path: Path) -> None:
    """An evaluation has environments of its own, the eighth step of which runs for ever."""
    given = {**ROLLOUTS, "eval": True, "eval_freq": 1, "n_eval_episodes": 2, "env_timeout": 1.0}
    made: list[Faulty] = []

    def make() -> Faulty:
        made.append(Faulty("spin", 8) if len(made) > 2 else Faulty())
        return made[-1]

    errors: list[BaseException] = []

    def train() -> None:
        try:
            whorl.load(make, "ppo", {**given, "runs": str(tmp_path)}).train()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert "step() did not return within 1 seconds, the setting env_timeout" in text_of(errors[0])
    assert isinstance(errors[0], EnvError)


def in_a_sweep(settings: dict[str, Any], folder: Path) -> None:
    task = sweep.Task(0, "ppo", "Hangs-v0", (settings,), {}, (1,), str(folder), 64)
    worker = sweep.TrialWorker([], {}, 0)
    try:
        worker.train(task)
    finally:
        worker._drop()


def in_a_benchmark(settings: dict[str, Any], folder: Path) -> None:
    whole = configure("ppo", "Hangs-v0", settings, presets=False).plain()
    cell.CellWorker([], {}, 0).train(cell.Cell("ppo", "Hangs-v0", 1, str(folder / "run"), whole))


def in_a_population(settings: dict[str, Any], folder: Path) -> None:
    whole = configure("ppo", "Hangs-v0", settings, presets=False).plain()
    (folder / "run").mkdir(parents=True)
    task = member.Task(0, 0, str(folder / "run"), 0, whole, 64, "own")
    member.Member(find("Hangs-v0"), EvolveConfig(), {}).train(task)


@pytest.mark.parametrize("train", [in_a_sweep, in_a_benchmark, in_a_population])
def test_an_environment_that_hangs_ends_runs_that_are_stepped_in_processes(
    train: Callable[[dict[str, Any], Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The error is raised while the main thread waits in the operating system, not after it, as in `Trainer.train`."""
    monkeypatch.setitem(registry._registered["environment"], "Hangs-v0", lambda: Faulty("nap"))
    with pytest.raises(EnvError, match=r"step\(\) did not return within 1 seconds, the setting env_timeout"):
        train({**ROLLOUTS, "env_timeout": 1.0, "runs": str(tmp_path)}, tmp_path)
    assert "can't be interrupted" not in capfd.readouterr().err


def test_a_step_in_a_debugger_or_of_another_trainer_may_take_any_time() -> None:
    """The watch sees a call of its environment that waits, but not one that waits within a debugger."""
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        go_on.wait()

    class Waiting:
        def step(self, action: Any) -> None:
            action()

    def seen_by_watch(action: Callable[[], None], stepped: Any) -> bool:
        entered.clear()
        go_on.clear()
        thread = threading.Thread(target=stepped.step, args=(action,))
        thread.start()
        entered.wait()
        watch.thread = thread.ident or 0
        found = watch._under_way()
        go_on.set()
        thread.join()
        return found is not None

    env = Waiting()
    watch = HangWatch(0.0, lambda: lambda: [env], lambda: str)
    names: dict[str, Any] = {"__name__": "pdb", "wait": wait}
    exec("def interaction(): wait()", names)
    assert seen_by_watch(wait, env)
    assert not seen_by_watch(names["interaction"], env)
    assert not seen_by_watch(wait, Waiting())
    assert watch._under_way() is None


def test_a_trainer_that_is_forgotten_is_freed_and_its_watch_ends(tmp_path: Path) -> None:
    """As in a notebook, where the name is given to the next trainer."""
    before = set(threading.enumerate())
    trainer = whorl.load("CartPole-v1", "ppo", {**ROLLOUTS, "env_timeout": 1.0, "runs": str(tmp_path)})
    trainer.step()
    (watching,) = set(threading.enumerate()) - before
    forgotten = weakref.ref(trainer)
    del trainer
    gc.collect()
    watching.join(60)
    gc.collect()
    assert forgotten() is None and not watching.is_alive()
    assert not (run_of(tmp_path) / "run.lock").exists()


LOCKED = """
import ctypes, sys
import gymnasium, numpy
import whorl.distributed.hang_timer
from whorl.cli import main

class Locked(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 24:
            lock = ctypes.CDLL(None).pthread_mutex_lock
            mutex = ctypes.create_string_buffer(128)
            lock(mutex)
            lock(mutex)
        return numpy.zeros(3, numpy.float32), 1.0, self.steps % 5 == 0, False, {}

if __name__ == "__main__":
    whorl.distributed.hang_timer.GRACE = 0.5
    sys.exit(main(sys.argv[1:]))
"""


def test_the_command_line_ends_where_native_code_cannot_be_interrupted(tmp_path: Path) -> None:
    (tmp_path / "locked.py").write_text(LOCKED)
    given = {name: value for name, value in ROLLOUTS.items() if name not in ("eval", "tensorboard", "quiet")}
    flags = [
        word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", json.dumps(value))
    ]
    command = ["locked.py", "train", "ppo", "locked:Locked", *flags, "--env-timeout", "1", "--no-eval"]
    ended = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 1
    assert lines[-1].startswith(
        "whorl: environment 0, step 4 of episode 5: step() did not return within 1 seconds, the setting env_timeout, "
        "and can't be interrupted; iteration 3 "
    )
    assert (
        " is saved in checkpoint_1, without the episodes under way; continue with: whorl resume " in lines[-1]
    )
    assert "    lock(mutex)" in lines[-2]


def test_an_actor_that_hangs_is_ended_and_replaced_or_ends_the_run(tmp_path: Path) -> None:
    given = {**ROLLOUTS, "actors": 1, "actor_restarts": 0, "env_timeout": 3.0, "runs": str(tmp_path)}
    sentence = (
        "actor 0 failed once; last error: actor 0: environment 0, step 4 of episode 5: step() did not return "
        "within 3 seconds, the setting env_timeout"
    )
    with pytest.raises(EnvError, match=re.escape(sentence)):
        whorl.load(lambda: Faulty("hang"), "ppo", given).train()
    assert newest(run_of(tmp_path)).metadata["iterations"] == 3


# Owners


def test_a_run_that_is_being_trained_can_be_read_but_not_resumed(tmp_path: Path) -> None:
    settings = {**ROLLOUTS, "checkpoint_freq": 1, "max_iterations": 3, "runs": str(tmp_path)}
    with whorl.load("CartPole-v1", "ppo", settings) as trainer:
        trainer.step()
        with pytest.raises(CheckpointError, match="is being trained by another trainer of this process"):
            whorl.resume(run_of(tmp_path))
        assert whorl.evaluate(run_of(tmp_path), 1).returns
        trainer.step()
    assert whorl.resume(run_of(tmp_path)).iterations == 3
    assert not (run_of(tmp_path) / "run.lock").exists()


@pytest.mark.parametrize("tensorboard", [True, False])
def test_a_folder_that_is_deleted_is_one_sentence(
    tensorboard: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Delete(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.iteration == 2:
                # At once, not file by file: TensorBoard's thread may be writing one.
                shutil.rmtree(trainer.run_dir.rename(tmp_path / "deleted"), ignore_errors=True)

    settings = {**ROLLOUTS, "tensorboard": tensorboard, "runs": str(tmp_path)}
    with pytest.raises(CheckpointError) as error:
        whorl.load("CartPole-v1", "ppo", settings, callbacks=[Delete()]).train()
    assert str(error.value).endswith("was deleted during training, so nothing can be saved any more")
    assert "Traceback" not in capfd.readouterr().err


# Ctrl-C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_acknowledged_at_once_saves_and_raises(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = []

    class Press(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            if trainer.iteration == 1:
                os.kill(os.getpid(), number)
                seen.append(capfd.readouterr().err)

    settings = {**ROLLOUTS, "runs": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Terminated) as error:
        whorl.load("CartPole-v1", "ppo", settings, callbacks=[Press()]).train()
    again = "; press Ctrl-C again to stop now" if number == signal.SIGINT else ""
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert seen == [f"{name}: finishing this iteration and saving{again}\n"]
    result = error.value.result
    assert isinstance(error.value, KeyboardInterrupt) == (number == signal.SIGINT)
    assert result.interrupted and result.iterations == 2
    assert newest(result.run_dir).metadata["iterations"] == 2
    assert whorl.resume(result.run_dir).iterations == 6


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["front", "background"])
def test_the_second_ctrl_c_stops_at_once(tmp_path: Path, handler: Any) -> None:
    class Press(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            while not trainer.interrupted:  # two signals at once would count as one
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)  # cut short by the second one

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            whorl.load("CartPole-v1", "ppo", {**ROLLOUTS, "runs": str(tmp_path)}, callbacks=[Press()]).train()
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert not hasattr(error.value, "result")
    assert not (run_of(tmp_path) / "run.lock").exists()


def test_sigterm_ends_a_script_that_would_train_again(tmp_path: Path) -> None:
    settings = {**ROLLOUTS, "max_iterations": 10**6, "runs": str(tmp_path)}
    code = f"""
import os, signal, whorl
class Terminate(whorl.Callback):
    def on_rollout(self, trainer, rollout):
        os.kill(os.getpid(), signal.SIGTERM)
for seed in (1, 2):
    try:
        whorl.load("CartPole-v1", "ppo", {settings}, seed=seed, callbacks=[Terminate()]).train()
    except KeyboardInterrupt:
        print("on with the next seed")
    finally:
        print("cleaned up")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (143, "cleaned up\n"), done.stderr
    assert done.stderr == "SIGTERM: finishing this iteration and saving\n"
    assert newest(run_of(tmp_path)).metadata["iterations"] == 1


@pytest.mark.skipif(os.name != "posix", reason="signals of processes")
def test_ctrl_c_ends_a_script_by_the_signal_so_that_a_shells_loop_ends(tmp_path: Path) -> None:
    settings = {**ROLLOUTS, "max_iterations": 10**6, "runs": str(tmp_path)}
    code = f"""
import os, signal, whorl
signal.signal(signal.SIGINT, signal.default_int_handler)
class Press(whorl.Callback):
    def on_rollout(self, trainer, rollout):
        os.kill(os.getpid(), signal.SIGINT)
whorl.load("CartPole-v1", "ppo", {settings}, callbacks=[Press()]).train()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1].startswith("KeyboardInterrupt: training was interrupted; ")
    assert newest(run_of(tmp_path)).metadata["iterations"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_during_start_up_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    started: list[Any] = []

    class Slow(Faulty):
        def reset(self, **given: Any) -> Any:
            if started and started[0]._lock is not None:
                os.kill(os.getpid(), number)
                while not started[0].interrupted:  # two signals at once would count as one
                    time.sleep(0.001)
                os.kill(os.getpid(), number)
                time.sleep(600)  # cut short by the second one
            return super().reset(**given)

    started.append(whorl.load(Slow, "ppo", {**ROLLOUTS, "runs": str(tmp_path)}))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # else it would end the tests
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            started[0].train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not hasattr(error.value, "result")
    assert not (run_of(tmp_path) / "run.lock").exists()


def wait_until(reached: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    """Wait as long as it takes on a busy machine, but not for a process that has ended."""
    deadline = time.monotonic() + 600
    while not reached():
        assert process.poll() is None, "the process ended early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_run_is_resumed_and_a_running_one_refused(tmp_path: Path) -> None:
    settings = {**ROLLOUTS, "max_iterations": 10**6, "checkpoint_freq": 1, "runs": str(tmp_path)}
    code = f"import whorl; whorl.load('CartPole-v1', 'ppo', {settings}).train()"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_until(lambda: any(tmp_path.glob("*/checkpoint_2/metadata.yaml")), process)
        with pytest.raises(CheckpointError, match=f"is being trained by process {process.pid} on "):
            whorl.resume(run_of(tmp_path))
    finally:
        process.kill()
        process.wait()
    saved = newest(run_of(tmp_path)).metadata["iterations"]
    assert whorl.resume(run_of(tmp_path), max_iterations=saved + 1).iterations == saved + 1


def test_an_exhausted_gpu_names_the_settings_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = whorl.load("CartPole-v1", "ppo", {**ROLLOUTS, "runs": str(tmp_path)})
    trainer.step()

    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")

    monkeypatch.setattr(trainer.loop, "iterate", exhausted)
    with pytest.raises(ConfigError) as raised:
        trainer.step()
    trainer.close()
    assert str(raised.value).startswith(
        "the GPU has no memory left; lower num_envs (2), num_steps (8), batch_size (16) or"
    )
    assert f"continue with: whorl resume {trainer.run_dir}" in str(raised.value)
