"""A process that says so when this one is ended in a way that Python does not notice."""

import atexit
import os
import subprocess
import sys
from contextlib import suppress

FAREWELL = (
    "whorl: training process {pid} was ended from outside Python: Ray does this when it loses the node that the "
    "process is on (other causes: kill -9, out of memory); `whorl resume RUN` continues from the last checkpoint"
)
WATCH = "import sys; sys.stdin.buffer.read(1) or sys.stderr.write(sys.argv[1] + chr(10))"


class Watch:
    """A process that says so if this one ends in a way that Python does not notice.

    Ray ends a process from within (`_exit(1)`, nothing printed) when it has lost the node that the process is on.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", WATCH, FAREWELL.format(pid=os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        self.owner, self.users = os.getpid(), 1

    def release(self) -> None:
        """One user less; the last one closes it."""
        self.users -= 1
        if not self.users:
            self.close()

    def close(self) -> None:
        if self in _open:
            _open.remove(self)
        if self._process.stdin is None or self._process.stdin.closed or os.getpid() != self.owner:
            return
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.write(b".")
        self._process.stdin.close()
        self._process.wait()


_open: list[Watch] = []


def watch() -> Watch | None:
    """The watch of this process, started where there is none; None where no process can be started. Release it."""
    for one in _open:
        if one.owner == os.getpid():
            one.users += 1
            return one
    with suppress(OSError):
        _open.append(Watch())
        return _open[-1]
    return None


@atexit.register
def close_all() -> None:
    """This process is about to end, and has said what there is to say."""
    for one in list(_open):
        one.close()
