"""Processes of our own beside this one: how they are started, spoken to, and ended."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from whorl.distributed.worker import LENGTH, QUIT

PATIENCE = 2.0
"""seconds that a process gets to close what it holds before it is ended"""


def launch(module: str, handles: Sequence[int | str]) -> "subprocess.Popen[bytes]":
    """A process that runs a module of ours, with pipes to it, and that may open these segments."""
    here = str(Path(__file__).parents[2])
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environ.get("PYTHONPATH")]))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environ.setdefault(
            name, "1"
        )  # the workers are the parallelism; threads inside them would fight over cores
    command = [sys.executable, "-m", module]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "bufsize": 0,
        "env": environ,
    }
    # A session (or group) of its own keeps a Ctrl-C at the terminal away from the worker from its very first moment.
    if sys.platform == "win32":
        return subprocess.Popen(command, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP, **pipes)
    return subprocess.Popen(command, start_new_session=True, pass_fds=[int(h) for h in handles], **pipes)


def shut_down(processes: "list[subprocess.Popen[bytes]]", owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the parent must not end the parent's workers
    for process in processes:
        with suppress(OSError):  # it may be gone already
            os.write(pipe_of(process.stdin), QUIT)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def framed(payload: Any) -> bytes:
    body = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def pipe_of(pipe: Any) -> int:
    return int(pipe.fileno())


def how_it_ended(process: "subprocess.Popen[bytes]") -> str:
    """What became of a process that no longer answers."""
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
