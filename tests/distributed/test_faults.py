"""A run with actors and shards whose learner is killed or interrupted: nobody stays behind, and resume counts right."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import whorl

pytestmark = pytest.mark.usefixtures("started")

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
PATIENCE = 600.0
COMMAND = (
    *(
        "train",
        "apex_dqn",
        "CartPole-v1",
        "--actors",
        "2",
        "--num-envs",
        "4",
        "--shards",
        "2",
        "--num-steps",
        "8",
    ),
    *(
        "--total-timesteps",
        "100000000",
        "--learning-starts",
        "100",
        "--updates-per-step",
        "0.1",
        "--buffer-size",
        "4000",
    ),
    *("--checkpoint-freq", "20", "--log-freq", "1", "--no-eval", "--no-tensorboard", "--quiet"),
)


def wait_for(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(runs: Path) -> tuple["subprocess.Popen[bytes]", Path, list[int]]:
    """A run that has written a checkpoint, with the processes it has."""
    process = subprocess.Popen(
        [sys.executable, "-m", "whorl", *COMMAND, "--runs", str(runs)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # in a terminal Ctrl-C would end it by the signal, without a status
    )
    wait_for(lambda: any(runs.glob("*/checkpoint_2/metadata.yaml")), "no checkpoint was written")
    (run,) = runs.iterdir()
    found = children(process.pid)
    assert len(found) == 4  # two actors, two shards
    return process, run, found


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_nobody_outlives_the_learner_and_a_resumed_run_counts_right(
    tmp_path: Path, how: signal.Signals
) -> None:
    process, run, others = started(tmp_path)
    process.send_signal(how)
    assert process.wait(PATIENCE) == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    wait_for(lambda: not any(map(running, others)), "a process outlived its learner")
    newest = max(run.glob("checkpoint_*"), key=lambda folder: int(folder.name.rpartition("_")[2]))
    saved = yaml.safe_load((newest / "metadata.yaml").read_text())
    more = whorl.resume(run, total_timesteps=int(saved["steps"]) + 300)
    assert saved["steps"] + 300 <= more.steps < saved["steps"] + 300 + 2 * 4 * 8
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs, steps = [row["iteration"] for row in rows], [row["steps"] for row in rows]
    assert epochs == list(range(1, len(rows) + 1))  # none twice, none left out
    assert all(0 < after - before <= 4 * 8 for before, after in pairwise(steps))
