"""Runs pytest in forks of a process that has imported the slow packages already, but not whorl; used by `mutants.py`.

Each line of standard input is a JSON object: `folder` to run in, `arguments` of pytest, the file `log` for its output,
the file `seconds` with the times that tests have taken so far, and `timeout` in seconds. The answer is a line with
pytest's exit status, or `timeout`; nothing that the tests started is left running.
"""

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SLOW = (
    "torch",
    "torch.distributed",
    "torch.testing",
    "torch._dynamo",  # imported by the first step of an optimizer
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
        status = int(pytest.main(job["arguments"], [ShortestFirst(Path(job["seconds"]))]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class ShortestFirst:
    """A plugin of pytest: within each file the quickest tests run first, and most mistakes are found by one of them."""

    def __init__(self, path: Path) -> None:
        self.path, self._phases = path, 0.0
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: (files[item.path], round(self.seconds.get(item.nodeid, 0.0), 1)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._phases = report.duration + (0.0 if report.when == "setup" else self._phases)
        if report.when == "teardown":
            # The least of all times: the first test of a process also pays for what is loaded late.
            before = self.seconds.get(report.nodeid, self._phases)
            self.seconds[report.nodeid] = min(before, self._phases)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.seconds))


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
