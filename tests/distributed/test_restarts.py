"""Processes that fail are replaced, each time with a message, but not for ever; steps that hang are failures."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import whorl
from whorl.core.errors import EnvError
from whorl.distributed import hang_timer, remote
from whorl.distributed.hang_timer import HangTimer
from whorl.distributed.remote import RemoteError, RestartPolicy
from whorl.state import checkpoint


class Clock:
    """Stands for `time`: sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, seconds: float) -> bool:
        self.sleep(seconds)
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(remote, "time", found)
    monkeypatch.setattr(hang_timer, "time", found)
    return found


def test_failures_that_are_not_in_a_row_count_within_an_hour(clock: Clock) -> None:
    said: list[str] = []
    policy = RestartPolicy(3, 4, said.append)
    for minute in range(0, 80, 20):  # the fourth comes at 60 minutes, when the first is just within the hour
        clock.now = 60.0 * minute
        policy.failed("actor 0", EnvError("the joint is jammed"))
        policy.succeeded("actor 0")
    assert (
        said[-1] == "actor 0 failed and is replaced (1 of 3 in a row, 4 within an hour): the joint is jammed"
    )
    clock.now += 1.0  # the first is older than an hour now
    policy.failed("actor 0", EnvError("again"))
    policy.failed("actor 1", EnvError("another one"))
    assert said[-1] == "actor 1 failed and is replaced (1 of 3 in a row, 1 within an hour): another one"
    with pytest.raises(
        RemoteError, match=r"^actor 0 failed 5 times within an hour \(restarts_per_hour is 4\); last"
    ):
        policy.failed("actor 0", EnvError("and again"))


def test_without_a_limit_per_hour_only_failures_in_a_row_count(clock: Clock) -> None:
    policy = RestartPolicy(1, 0, lambda text: None)
    for _ in range(100):
        policy.failed("actor 0", EnvError("gone"))
        policy.succeeded("actor 0")
    policy.failed("actor 0", EnvError("gone"))
    with pytest.raises(RemoteError, match="actor 0 failed 2 times in a row; last error: gone"):
        policy.failed("actor 0", EnvError("gone"))


def reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, state: Any, timeout: float = 10.0
) -> float | None:
    """When a timer over `state(now)` reports, within 1000 seconds."""

    class Over(Exception):
        pass

    def look() -> Any:
        if clock.now > 1000:
            raise Over
        return state(clock.now)

    def report(error: EnvError) -> Any:
        assert error.message == f"step 3 did not return within {timeout:g} seconds, the setting env_timeout"
        raise TimeoutError

    monkeypatch.setattr(hang_timer.threading.Thread, "start", lambda thread: None)
    timer = HangTimer(timeout, look, lambda: "step 3", report)
    monkeypatch.setattr(timer, "_closed", clock)
    try:
        timer._watch()
    except Over:
        return None
    except TimeoutError:
        return clock.now
    raise AssertionError("it watches for ever")


def test_a_step_that_takes_too_long_is_reported(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 4 seconds until the one that begins at 100."""
    found = reported(clock, monkeypatch, lambda now: min(now // 4, 25))
    assert found is not None and 110 < found <= 113


def test_time_in_which_the_process_was_stopped_does_not_count(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step begins at 100. The process is stopped for an hour at 103, and the step does not return after it."""
    stopped: list[float] = []

    def state(now: float) -> Any:
        if now >= 103 and not stopped:
            stopped.append(now)
            clock.now += 800.0
        return min(now // 4, 25)

    found = reported(clock, monkeypatch, state)
    assert found is not None and 908 < found <= 913


@pytest.mark.parametrize("state", [lambda now: now // 9, lambda now: None], ids=["slow", "idle"])
def test_slow_steps_and_idle_times_are_not_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    assert reported(clock, monkeypatch, state) is None


class Frail(gymnasium.Env):
    """Raises in its 20th step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 20:
            raise OSError("the simulator is gone")
        return np.zeros(2, np.float32), 1.0, self.steps % 5 == 0, False, {}


def test_an_environment_that_raises_now_and_then_is_heard_and_ends_the_run_with_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every life of the actor sends five rollouts of four rows before it fails, so no two failures are in a row."""
    settings = {
        "actors": 1,
        "num_envs": 1,
        "num_steps": 4,
        "max_iterations": 1000,
        "restarts_per_hour": 1,
        "eval": False,
        "tensorboard": False,
        "log_freq": 1,
        "log_file": True,
        "runs": str(tmp_path),
    }
    with pytest.raises(
        EnvError, match=r"actor 0 failed 2 times within an hour \(restarts_per_hour is 1\); last"
    ) as error:
        whorl.load(Frail, "impala", settings).train()
    (run,) = tmp_path.iterdir()
    said = (
        "actor 0 failed and is replaced (1 of 3 in a row, 1 within an hour): actor 0: environment 0, step 5 of "
        "episode 4: step() raised OSError: the simulator is gone"
    )
    assert said in capsys.readouterr().out.replace("\n", " ") and said in (run / "log.txt").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["actors/replaced"] for row in (rows[0], rows[-1])] == [0, 1]
    found = checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded)
    assert found.metadata["iterations"] == rows[-1]["iteration"]
    assert f"is saved in {found.folder.name}" in error.value.message
