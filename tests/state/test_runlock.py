"""A run folder has one owner, and an owner that is gone is recognised."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from whorl.core.errors import CheckpointError
from whorl.state import runlock
from whorl.state.runlock import NAME, STALE_SECONDS, Owner, RunLock

ME = Owner.current({})
HOLD = """
import sys, time
from pathlib import Path
from whorl.state.runlock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
if sys.argv[2:]:
    import os
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        time.sleep(1000)
time.sleep(1000)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that owns the folder."""
    process = start(tmp_path)
    yield process
    process.kill()
    process.wait()


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(folder), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def record(folder: Path, owner: Owner, age: float = 0.0) -> None:
    """What an owner that holds no lock of this machine has left."""
    path = folder / NAME
    path.write_text(json.dumps(vars(owner)))
    os.utime(path, (time.time() - age,) * 2)


def test_the_folder_is_free_again_after_release(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    lock.release()
    lock.release()
    assert not (tmp_path / NAME).exists()
    RunLock(tmp_path).release()


def test_a_second_process_is_refused_with_the_first_ones_pid_and_host(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(CheckpointError) as error:
        RunLock(tmp_path)
    assert (
        str(error.value) == f"{tmp_path} is being trained by process {holder.pid} on {ME.host}; stop it first"
    )


def test_a_second_trainer_of_this_process_is_refused(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    with pytest.raises(CheckpointError, match="by another trainer of this process; close it first"):
        RunLock(tmp_path)
    first.release()


def test_a_lock_that_nobody_holds_on_to_is_released(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    del lock
    RunLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / NAME).exists()
    RunLock(tmp_path).release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_outlives_a_killed_owner_does_not_keep_the_folder(tmp_path: Path) -> None:
    process = start(tmp_path, "fork")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_ends_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    pid = os.fork()
    if pid == 0:
        lock.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / NAME).exists()
    with pytest.raises(CheckpointError, match="this process"):
        RunLock(tmp_path)
    lock.release()


# Where the system's locks say nothing: shared file systems, other hosts


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlock, "_lock", lambda descriptor: None)


def test_without_locks_a_living_process_is_looked_up(
    tmp_path: Path, no_locks: None, holder: "subprocess.Popen[str]"
) -> None:
    (tmp_path / NAME).unlink()
    record(tmp_path, replace(ME, pid=holder.pid, start=runlock._start_of(holder.pid)))
    with pytest.raises(CheckpointError, match=f"by process {holder.pid} on "):
        RunLock(tmp_path)


def test_without_locks_a_process_id_that_another_process_has_now_is_recognised(
    tmp_path: Path, no_locks: None
) -> None:
    record(tmp_path, replace(ME, pid=os.getppid(), start="1"))
    RunLock(tmp_path).release()


def test_a_machine_that_was_restarted_has_no_owner_left(tmp_path: Path) -> None:
    record(tmp_path, replace(ME, boot="before", machine="m"))
    RunLock(tmp_path, replace(ME, machine="m")).release()


def test_a_lock_that_is_held_counts_on_a_machine_that_seems_restarted(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    """Two virtual machines of one image share host name and machine id, but not the boot."""
    record(tmp_path, replace(ME, pid=holder.pid, boot="other", machine="m"))
    with pytest.raises(CheckpointError, match=f"by process {holder.pid} on {ME.host}; stop it first"):
        RunLock(tmp_path, replace(ME, machine="m"))


def test_another_host_is_refused_with_the_file_to_delete(tmp_path: Path) -> None:
    record(tmp_path, Owner(7, "node3", "1", "other", "other"), age=12)
    with pytest.raises(CheckpointError) as error:
        RunLock(tmp_path)
    assert "is being trained by process 7 on node3, which gave a sign of life 1" in str(error.value)
    assert str(error.value).endswith(
        f"can't be checked from {ME.host}; if it is gone, delete {tmp_path / NAME}"
    )
    (tmp_path / NAME).unlink()
    RunLock(tmp_path).release()


def test_another_host_without_a_sign_of_life_is_taken_over(tmp_path: Path) -> None:
    record(tmp_path, Owner(7, "node3", "1", "other", "other"), age=STALE_SECONDS + 60)
    RunLock(tmp_path).release()


def test_a_job_that_slurm_requeued_takes_over_from_itself(tmp_path: Path) -> None:
    before = Owner(7, "node3", "1", "other", "other", job="99")
    record(tmp_path, before)
    with pytest.raises(CheckpointError, match="node3"):
        RunLock(tmp_path, replace(ME, job="98", restarts=1))
    RunLock(tmp_path, Owner.current({"SLURM_JOB_ID": "99", "SLURM_RESTART_COUNT": "1"})).release()


# While it is held


def test_the_owner_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = RunLock(tmp_path)
    os.utime(tmp_path / NAME, (0, 0))
    lock.beat()
    assert (tmp_path / NAME).stat().st_mtime == 0, "it has just given one"
    monkeypatch.setattr(runlock, "BEAT_SECONDS", -1.0)
    lock.beat()
    assert (tmp_path / NAME).stat().st_mtime > 0
    lock.release()


def test_an_owner_whose_lock_was_deleted_makes_a_new_one_unless_somebody_came(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    (tmp_path / NAME).unlink()
    lock.check()
    assert (tmp_path / NAME).exists()
    (tmp_path / NAME).unlink()
    other = start(tmp_path)
    try:
        with pytest.raises(CheckpointError, match=f"now belongs to process {other.pid} on {ME.host}"):
            lock.check()
        lock.release()
        assert (tmp_path / NAME).exists(), "it is the other one's"
    finally:
        other.kill()
        other.wait()


def test_a_deleted_folder_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = RunLock(folder)
    (folder / NAME).unlink()
    folder.rmdir()
    with pytest.raises(CheckpointError, match="run was deleted during training, so nothing can be saved"):
        lock.check()
    lock.release()
