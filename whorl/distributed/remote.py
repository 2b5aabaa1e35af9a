"""A process that holds one object and runs its methods in the order it is asked: an actor, a shard of replay.

Started as `python -m whorl.distributed.remote`. It dies with its parent, however that dies; a parent hears of its death, or of
what it raised, where it waits for an answer.
"""

import gc
import os
import pickle
import select
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from whorl.core.errors import EnvError
from whorl.distributed.process import framed, how_it_ended, launch, pipe_of, shut_down
from whorl.distributed.worker import (
    FAILURE,
    LENGTH,
    MESSAGE,
    QUIT,
    RESULT,
    begin,
    leave,
    read_exactly,
    write_all,
)


class DiedError(EnvError):
    """A process is gone."""


class RemoteObject:
    """The parent's side.

    Args:
        name: what errors call it.
        make: makes the object, with `arguments`, over there.
        handles: of the shared segments that it will open.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], arguments: Sequence[Any], handles: Sequence[int | str] = ()
    ) -> None:
        self.name = name
        self._process = launch(__name__, handles)
        self._finalizer = weakref.finalize(self, shut_down, [self._process], os.getpid())
        self._commands, self._answers = pipe_of(self._process.stdin), pipe_of(self._process.stdout)
        body = cloudpickle.dumps((make, tuple(arguments)))
        self._write(framed([entry or str(Path.cwd()) for entry in sys.path]) + LENGTH.pack(len(body)) + body)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Can be read from when `take` need not wait."""
        return self._answers

    def post(self, method: str, *arguments: Any) -> None:
        """Ask for a call; many may be under way. The first answer says that the object was made."""
        self._write(MESSAGE + framed((method, arguments)))

    def take(self) -> Any:
        """The oldest answer that was not taken yet."""
        kind = os.read(self._answers, 1)
        head = read_exactly(self._answers, LENGTH.size) if kind else None
        body = None if head is None else read_exactly(self._answers, LENGTH.unpack(head)[0])
        if body is None:
            self._died()
        answer = pickle.loads(body)
        if kind == FAILURE:
            trace = str(answer).strip()
            raise EnvError(f"{self.name} failed with {trace.rpartition(chr(10))[2]}\n{trace}")
        return answer

    def ask(self, method: str, *arguments: Any) -> Any:
        """A call, and its answer."""
        self.post(method, *arguments)
        return self.take()

    def close(self) -> None:
        """End it; safe to call twice, and called by itself at exit."""
        self._finalizer()

    def _write(self, body: bytes) -> None:
        try:
            write_all(self._commands, body)
        except OSError:
            self._died()

    def _died(self) -> NoReturn:
        if not self._finalizer.alive:
            raise DiedError(f"{self.name} is closed; start another")
        raise DiedError(
            f"{self.name} {how_it_ended(self._process)}; see its messages above, or use fewer of them"
        )


def readable(servants: Sequence[RemoteObject], seconds: float) -> list[RemoteObject]:
    """Those whose answer is there, at the latest after so many seconds."""
    if not servants:
        return []
    if not hasattr(select, "poll"):
        return list(servants[:1])
    poll = select.poll()
    found = {remote_object.fileno(): remote_object for remote_object in servants}
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    return [found[descriptor] for descriptor, _ in poll.poll(seconds * 1000)]


def main() -> None:
    """The child's side."""
    channel = begin()
    try:
        make, arguments = channel.receive()
        held = make(*arguments)
    except BaseException:
        channel.send(FAILURE, traceback.format_exc())
        return
    gc.freeze()  # what exists now lives as long as the process: the collector need not look at it again
    channel.send(RESULT, None)
    while True:
        command = os.read(channel.commands, 1)
        if not command:
            leave()
        if command == QUIT:
            held.close()
            return
        try:
            name, arguments = channel.receive()
            channel.send(RESULT, getattr(held, name)(*arguments))
        except BrokenPipeError:
            leave()
        # Whatever it raises, the parent has to hear of it: it is the one who can tell the user.
        except BaseException:
            channel.send(FAILURE, traceback.format_exc())


if __name__ == "__main__":
    main()
