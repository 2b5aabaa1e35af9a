"""Warnings stand at the user's line and in the log of the run, and filters apply to them as to any other."""

import inspect
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.core import messages
from whorl.log.writers import Log, Logger
from whorl.run.reporting import Result

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "max_iterations": 1,
    "eval": False,
    "tensorboard": False,
    "quiet": True,
    "log_file": True,
}
SENTENCE = "took 10 of 13 tensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(whorl.train("CartPole-v1", "ppo", SMALL, runs=str(tmp_path_factory.mktemp("base"))).run_dir)


def warm(base: str, runs: Path, **more: Any) -> Result:
    given = {**SMALL, "load_checkpoint_dir": base, "actor_hidden_sizes": [7], "runs": str(runs), **more}
    return whorl.train("CartPole-v1", "ppo", given)


def test_a_warning_is_at_the_line_that_called_the_library_and_in_the_log(base: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=SENTENCE) as found:
        run = warm(base, tmp_path)
    lines, first = inspect.getsourcelines(warm)
    assert Path(found[0].filename) == Path(__file__)
    assert found[0].lineno == first + len(lines) - 1
    logged = [line for line in (run.run_dir / "log.txt").read_text().splitlines() if SENTENCE in line]
    assert len(found) == len(logged) == 1 and str(found[0].message) in logged[0]


@pytest.mark.parametrize("module", ["whorl", r"whorl\.run"])
def test_filters_for_the_library_apply(module: str, base: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=module)
        warm(base, tmp_path)
    assert not [one for one in found if SENTENCE in str(one.message)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{SENTENCE}")
        with pytest.raises(UserWarning, match=SENTENCE):
            warm(base, tmp_path)


def test_a_warning_of_a_thread_shows_no_line_of_the_library() -> None:
    with pytest.warns(UserWarning, match="a sentence") as found:
        thread = threading.Thread(target=messages.warn, args=("a sentence",))
        thread.start()
        thread.join()
    shown = warnings.formatwarning(found[0].message, found[0].category, found[0].filename, found[0].lineno)
    assert shown == "whorl:1: UserWarning: a sentence\n"


def test_the_command_line_shows_one_sentence_and_logs_it(base: str, tmp_path: Path) -> None:
    words = ["train", "ppo", "CartPole-v1", "--load-checkpoint-dir", base, "--actor-hidden-sizes", "7"]
    words += [
        word
        for name in ("num_envs", "num_steps", "batch_size", "max_iterations")
        for word in (f"--{name}", str(SMALL[name]))
    ]
    words += [
        "--no-eval",
        "--no-tensorboard",
        "--log-file",
        "--quiet",
        "--runs",
        str(tmp_path),
        "--name",
        "mine",
    ]
    command = [sys.executable, "-m", "whorl", *words]
    err = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert err.startswith("whorl: ") and err.count("\n") == 1 and SENTENCE in err
    assert err.removeprefix("whorl: ").strip() in (tmp_path / "mine" / "log.txt").read_text()


def test_messages_of_a_step_are_logged_and_those_of_others_are_not(tmp_path: Path) -> None:
    class Says(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            messages.warn("within a step")

    one, other = (
        whorl.load("CartPole-v1", "ppo", SMALL, callbacks=[Says()] * n, runs=str(tmp_path)) for n in (1, 0)
    )
    with pytest.warns(UserWarning, match="within a step"), one, other:
        one.step()
        other.step()
    assert one.run_dir is not None and other.run_dir is not None
    assert "within a step" in (one.run_dir / "log.txt").read_text()
    assert "within a step" not in (other.run_dir / "log.txt").read_text()
    assert json.loads((one.run_dir / "metrics.jsonl").read_text().splitlines()[0])["iteration"] == 1


def test_loggers_that_fail_when_they_are_told_of_another_are_removed_once() -> None:
    class Fails(Logger):
        def write(self, row: Any) -> None:
            raise OSError("no network")

        def message(self, text: str) -> None:
            raise OSError("no network")

    log = Log(Fails(), Fails())
    with pytest.warns(RuntimeWarning, match="switched off") as found, messages.recording(log.message):
        log.write({"steps": 1})
    assert not log.loggers and len(found) == 2
