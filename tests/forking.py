"""Child processes forked from one that has torch and Whorl loaded: a start takes milliseconds, not seconds.

They are processes as those of `whorl.distributed.process` are: children of the test, in sessions of their own, with
pipes, signals and exit codes. Only their interpreter was not started for them; tests of the start itself, and of what
is imported by it, use the real one. Linux only.
"""

import array
import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whorl.distributed import process

MANY, SET_CHILD_SUBREAPER = 256, 36
ROOT = Path(__file__).resolve().parents[1]


class Forks:
    """The loaded process, and what stands in for `whorl.distributed.process._launch`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.link: socket.socket | None = None
        self.owner, self.other = os.getpid(), process._launch

    def _start(self) -> socket.socket:
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        command = [sys.executable, __file__, str(theirs.fileno())]
        self.server = subprocess.Popen(
            command, env=environ, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        return link

    def launch(self, setup: str, size: int, handles: Sequence[int | str]) -> "subprocess.Popen[bytes]":
        if os.getpid() != self.owner:  # in a fork of the test, whose children they would not become
            return self.other(setup, size, handles)
        child_in, commands = os.pipe()
        answers, child_out = os.pipe()
        numbers = [0, 1, 2, *(int(handle) for handle in handles)]
        given = array.array("i", [child_in, child_out, 2, *numbers[3:]])
        request = {
            "arguments": [setup, str(size)],
            "numbers": numbers,
            "environ": dict(os.environ),
            "folder": os.getcwd(),
        }
        body, libc = json.dumps(request).encode(), ctypes.CDLL(None)
        with self.lock:
            self.link = self.link or self._start()
            self.link.send(str(len(body)).encode())
            # A child whose parent ends at once becomes a child of this process.
            libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                self.link.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
                pid = int(self.link.recv(64))
            finally:
                libc.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        os.close(child_in)
        os.close(child_out)
        return adopted(pid, commands, answers)

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
            self.server.wait()


def adopted(pid: int, commands: int, answers: int) -> "subprocess.Popen[bytes]":
    """A `Popen` of a child that exists already."""
    found: Any = subprocess.Popen.__new__(subprocess.Popen)
    found.args, found.pid, found.returncode = ["forked"], pid, None
    found.stdin, found.stdout, found.stderr = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb", 0), None
    found._child_created, found._waitpid_lock = True, threading.Lock()
    found._sigint_wait_secs, found.text_mode, found._communication_started = 0.25, None, False
    found._input, found._closed_child_pipe_fds = None, True
    return found


# The loaded process


def serve(link: socket.socket) -> None:
    while size := link.recv(64):
        room = socket.CMSG_SPACE(MANY * array.array("i").itemsize)
        body, extra, _, _ = link.recvmsg(int(size), room)
        given = array.array("i")
        for _, _, data in extra:
            given.frombytes(data)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(write, str(child).encode())
                os._exit(0)
            os.close(read)
            os.close(write)
            link.close()
            run(json.loads(body), list(given))
        os.waitpid(between, 0)
        link.send(os.read(read, 64))
        for descriptor in (read, write, *given):
            os.close(descriptor)


def run(request: dict[str, Any], given: list[int]) -> None:
    """In the child: what `python -m whorl.distributed.process` would do."""
    code = 1
    try:
        os.setsid()
        above = max([*request["numbers"], *given]) + 1
        for at, descriptor in enumerate(given):
            os.dup2(descriptor, above + at)
            os.close(descriptor)
        for at, number in enumerate(request["numbers"]):
            os.dup2(above + at, number)
            os.close(above + at)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["folder"])
        sys.argv[1:] = request["arguments"]
        random.seed()
        process.main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.remove(str(ROOT / "tests"))
    import whorl.distributed.fleet
    import whorl.distributed.learners
    import whorl.distributed.pool
    import whorl.distributed.replay_shards
    import whorl.run.trainer  # noqa: F401
    from whorl.envs.make import find
    from whorl.settings.merge import configure
    from whorl.state.policy import build_agent

    # The first agent and the first environment load the rest.
    build_agent(configure("dqn", "CartPole-v1", {}), find("CartPole-v1").vector(1).spec, 0)
    serve(socket.socket(fileno=int(sys.argv[1])))
