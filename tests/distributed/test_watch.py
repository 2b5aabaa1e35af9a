"""A process that ends without a word is spoken for."""

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_is_ended_from_outside_python_leaves_a_sentence(end: str) -> None:
    told = ended_by(end)
    assert re.fullmatch(
        r"whorl: training process \d+ was ended from outside Python: Ray does this when it loses the node that the "
        r"process is on .*; `whorl resume RUN` continues from the last checkpoint\n",
        told,
    )


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(3)",
        "watch.close(); os._exit(1)",
        "os.fork() or os._exit(0)",
        "of.close_all(); os._exit(1)",
    ],
)
def test_a_process_that_ends_by_itself_leaves_none(end: str) -> None:
    assert ended_by(end) == ""


@pytest.mark.parametrize(("released", "sentences"), [(1, 1), (2, 0)])
def test_users_of_one_process_share_a_watch_until_the_last_one_releases_it(
    released: int, sentences: int
) -> None:
    release = "; ".join(["one.release()", "two.release()"][:released])
    end = f"one, two = watch, of.watch(); assert one is two; {release}; os._exit(1)"
    assert ended_by(end).count("was ended from outside Python") == sentences


def ended_by(line: str) -> str:
    """What is printed by a process that is watched and ends with this line, and by the one that watches."""
    before = "import os, signal, sys\nimport whorl.distributed.watch as of\nwatch = of.watch()\n"
    found = subprocess.run(
        [sys.executable, "-c", before + line],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return found.stderr  # whole once all who could write to it have ended
