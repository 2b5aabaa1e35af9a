"""Environments in worker processes: shared memory, one byte per command, two groups of environments in flight at once.

Workers are plain subprocesses, so a user's script needs no `__main__` guard and all systems behave alike. A worker that
dies or raises ends the pool with an error that says so; a parent that dies takes its workers with it, however it dies.
"""

import os
import pickle
import select
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch

from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.distributed.process import framed, how_it_ended, launch, pipe_of, shut_down
from whorl.distributed.shared_memory import Block, Segment
from whorl.distributed.worker import (
    ARRAY_PREFIX,
    BUFFERS,
    FAILURE,
    LENGTH,
    MESSAGE,
    RESULT,
    Assignment,
    Slice,
    asked_for,
    read_exactly,
    write_all,
)
from whorl.envs.adapters.gymnasium import check_num_envs, to_arrays, to_spec, to_step, to_tensors
from whorl.envs.make import Source
from whorl.envs.spaces import Factory, Layout, nest, probe
from whorl.envs.stepping import Buffers
from whorl.envs.vector import Step, VectorEnv


class WorkerPool:
    """A `VectorEnv` over processes. A group's environments are contiguous: every worker's first half, then the second.

    Besides `step`, `send(group, action)` and `receive(group)` let one group step while the caller acts for the
    other; what `receive` returns stays valid until the same group's next `receive`. `install`, `start` and `collect`
    run a function inside the workers, next to the environments, with the shared `arrays` (name -> shape and dtype).
    """

    capturable = False

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        id: str,
        workers: int,
        arrays: dict[str, tuple[tuple[int, ...], str]] | None = None,
    ) -> None:
        if not 1 <= workers <= num_envs:
            raise EnvError(
                f"{workers} workers can't share {num_envs} environments; choose 1 to {num_envs} workers"
            )
        self.id = id
        self.layout = probe(factory)
        self.spec = to_spec(self.layout, num_envs)
        self.snapshots = self.layout.snapshots
        self.workers = workers
        self.groups = 2 if num_envs >= 2 * workers else 1
        self._slices = _split(num_envs, workers, self.groups)
        self._failed = ""
        """why the pool is of no more use"""
        self._running = ""
        """the task that was started and not collected"""

        segment = Segment(_blocks(self.layout, num_envs, arrays or {}))
        shared = segment.arrays
        self.arrays = asked_for(shared)
        """the shared arrays that were asked for, by name"""
        self._wire_buffers(shared)

        self._processes: list[subprocess.Popen[bytes]] = []
        self._finalizer = weakref.finalize(self, shut_down, self._processes, os.getpid())
        environment = cloudpickle.dumps((factory, self.layout))
        try:
            for _ in range(workers):
                self._processes.append(launch("whorl.distributed.worker", [segment.handle]))
            self._commands = [pipe_of(process.stdin) for process in self._processes]
            self._answers = [pipe_of(process.stdout) for process in self._processes]
            path = [entry or str(Path.cwd()) for entry in sys.path]
            for worker, slices in enumerate(self._slices):
                self._write(worker, framed(path))
                told = Assignment(environment, slices, segment.blocks, segment.handle)
                self._write(worker, framed(told))
            self._results(range(workers))
        finally:
            segment.release()

    def env_slice(self, group: int) -> slice:
        """The environments of a group on the global environment axis."""
        return slice(self._slices[0][group].start, self._slices[-1][group].stop)

    def reset(self, seed: int) -> Tree:
        self._settle()
        self._ask_all("reset", [seed] * self.workers)
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
        for worker, commands in enumerate(self._commands):
            try:
                os.write(commands, command)
            except OSError:
                self._died(worker)

    def receive(self, group: int) -> Step:
        """The results of a group's step, once all its environments are done."""
        if self._failed:
            raise EnvError(self._failed)
        if not self._flying[group]:
            raise EnvError(f"nothing was sent to group {group}; send actions before receiving")
        self._await(group)
        return _copy(self._parts[group][self._buffer[group]])

    def install(self, name: str, task: Callable[..., Any]) -> None:
        """Give every worker a function `task(num_envs, arrays, state, argument)` under a name; see `worker.Task`."""
        self._settle()
        self._ask_all("install", [(name, cloudpickle.dumps(task))] * self.workers)

    def start(self, name: str, arguments: list[Any]) -> None:
        """Run an installed task in every worker with its own (small) argument; `collect` waits for the results."""
        self._settle()
        if len(arguments) != self.workers:
            raise EnvError(f"{len(arguments)} arguments for {self.workers} workers; give one for each")
        if self._running:
            raise EnvError(f"task {self._running!r} is running; collect it before starting {name!r}")
        self._running = name
        for worker, argument in enumerate(arguments):
            self._write(worker, MESSAGE + framed(("run", (name, argument))))

    def collect(self, name: str) -> list[Any]:
        """What the task returned in each worker."""
        if self._running != name:
            raise EnvError(f"task {name!r} is not running; start it before collecting")
        self._running = ""
        return self._results(range(self.workers))

    def snapshot(self) -> dict[str, Any]:
        self._settle()
        found: list[Any] = [None] * self.spec.num_envs
        for slices, states in zip(self._slices, self._ask_all("snapshot", [None] * self.workers)):
            for env_index, state in zip(_numbers(slices), states):
                found[env_index] = to_tensors(state)
        return {"obs": self._current_obs(), "num_envs": found}

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        check_num_envs(snapshot, self.spec.num_envs)
        self._settle()
        per_worker = [
            [to_arrays(snapshot["num_envs"][env_index]) for env_index in _numbers(s)] for s in self._slices
        ]
        self._ask_all("restore", per_worker)
        self._buffer = [0] * self.groups
        tree.copy_(self._whole[0].obs, snapshot["obs"])
        return self._whole[0].obs

    def render(self, env_index: int = 0) -> np.ndarray | None:
        self._settle()
        owner = next(w for w, slices in enumerate(self._slices) if env_index in _numbers(slices))
        self._write(owner, MESSAGE + framed(("render", env_index)))
        return self._results([owner])[0]

    def close(self) -> None:
        """End the workers; safe to call twice, and called by itself at exit."""
        self._failed = self._failed or "the pool is closed; make a new one"
        self._finalizer()

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
            names = ("reward", "terminated", "truncated", "reset", "soft", "measures")
            whole = Buffers(obs, *(shared[name][buffer] for name in names))
            self._whole.append(to_step(layout, whole))
            for group, rows in enumerate(groups):
                self._parts[group].append(to_step(layout, whole[rows]))
        self._buffer = [0] * self.groups
        """which copy holds each group's latest results"""
        self._flying = [False] * self.groups
        self._arrived: list[set[int]] = [set() for _ in range(self.workers)]
        """answers that nobody has taken yet"""

    def _current_obs(self) -> Tree:
        parts = [self._parts[group][self._buffer[group]].obs for group in range(self.groups)]
        return tree.cat(parts)

    def _await(self, group: int) -> None:
        buffer = (self._buffer[group] + 1) % BUFFERS
        expected = group * BUFFERS + buffer
        for worker, answers in enumerate(self._answers):
            arrived = self._arrived[worker]
            while expected not in arrived:
                arrived.add(self._answer(worker, answers))
        # Only now, so that an interrupted wait can be taken up again.
        for arrived in self._arrived:
            arrived.discard(expected)
        self._flying[group] = False
        self._buffer[group] = buffer

    def _answer(self, worker: int, answers: int) -> int:
        answer = os.read(answers, 1)
        if not answer:
            self._died(worker)
        if answer == FAILURE:
            self._raise(worker)
        return answer[0]

    def _settle(self) -> None:
        """Messages travel only when no group is stepping: its answers would come in between."""
        if self._failed:
            raise EnvError(self._failed)
        for group, flying in enumerate(self._flying):
            if flying:
                self._await(group)

    def _ask_all(self, name: str, arguments: list[Any]) -> list[Any]:
        if self._running:
            raise EnvError(f"task {self._running!r} is running in the workers; collect it first")
        for worker, argument in enumerate(arguments):
            self._write(worker, MESSAGE + framed((name, argument)))
        return self._results(range(self.workers))

    def _results(self, workers: Any) -> list[Any]:
        """The framed answers of several workers, taken as they come, so that a dead one is noticed at once."""
        found: dict[int, Any] = {}
        waiting = {self._answers[worker]: worker for worker in workers}
        try:
            while waiting:
                for answers in _ready(list(waiting)):
                    worker = waiting.pop(answers)
                    kind = os.read(answers, 1)
                    if kind == FAILURE:
                        self._raise(worker)
                    found[worker] = self._payload(worker) if kind == RESULT else self._died(worker)
        except KeyboardInterrupt:
            # Answers may be half read: nothing that comes after them could be trusted.
            self._failed = "the pool was interrupted while its workers answered; make a new one"
            self.close()
            raise
        return [found[worker] for worker in workers]

    def _payload(self, worker: int) -> Any:
        head = read_exactly(self._answers[worker], LENGTH.size)
        body = None if head is None else read_exactly(self._answers[worker], LENGTH.unpack(head)[0])
        if body is None:
            self._died(worker)
        return pickle.loads(body)

    def _write(self, worker: int, body: bytes) -> None:
        try:
            write_all(self._commands[worker], body)
        except OSError:
            self._died(worker)

    def _raise(self, worker: int) -> NoReturn:
        trace = str(self._payload(worker)).strip()
        last = trace.rpartition("\n")[2]
        self._fail(f"the environment failed in {self._place(worker)} with {last}\n{trace}")

    def _died(self, worker: int) -> NoReturn:
        if self._failed:
            raise EnvError(self._failed)
        how = how_it_ended(self._processes[worker])
        self._fail(
            f"{self._place(worker)} {how}; see its messages above, or step fewer environments if memory ran out"
        )

    def _fail(self, message: str) -> NoReturn:
        self._failed = message
        self.close()
        raise EnvError(message)

    def _place(self, worker: int) -> str:
        num_envs = ", ".join(str(env_index) for env_index in _numbers(self._slices[worker]))
        return f"worker {worker} (environments {num_envs})"


def _split(num_envs: int, workers: int, groups: int) -> list[list[Slice]]:
    """For each worker its slice of each group; the global environment axis lists group 0 of all workers, then group 1."""
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


def _blocks(layout: Layout, num_envs: int, arrays: dict[str, tuple[tuple[int, ...], str]]) -> list[Block]:
    obs = [
        Block(f"obs/{i}", (BUFFERS, num_envs, *x.shape), x.dtype) for i, x in enumerate(layout.observation)
    ]
    action = [Block(f"action/{i}", (num_envs, *x.shape), x.dtype) for i, x in enumerate(layout.action)]
    flags = [
        Block(name, (BUFFERS, num_envs), "bool") for name in ("terminated", "truncated", "reset", "soft")
    ]
    reward = Block("reward", (BUFFERS, num_envs), "float32")
    measures = Block("measures", (BUFFERS, num_envs, len(layout.measures)), "float32")
    asked = [Block(ARRAY_PREFIX + name, shape, str(np.dtype(kind))) for name, (shape, kind) in arrays.items()]
    return [*obs, *action, reward, *flags, measures, *asked]


def _ready(pipes: list[int]) -> list[int]:
    """Those that can be read without waiting; where pipes can't be polled, just the first."""
    if not hasattr(select, "poll"):
        return pipes[:1]
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    return [pipe for pipe, _ in poll.poll()]


def _copy(step: Step) -> Step:
    return Step(step.obs, step.reward, step.terminated, step.truncated, step.reset, step.soft, step.measures)


def make_vector(
    source: Source, num_envs: int, device: torch.device | str = "cpu", workers: int = 0, compile: bool = False
) -> VectorEnv:
    """`num_envs` copies of an environment, stepped by `workers` processes where that is worth it, else by this one."""
    if workers > 0 and not source.batched:
        return WorkerPool(source.factory, num_envs, source.id, workers=min(workers, num_envs))
    return source.vector(num_envs, device, compile)
