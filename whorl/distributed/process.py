"""Remote objects in processes of this machine.

A process is started as `python -m whorl.distributed.process`, so a user's script needs no `__main__` guard and all
systems behave alike. It gets its object through shared memory and its calls through a pipe; it ends when its parent
does, however that ends. This module does not import torch, because environment workers start without it.
"""

import faulthandler
import gc
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import cloudpickle
import numpy as np

from whorl.core.errors import EnvError
from whorl.distributed.remote import MISTAKES, RemoteDied, RemoteError
from whorl.distributed.shared_memory import ArraySpec, SharedSegment

if TYPE_CHECKING:
    from torch import Tensor

    from whorl.distributed.tensors import SharedSlots, SharedWeights

MESSAGE, RESULT, FAILURE, QUIT = b"m", b"=", b"!", b"q"
LENGTH = struct.Struct("<Q")
CLOSE_TIMEOUT = 2.0
"""seconds that a process has to close its object before it is killed"""

# The parent's side


class ProcessRemote:
    """An object in a child process; see `Remote`."""

    node = ""

    def __init__(self, name: str, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.name = name
        path = [entry or str(Path.cwd()) for entry in sys.path]
        body = pickle.dumps((path, cloudpickle.dumps((make, tuple(arguments)))))
        # Through a pipe a large object would block this process until the child has started.
        setup = SharedSegment([ArraySpec("body", (len(body),), "uint8")])
        setup.arrays["body"][:] = np.frombuffer(body, np.uint8)
        try:
            self.process = _launch(str(setup.handle), len(body), (*_handles(arguments), setup.handle))
        finally:
            setup.release()
        self._setup: SharedSegment | None = setup
        self._finalizer = weakref.finalize(self, _shut_down, [self.process], os.getpid())
        assert self.process.stdin is not None and self.process.stdout is not None
        self.commands, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()

    @property
    def pid(self) -> int:
        return self.process.pid

    def post(self, method: str, *arguments: Any) -> None:
        try:
            _write(self.commands, MESSAGE + _framed((method, arguments)))
        except OSError:
            self.raise_died()

    def take(self, timeout: float | None = None) -> Any:
        if timeout is not None and not wait([self], timeout):
            raise RemoteError(f"{self.name} has not answered for {timeout:.0f} seconds")
        kind = os.read(self.answers, 1)
        if not kind:
            self.raise_died()
        return self.result(kind)

    def result(self, kind: bytes) -> Any:
        """The rest of an answer whose first byte is `kind`."""
        self._setup = None
        head = _read(self.answers, LENGTH.size)
        body = None if head is None else _read(self.answers, LENGTH.unpack(head)[0])
        if body is None:
            self.raise_died()
        answer = pickle.loads(body)
        if kind == FAILURE:
            message, details = answer
            raise RemoteError(f"{self.name}{message}", details)
        return answer

    def raise_died(self) -> NoReturn:
        """Raise for a process that no longer answers."""
        if not self._finalizer.alive:
            raise RemoteDied(f"{self.name} is closed")
        try:
            code = self.process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            how = "closed its pipe"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
        raise RemoteDied(f"{self.name} {how}; see its messages above; if memory ran out, use fewer processes")

    def close(self) -> None:
        close_all([self])


P = TypeVar("P", bound=ProcessRemote)


def wait(remotes: Sequence[P], timeout: float | None = None) -> list[P]:
    """Those whose next result is there; where pipes can't be polled, the first one."""
    if not hasattr(select, "poll"):
        return list(remotes[:1])
    poll = select.poll()
    found = {remote.answers: remote for remote in remotes}
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    return [found[at] for at, _ in poll.poll(None if timeout is None else timeout * 1000)]


def close_all(remotes: Iterable[ProcessRemote]) -> None:
    """End several processes, which close their objects at the same time."""
    _shut_down([remote.process for remote in remotes if remote._finalizer.detach()], os.getpid())


class ProcessBackend:
    """Runs remote objects as child processes; see `Backend`."""

    dashboard = ""
    host = "127.0.0.1"
    gpus = None

    def __init__(self) -> None:
        self._remotes: weakref.WeakSet[ProcessRemote] = weakref.WeakSet()
        self._segments: list[SharedSegment] = []

    def start(
        self, name: str, make: Callable[..., Any], *arguments: Any, cpus: float = 0, gpus: float = 0
    ) -> ProcessRemote:
        remote = ProcessRemote(name, make, arguments)
        self._remotes.add(remote)
        return remote

    def wait(self, remotes: Sequence[Any], timeout: float) -> list[Any]:
        return wait(remotes, timeout)

    def slots(self, layout: Any, count: int, direct: bool = False) -> "SharedSlots":
        from whorl.distributed.tensors import SharedSlots  # imports torch

        slots = SharedSlots(layout, count)
        self._segments.append(slots.segment)
        return slots

    def weights(self, tensors: "list[Tensor]") -> "SharedWeights":
        from whorl.distributed.tensors import SharedWeights  # imports torch

        weights = SharedWeights(tensors)
        self._segments.append(weights.segment)
        return weights

    def resources(self) -> str:
        return f"this machine has {os.cpu_count()} CPUs"

    def close(self) -> None:
        close_all(list(self._remotes))
        for segment in self._segments:
            segment.release()


def _launch(setup: str, size: int, handles: Sequence[int | str]) -> "subprocess.Popen[bytes]":
    environ = dict(os.environ)
    here = str(Path(__file__).parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environ.get("PYTHONPATH")]))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        # The processes are the parallelism; threads inside them would compete for the cores.
        environ.setdefault(name, "1")
    command = [sys.executable, "-m", "whorl.distributed.process", setup, str(size)]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "bufsize": 0,
        "env": environ,
    }
    # A session (or group) of its own keeps a Ctrl-C at the terminal away from the child from its first moment.
    if sys.platform == "win32":
        return subprocess.Popen(command, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP, **pipes)
    return subprocess.Popen(command, start_new_session=True, pass_fds=[int(h) for h in handles], **pipes)


def _shut_down(processes: "list[subprocess.Popen[bytes]]", owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the parent must not end the parent's children
    for process in processes:
        with suppress(OSError):  # it may be gone already
            assert process.stdin is not None
            os.write(process.stdin.fileno(), QUIT)
    deadline = time.monotonic() + CLOSE_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _handles(arguments: Sequence[Any]) -> list[int | str]:
    """Handles of the shared memory among the arguments, and in lists among them."""
    each = [item for value in arguments for item in (value if isinstance(value, list) else [value])]
    return [handle for item in each for handle in getattr(item, "handles", ())]


def _framed(message: Any) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def _read(descriptor: int, size: int) -> bytes | None:
    """`size` bytes, or None if the other side is gone."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(descriptor: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]


# The child's side


class _Channel:
    """Pipes to the parent, away from stdin and stdout, so that what an environment prints can't corrupt them."""

    def __init__(self) -> None:
        self.commands, self.answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def send(self, kind: bytes, answer: Any) -> None:
        _write(self.answers, kind + _framed(answer))

    def receive(self) -> Any:
        head = _read(self.commands, LENGTH.size)
        body = None if head is None else _read(self.commands, LENGTH.unpack(head)[0])
        return _leave() if body is None else pickle.loads(body)


def failure_of(error: BaseException) -> tuple[str, str]:
    """An error as text, which can always be sent: what follows the name of the object that failed, and the details."""
    if isinstance(error, MISTAKES):
        return f": {error.message}", error.details
    trace = "".join(traceback.format_exception(error)).strip()
    return f" failed with {trace.rpartition(chr(10))[2]}", trace


def _report_hang(channel: _Channel, error: EnvError) -> NoReturn:
    """Runs in a thread: the main one does not return from the call that the parent waits for."""
    channel.send(FAILURE, failure_of(error))
    os._exit(1)


def _leave() -> NoReturn:
    """The parent is gone; an environment that hangs while closing must not keep this process alive."""
    os._exit(0)


def _leave_with_parent(commands: int) -> None:
    """Runs in a thread: leave when the parent dies, even during a long step."""
    poll = select.poll()
    poll.register(commands, 0)  # no events are requested, so only a hang-up ends the wait
    poll.poll()
    _leave()


def _make(handle: str, size: int) -> Any:
    setup = SharedSegment(
        [ArraySpec("body", (size,), "uint8")], int(handle) if handle.isdecimal() else handle
    )
    sys.path[:], packed = pickle.loads(setup.arrays["body"].data)
    setup.release()
    make, arguments = pickle.loads(packed)
    return make(*arguments)


def main() -> None:
    """Make the object, then run its methods in the order in which they are requested.

    An object may have `commands`, a list of functions without arguments or results: the command byte n runs the n-th
    and is sent back when it is done. Environment workers step this way, without a message to pack. Its method
    `watch_hangs`, if there is one, gets the function that reports a call which does not return.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    faulthandler.enable()
    channel = _Channel()
    if hasattr(select, "poll"):
        threading.Thread(target=_leave_with_parent, args=(channel.commands,), daemon=True).start()
    try:
        held = _make(sys.argv[1], int(sys.argv[2]))
    except BaseException as error:
        channel.send(FAILURE, failure_of(error))
        return
    if hasattr(held, "watch_hangs"):
        held.watch_hangs(partial(_report_hang, channel))
    gc.freeze()  # what exists now lives as long as the process: the garbage collector need not look at it again
    channel.send(RESULT, None)
    commands, limit = getattr(held, "commands", []), len(getattr(held, "commands", []))
    while True:
        command = os.read(channel.commands, 1)
        if not command:
            _leave()
        try:
            if command[0] < limit:
                commands[command[0]]()
                os.write(channel.answers, command)
            elif command == QUIT:
                held.close()
                return
            else:
                name, arguments = channel.receive()
                channel.send(RESULT, getattr(held, name)(*arguments))
        except BrokenPipeError:
            _leave()
        # Whatever was raised is sent to the parent, which can report it.
        except BaseException as error:
            channel.send(FAILURE, failure_of(error))


if __name__ == "__main__":
    main()
