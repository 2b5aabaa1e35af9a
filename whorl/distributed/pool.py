"""Environments in worker processes: shared memory, one byte per command, two groups of environments in flight at once.

A worker that dies or raises ends the pool with an error that names it; a parent that dies takes its workers with it.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch

from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.distributed.hang_timer import GRACE, AwakeClock
from whorl.distributed.process import FAILURE, ProcessRemote, close_all, wait
from whorl.distributed.remote import RemoteError
from whorl.distributed.shared_memory import ArraySpec, SharedSegment
from whorl.distributed.worker import ARRAY_PREFIX, BUFFERS, EnvWorker, Slice, user_arrays
from whorl.envs.adapters.gymnasium import check_num_envs, to_arrays, to_spec, to_step, to_tensors
from whorl.envs.make import Source
from whorl.envs.mistakes import not_sendable
from whorl.envs.spaces import Factory, Layout, nest, probe
from whorl.envs.stepping import Buffers
from whorl.envs.vector import Step, VectorEnv

WATCH_SECONDS = 0.2
"""time between two looks at the progress of workers"""
MOST_BETWEEN = 5.0
"""what counts of the time between two looks: if it was longer, this process was stopped"""


class WorkerPool:
    """A `VectorEnv` over processes. A group's environments are contiguous: every worker's first half, then the second.

    Besides `step`, `send(group, action)` and `receive(group)` let one group step while the caller acts for the
    other; what `receive` returns stays valid until the same group's next `receive`. `attach` makes an object inside
    each worker, next to the environments and the shared `arrays` (name -> shape and dtype), and `start` and `collect`
    call its methods.

    Args:
        timeout: seconds within which each step has to return; 0: no limit. Workers report this themselves; the pool
            looks for those that can't, because they are stopped.
    """

    capturable = False
    players = 1

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        id: str,
        workers: int,
        arrays: dict[str, tuple[tuple[int, ...], str]] | None = None,
        timeout: float = 0.0,
    ) -> None:
        if not 1 <= workers <= num_envs:
            raise EnvError(
                f"{workers} workers can't share {num_envs} environments; choose 1 to {num_envs} workers"
            )
        self.id = id
        self.layout = probe(factory)
        self.spec = to_spec(self.layout, num_envs)
        self.snapshots = self.layout.snapshots
        self.workers, self.timeout = workers, timeout
        self.groups = 2 if num_envs >= 2 * workers else 1
        self._slices = _split(num_envs, workers, self.groups)
        self._failed = ""
        """why the pool can no longer be used"""
        self._running = ""
        """the method that was started and not collected"""
        segment = SharedSegment(_array_specs(self.layout, num_envs, arrays or {}))
        self.arrays = user_arrays(segment.arrays)
        """the shared arrays that were requested, by name"""
        self._wire_buffers(segment.arrays)
        try:
            environment = cloudpickle.dumps((factory, self.layout))
        except Exception as error:  # pickling runs arbitrary code of the user's objects
            segment.release()
            raise EnvError(f"{not_sendable(error)}, or set workers to 0") from None
        self._remotes: list[ProcessRemote] = []
        try:
            for worker, slices in enumerate(self._slices):
                name = f"worker {worker} (environments {', '.join(map(str, _numbers(slices)))})"
                self._remotes.append(ProcessRemote(name, EnvWorker, (environment, slices, segment, timeout)))
            self._take_all()
        finally:
            segment.release()

    def env_slice(self, group: int) -> slice:
        """The environments of a group on the axis of all environments."""
        return slice(self._slices[0][group].start, self._slices[-1][group].stop)

    def reset(self, seed: int) -> Tree:
        self._call("reset", [(seed,)] * self.workers)
        self._buffer = [0] * self.groups
        return self._whole[0].obs

    def step(self, action: Tree) -> Step:
        self._settle()
        # All groups write the same buffer, so that one view spans them.
        self._buffer = [self._buffer[0]] * self.groups
        for group in range(self.groups):
            self.send(group, tree.index(action, self.env_slice(group)))
        for group in range(self.groups):
            self._await(group)
        return _copy(self._whole[self._buffer[0]])

    def send(self, group: int, action: Tree) -> None:
        """Start a step of a group's environments with canonical actions [environments of the group, ...]."""
        if self._failed:
            raise EnvError(self._failed)
        if self._flying[group]:
            raise EnvError(f"group {group} is stepping already; receive it before sending again")
        tree.copy_(self._action_of[group], action)
        buffer = (self._buffer[group] + 1) % BUFFERS
        command = bytes([group * BUFFERS + buffer])
        self._flying[group] = True
        for remote in self._remotes:
            try:
                os.write(remote.commands, command)
            except OSError:
                self._fail(remote.raise_died)

    def receive(self, group: int) -> Step:
        """The results of a group's step, once all its environments are done."""
        if self._failed:
            raise EnvError(self._failed)
        if not self._flying[group]:
            raise EnvError(f"nothing was sent to group {group}; send actions before receiving")
        self._await(group)
        return _copy(self._parts[group][self._buffer[group]])

    def attach(self, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Make an object `make(stepper, arrays, *arguments[worker])` in every worker; see `EnvWorker`."""
        self._call("attach", [(cloudpickle.dumps((make, given)),) for given in arguments])

    def start(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method of the attached object in every worker; `collect` waits for the results."""
        self._settle()
        if len(arguments) != self.workers:
            raise EnvError(f"{len(arguments)} arguments for {self.workers} workers; give one for each")
        if self._running:
            raise EnvError(f"{self._running!r} is running; collect it before starting {method!r}")
        self._running = method
        self._post("call", [(method, *given) for given in arguments])

    def collect(
        self,
        method: str,
        progress: np.ndarray | None = None,
        watch: Callable[[], None] | None = None,
    ) -> list[Any]:
        """What the method returned in each worker.

        Args:
            progress: a shared array in which each worker notes that it has made another step.
            watch: called a few times a second while workers are awaited.
        """
        if self._running != method:
            raise EnvError(f"{method!r} is not running; start it before collecting")
        self._running = ""
        return self._take_all(progress=progress, watch=watch)

    def snapshot(self) -> dict[str, Any]:
        found: list[Any] = [None] * self.spec.num_envs
        for slices, states in zip(self._slices, self._call("snapshot", [()] * self.workers)):
            if isinstance(states, str):
                raise EnvError(states)
            for env_index, state in zip(_numbers(slices), states):
                found[env_index] = to_tensors(state)
        return {"obs": self._current_obs(), "num_envs": found}

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        check_num_envs(snapshot, self.spec.num_envs)
        states = [to_arrays(state) for state in snapshot["num_envs"]]
        self._call("restore", [([states[number] for number in _numbers(part)],) for part in self._slices])
        self._buffer = [0] * self.groups
        tree.copy_(self._whole[0].obs, snapshot["obs"])
        return self._whole[0].obs

    def render(self, env_index: int = 0) -> np.ndarray | None:
        self._settle()
        owner = next(w for w, slices in enumerate(self._slices) if env_index in _numbers(slices))
        self._post("render", [(env_index,)], [self._remotes[owner]])
        return self._take_all([self._remotes[owner]])[0]

    def close(self) -> None:
        """End the workers; safe to call twice, and called by itself at exit."""
        self._failed = self._failed or "the pool is closed; make a new one"
        close_all(self._remotes)

    def _wire_buffers(self, shared: dict[str, np.ndarray]) -> None:
        """Views of the shared memory as tensors: whole and per group, for each copy of the buffers."""
        layout = self.layout
        action = [torch.from_numpy(shared[f"action/{index}"]) for index in range(len(layout.action))]
        groups = [self.env_slice(group) for group in range(self.groups)]
        self._action_of = [nest(layout.action, [leaf[rows] for leaf in action]) for rows in groups]
        self._whole: list[Step] = []
        self._parts: list[list[Step]] = [[] for _ in groups]
        for buffer in range(BUFFERS):
            obs = [shared[f"obs/{index}"][buffer] for index in range(len(layout.observation))]
            names = ("reward", "terminated", "truncated", "reset", "soft", "measures", "cells")
            whole = Buffers(obs, *(shared[name][buffer] for name in names))
            self._whole.append(to_step(layout, whole))
            for group, rows in enumerate(groups):
                self._parts[group].append(to_step(layout, whole[rows]))
        self._buffer = [0] * self.groups
        """which copy holds each group's latest results"""
        self._flying = [False] * self.groups
        self._arrived: list[set[int]] = [set() for _ in range(self.workers)]
        """commands that are done and were not received yet"""

    def _current_obs(self) -> Tree:
        return tree.cat([self._parts[group][self._buffer[group]].obs for group in range(self.groups)])

    def _await(self, group: int) -> None:
        buffer = (self._buffer[group] + 1) % BUFFERS
        expected = group * BUFFERS + buffer
        for remote, arrived in zip(self._remotes, self._arrived):
            while expected not in arrived:
                if self.timeout and not _answers(remote, self.timeout + 2 * GRACE):
                    self._hangs(remote)
                answer = os.read(remote.answers, 1)
                if not answer or answer == FAILURE:
                    self._fail(remote.raise_died if not answer else partial(remote.result, answer))
                arrived.add(answer[0])
        # Only now, so that an interrupted wait can be taken up again.
        for arrived in self._arrived:
            arrived.discard(expected)
        self._flying[group] = False
        self._buffer[group] = buffer

    def _settle(self) -> None:
        """Wait for all groups: the results of calls must not mix with those of steps."""
        if self._failed:
            raise EnvError(self._failed)
        for group, flying in enumerate(self._flying):
            if flying:
                self._await(group)

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._settle()
        if self._running:
            raise EnvError(f"{self._running!r} is running in the workers; collect it first")
        self._post(method, arguments)
        return self._take_all()

    def _post(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        remotes: Sequence[ProcessRemote] | None = None,
    ) -> None:
        for remote, given in zip(remotes or self._remotes, arguments):
            try:
                remote.post(method, *given)
            except RemoteError as error:
                self._end(error)

    def _take_all(
        self,
        remotes: Sequence[ProcessRemote] | None = None,
        progress: np.ndarray | None = None,
        watch: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Results of several workers, taken as they come, so that a dead one is noticed at once."""
        remotes = remotes or self._remotes
        found: dict[str, Any] = {}
        stalls = StallDetector(progress, self.timeout and self.timeout + 2 * GRACE)
        try:
            while len(found) < len(remotes):
                waiting = [remote for remote in remotes if remote.name not in found]
                for remote in wait(waiting, None if progress is None else WATCH_SECONDS):
                    found[remote.name] = remote.take()
                if watch is not None:
                    watch()
                for number in stalls.found():
                    if remotes[number].name not in found:
                        self._hangs(remotes[number])
        except RemoteError as error:
            self._end(error)
        except KeyboardInterrupt:
            # Answers may be half read: those that follow could not be trusted.
            self._failed = "the pool was interrupted while its workers answered; make a new one"
            self.close()
            raise
        return [found[remote.name] for remote in remotes]

    def _hangs(self, remote: ProcessRemote) -> NoReturn:
        if os.name == "posix":  # it prints a traceback, even where its step holds Python's lock
            remote.process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                remote.process.wait(GRACE)
        remote.process.kill()
        self._end(
            RemoteError(
                f"{remote.name} did not answer within {self.timeout:g} seconds, the setting env_timeout"
            )
        )

    def _fail(self, failure: Callable[[], Any]) -> NoReturn:
        if self._failed:
            raise EnvError(self._failed)
        try:
            failure()
        except RemoteError as error:
            self._end(error)
        raise AssertionError("a failed worker raises")

    def _end(self, error: RemoteError) -> NoReturn:
        self._failed = self._failed or error.message
        self.close()
        raise EnvError(self._failed, error.details) from None


class StallDetector:
    """Finds workers whose `progress` has not changed for `timeout` seconds; 0: never."""

    def __init__(self, progress: np.ndarray | None, timeout: float) -> None:
        self._progress, self._timeout = progress, timeout
        self._clock = AwakeClock(MOST_BETWEEN)
        now = self._clock()
        self._seen = [] if progress is None or not timeout else [(value, now) for value in progress]

    def found(self) -> list[int]:
        now, stalled = self._clock(), []
        for number, (value, since) in enumerate(self._seen):
            assert self._progress is not None
            if self._progress[number] != value:
                self._seen[number] = (self._progress[number], now)
            elif now - since > self._timeout:
                stalled.append(number)
        return stalled


def _answers(remote: ProcessRemote, timeout: float) -> bool:
    """Whether it answers in time. A wait during which this process was stopped counts as one of several."""
    waits = ceil(timeout / MOST_BETWEEN)
    return any(wait([remote], timeout / waits) for _ in range(waits))


def _split(num_envs: int, workers: int, groups: int) -> list[list[Slice]]:
    """Each worker's slice of each group; the axis of all environments lists group 0 of all workers, then group 1."""
    counts = [num_envs // workers + (worker < num_envs % workers) for worker in range(workers)]
    parts = [[count // groups + (group < count % groups) for group in range(groups)] for count in counts]
    slices: list[list[Slice]] = [[] for _ in range(workers)]
    start = 0
    for group in range(groups):
        for worker in range(workers):
            stop = start + parts[worker][group]
            slices[worker].append(Slice(start, stop, sum(parts[worker][:group])))
            start = stop
    return slices


def _numbers(slices: list[Slice]) -> list[int]:
    return [env_index for part in slices for env_index in range(part.start, part.stop)]


def _array_specs(
    layout: Layout, num_envs: int, arrays: dict[str, tuple[tuple[int, ...], str]]
) -> list[ArraySpec]:
    obs = [
        ArraySpec(f"obs/{i}", (BUFFERS, num_envs, *x.shape), x.dtype)
        for i, x in enumerate(layout.observation)
    ]
    action = [ArraySpec(f"action/{i}", (num_envs, *x.shape), x.dtype) for i, x in enumerate(layout.action)]
    flags = [
        ArraySpec(name, (BUFFERS, num_envs), "bool") for name in ("terminated", "truncated", "reset", "soft")
    ]
    reward = ArraySpec("reward", (BUFFERS, num_envs), "float32")
    measures = ArraySpec("measures", (BUFFERS, num_envs, len(layout.measures)), "float32")
    asked = [
        ArraySpec(ARRAY_PREFIX + name, shape, str(np.dtype(kind))) for name, (shape, kind) in arrays.items()
    ]
    cells = ArraySpec("cells", (BUFFERS, num_envs), "int64")
    return [*obs, *action, reward, *flags, measures, cells, *asked]


def _copy(step: Step) -> Step:
    return replace(step)


def make_vector(
    source: Source,
    num_envs: int,
    device: torch.device | str = "cpu",
    workers: int = 0,
    compile: bool = False,
    timeout: float = 0.0,
) -> VectorEnv:
    """`num_envs` copies of an environment, stepped by `workers` processes where that is worth it, else by this one."""
    if workers > 0 and not source.batched:
        count = min(workers, num_envs)
        return WorkerPool(source.factory, num_envs, source.id, count, timeout=timeout)
    return source.vector(num_envs, device, compile)
