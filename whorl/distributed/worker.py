"""The child side of the process pool: a slice of environments, stepped on command. Started as `python -m whorl.distributed.worker`.

One byte on stdin steps a group of environments, the same byte on stdout says that it is done; anything rarer is a framed
message. Imports no torch, so that a worker starts fast; a task that needs torch imports it itself.
"""

import gc
import os
import pickle
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from whorl.distributed.shared_memory import Block, Segment

ARRAY_PREFIX = "user/"
MESSAGE, RESULT, FAILURE, QUIT = b"m", b"=", b"!", b"q"
LENGTH = struct.Struct("<Q")
BUFFERS = 2
"""copies of the result buffers: one is being written while the caller still reads the other"""


@dataclass(frozen=True)
class Slice:
    """The environments of one group that one worker owns: `start` on the global environment axis, `first` among the worker's own."""

    start: int
    stop: int
    first: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Assignment:
    """What a worker is told at its start."""

    environment: bytes
    """factory and layout, pickled"""
    slices: list[Slice]
    blocks: list[Block]
    handle: int | str


Task: TypeAlias = Callable[[Any, dict[str, np.ndarray], dict[str, Any], Any], Any]
"""`task(num_envs, arrays, state, argument)`: the worker's `EnvStepper`, the shared arrays by name, a dict that stays with the
worker between calls, and what `start` was given for this worker."""


class Channel:
    """Two pipes to the parent, away from stdin and stdout, so that an environment's prints can't corrupt them."""

    def __init__(self) -> None:
        self.commands = os.dup(0)
        self.answers = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def send(self, kind: bytes, payload: Any) -> None:
        body = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        write_all(self.answers, kind + LENGTH.pack(len(body)) + body)

    def receive(self) -> Any:
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return pickle.loads(self._read(length))

    def _read(self, size: int) -> bytes:
        body = read_exactly(self.commands, size)
        if body is None:
            leave()
        return body


class Worker:
    def __init__(self, channel: Channel, assignment: Assignment) -> None:
        # Here and not above: the parent's sys.path has to be in place first.
        from whorl.envs.stepping import Buffers, EnvStepper

        factory, layout = pickle.loads(assignment.environment)
        self.channel = channel
        self.segment = Segment(assignment.blocks, assignment.handle)
        arrays = self.segment.arrays
        numbers = [env_index for part in assignment.slices for env_index in range(part.start, part.stop)]
        self.num_envs = EnvStepper(factory, layout, numbers)
        self.slices = assignment.slices
        self.arrays = asked_for(arrays)
        self.state: dict[str, Any] = {}
        self.tasks: dict[str, Task] = {}
        action = [arrays[f"action/{index}"] for index in range(len(layout.action))]
        self.actions = [[leaf[part.rows] for leaf in action] for part in self.slices]
        self.outputs = []
        for buffer in range(BUFFERS):
            obs = [arrays[f"obs/{index}"][buffer] for index in range(len(layout.observation))]
            names = ("reward", "terminated", "truncated", "reset", "soft", "measures")
            whole = Buffers(obs, *(arrays[name][buffer] for name in names))
            self.outputs.append([whole[part.rows] for part in self.slices])

    def serve(self) -> None:
        commands, answers = self.channel.commands, self.channel.answers
        jobs = []
        for group, part in enumerate(self.slices):
            for buffer in range(BUFFERS):
                jobs.append((self.actions[group], self.outputs[buffer][group], part.first))
        step, limit = self.num_envs.step, len(jobs)
        while True:
            command = os.read(commands, 1)
            if not command:
                leave()
            try:
                if command[0] < limit:
                    step(*jobs[command[0]])
                    os.write(answers, command)
                elif command == QUIT:
                    self.num_envs.close()
                    return
                else:
                    name, argument = self.channel.receive()
                    self.channel.send(RESULT, getattr(self, f"do_{name}")(argument))
            except BrokenPipeError:
                leave()
            # Whatever an environment raises, the parent has to hear of it: it is the one who can tell the user.
            except BaseException:
                self.channel.send(FAILURE, traceback.format_exc())

    def do_reset(self, seed: int) -> None:
        for part, out in zip(self.slices, self.outputs[0]):
            self.num_envs.reset(seed, out, part.first)

    def do_snapshot(self, _: None) -> list[dict[str, Any]]:
        return self.num_envs.snapshot()

    def do_restore(self, snapshots: list[dict[str, Any]]) -> None:
        self.num_envs.restore(snapshots)

    def do_render(self, env_index: int) -> np.ndarray | None:
        return self.num_envs.render(self.num_envs.numbers.index(env_index))

    def do_install(self, named: tuple[str, bytes]) -> None:
        name, task = named
        self.tasks[name] = pickle.loads(task)

    def do_run(self, named: tuple[str, Any]) -> Any:
        name, argument = named
        return self.tasks[name](self.num_envs, self.arrays, self.state, argument)


def asked_for(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a segment that the pool's user asked for, under the names they gave."""
    return {name.removeprefix(ARRAY_PREFIX): x for name, x in arrays.items() if name.startswith(ARRAY_PREFIX)}


def read_exactly(descriptor: int, size: int) -> bytes | None:
    """`size` bytes, or None where the other side is gone."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(descriptor: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]


def leave() -> NoReturn:
    """The parent is gone: nothing is left to do, and an environment that hangs on closing must not keep us."""
    os._exit(0)


def _watch(commands: int) -> None:
    """Leave when the parent dies even in a long step. It asks for no events, so it hears only of a hang-up."""
    poll = select.poll()
    poll.register(commands, 0)
    poll.poll()
    leave()


def begin() -> Channel:
    """A child's first steps: it hears of nothing but its parent, dies with it, and imports from where that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    channel = Channel()
    if hasattr(select, "poll"):
        threading.Thread(target=_watch, args=(channel.commands,), daemon=True).start()
    sys.path[:] = channel.receive()
    return channel


def main() -> None:
    channel = begin()
    try:
        worker = Worker(channel, channel.receive())
    except BaseException:
        channel.send(FAILURE, traceback.format_exc())
        return
    gc.freeze()  # what exists now lives as long as the worker: the collector need not look at it again
    channel.send(RESULT, None)
    worker.serve()


if __name__ == "__main__":
    main()
