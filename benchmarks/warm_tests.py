"""Runs pytest in forks of a process that has imported the slow packages already, but not whorl; used by `mutants.py`.

Each line of standard input is a JSON object: `folder` to run in, `arguments` of pytest, the file `log` for its output,
and `timeout` in seconds. The answer is a line with pytest's exit status, or `timeout`; nothing that the tests started
is left running.
"""

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

SLOW = (
    "torch",
    "torch.distributed",
    "torch.testing",
    "numpy",
    "gymnasium",
    "yaml",
    "rich",
    "psutil",
    "pytest",
    "matplotlib",
)


def main() -> None:
    for name in SLOW:
        importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(job)
        sys.stdout.write(f"{ended(pid, job['timeout'])}\n")
        sys.stdout.flush()


def run(job: dict[str, Any]) -> None:
    """In the fork: the tests, then the end of the process."""
    import pytest

    status = 3  # pytest's for an internal error
    try:
        os.setsid()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(stream, number)
        os.chdir(job["folder"])
        sys.path[0] = os.environ["PYTHONPATH"] = job["folder"]
        sys.argv = ["pytest", *job["arguments"]]
        status = int(pytest.main(job["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int, timeout: float) -> str:
    """Wait for the fork and end what it has left behind."""
    found, deadline = (0, 0), time.monotonic() + timeout
    while not found[0] and time.monotonic() < deadline:
        time.sleep(0.05)
        found = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not found[0]:
        os.waitpid(pid, 0)
        return "timeout"
    return str(os.waitstatus_to_exitcode(found[1]))


if __name__ == "__main__":
    main()
