"""Actors as processes of this machine.

Weights go out through one block of shared memory, written once for all actors; rollouts come in as whole slabs, through
two buffers of each actor: while one is read the other is filled, and an actor whose buffers are both full waits, alone.
One that dies, or whose environment raises, is replaced, a bounded number of times in a row.
"""

import select
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from whorl import tree
from whorl.envs.make import Source
from whorl.envs.pool import WorkerPool
from whorl.envs.shared import Block, Segment
from whorl.errors import EnvError
from whorl.run.actors import ActorBody, Role, Slab
from whorl.run.collector import Storage
from whorl.run.sharing import array_of, nested, padded, views
from whorl.tree import Tree

BUFFERS = 2


class Fleet(Protocol):
    """Actors elsewhere."""

    lives: list[int]
    """how often each actor was replaced"""

    def poll(self, seconds: float) -> list[Slab]:
        """The rollouts that are there, at the latest after so many seconds; raises where no actor is left."""

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        """Let actors go on with these weights, or for now with random actions."""

    def release(self, slab: Slab) -> None:
        """A slab was copied, and its actor may overwrite it."""

    def alive(self) -> int:
        """How many actors are at work."""

    def stop(self) -> None:
        """End all actors; safe to call twice."""


class Weights:
    """One block of shared memory that a writer renews and any number of readers take whole, without a lock.

    Two copies take turns. `begun` is set before a copy is written and `done` after it: a reader whose copy may have
    been written meanwhile reads again.
    """

    def __init__(self, tensors: list[Tensor], handle: int | str | None = None) -> None:
        sizes = [padded(tensor) for tensor in tensors]
        blocks = [
            Block("begun", (1,), "int64"),
            Block("done", (1,), "int64"),
            Block("copies", (2, sum(sizes)), "uint8"),
        ]
        self.segment = Segment(blocks, handle)
        arrays = self.segment.arrays
        self._begun, self._done = arrays["begun"], arrays["done"]
        self._views = [views(torch.from_numpy(copy), tensors) for copy in arrays["copies"]]

    def write(self, tensors: list[Tensor], version: int) -> None:
        """Renew; versions count up by one, from 1."""
        self._begun[0] = version
        for into, tensor in zip(self._views[version % 2], tensors):
            into.copy_(tensor)
        self._done[0] = version

    def read(self, into: list[Tensor]) -> int:
        """Take the newest; its version, or 0 where there is none yet."""
        while True:
            version = int(self._done[0])
            if version == 0:
                return 0
            for tensor, value in zip(into, self._views[version % 2]):
                tensor.copy_(value)
            if int(self._begun[0]) - version < 2:
                return version


@dataclass
class Member:
    """An actor's process."""

    number: int
    pool: WorkerPool
    buffers: list[dict[str, Tree]]
    turn: int = 0
    """the buffer whose rollout comes next"""


@dataclass
class _Place:
    """Where an actor belongs: at work, or being started."""

    member: Member | None = None
    starting: "Future[Member] | None" = None
    failures: int = 0
    """in a row"""


class ProcessFleet:
    """`actors` processes with `lanes` lanes each.

    Args:
        seed: of an actor's life, by its number and the life's.
        restarts: failures in a row after which an actor is given up, and the run ends with what it said.
    """

    def __init__(
        self,
        source: Source,
        role: Role,
        actors: int,
        lanes: int,
        seed: Callable[[int, int], int],
        restarts: int = 3,
    ) -> None:
        self.source, self.role, self.lanes, self.seed, self.restarts = source, role, lanes, seed, restarts
        self.lives = [0] * actors
        self._random = False
        self._weights = Weights(role.agent.acting_tensors())
        self._layout = Storage.allocate(role.agent, lanes, role.steps).tensors
        self._packed = cloudpickle.dumps(role)
        self._threads = ThreadPoolExecutor(actors, thread_name_prefix="fleet")
        self._places: list[_Place] = []

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        self._weights.write(weights, version)
        self._random = random
        if not self._places:
            self._places = [_Place(starting=self._start(number)) for number in range(len(self.lives))]

    def alive(self) -> int:
        return sum(place.member is not None for place in self._places)

    def poll(self, seconds: float) -> list[Slab]:
        for number, place in enumerate(self._places):
            if place.starting is not None and (place.starting.done() or not self.alive()):
                self._arrived(number, place)
        waiting = {place.member.pool.answers(0): place.member for place in self._places if place.member}
        found = []
        for member in _readable(waiting, seconds):
            try:
                said = member.pool.take(0)
            except EnvError as error:
                self._lost(member, error)
                continue
            self._places[member.number].failures = 0
            life = self.lives[member.number]
            found.append(Slab(member.buffers[member.turn], member.number, life, **said))
            member.turn = (member.turn + 1) % BUFFERS
        return found

    def release(self, slab: Slab) -> None:
        member = self._places[slab.actor].member
        if member is None or self.lives[slab.actor] != slab.life:
            return
        with suppress(EnvError):  # polling will tell
            member.pool.post(0, "roll", (slab.number % BUFFERS, self._random))

    def stop(self) -> None:
        for place in self._places:
            if place.starting is not None:
                with suppress(EnvError):
                    place.member = place.starting.result()
            if place.member is not None:
                place.member.pool.close()
            place.member = place.starting = None
        self._threads.shutdown()
        self._weights.segment.release()

    def _start(self, number: int) -> "Future[Member]":
        return self._threads.submit(self._open, number, self.lives[number])

    def _open(self, number: int, life: int) -> Member:
        """Runs in a thread: a process takes seconds to start, and nobody waits for it."""
        shapes = {
            f"{buffer}.{path}": array_of(leaf)
            for buffer in range(BUFFERS)
            for path, leaf in tree.items(self._layout)
        }
        inherit = [int(self._weights.segment.handle)]
        pool = WorkerPool(self.source.factory, self.lanes, self.source.id, 1, arrays=shapes, inherit=inherit)
        try:
            pool.install("open", open_actor)
            pool.install("roll", roll)
            numbers = list(range(number * self.lanes, (number + 1) * self.lanes))
            pool.post(0, "open", (self._packed, numbers, self.seed(number, life), inherit[0]))
            pool.take(0)
            for buffer in range(BUFFERS):
                pool.post(0, "roll", (buffer, self._random))
        except BaseException:
            pool.close()
            raise
        buffers = [nested(self._layout, pool.arrays, f"{buffer}") for buffer in range(BUFFERS)]
        return Member(number, pool, buffers)

    def _arrived(self, number: int, place: _Place) -> None:
        assert place.starting is not None
        try:
            place.member = place.starting.result()
            place.starting = None
        except EnvError as error:
            self._replace(number, place, error)

    def _lost(self, member: Member, error: EnvError) -> None:
        place = self._places[member.number]
        place.member = None
        member.pool.close()
        self._replace(member.number, place, error)

    def _replace(self, number: int, place: _Place, error: EnvError) -> None:
        place.failures += 1
        if place.failures > self.restarts:
            raise EnvError(
                f"actor {number} failed {place.failures} times in a row, the last time thus: {error}"
            ) from error
        self.lives[number] += 1
        place.starting = self._start(number)


def _readable(waiting: dict[int, Member], seconds: float) -> Iterator[Member]:
    if not waiting:
        return
    poll = select.poll()
    for answers in waiting:
        poll.register(answers, select.POLLIN)
    for answers, _ in poll.poll(seconds * 1000):
        yield waiting[answers]


# What follows runs in the actors; `held` is the dict that stays with a process between calls.


def open_actor(lanes: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> None:
    """Build the policy's copy and a collector over this actor's lanes."""
    packed, numbers, seed, handle = argument
    role: Role = cloudpickle.loads(packed)
    held["actor"] = ActorBody(role, lanes, numbers, seed)
    tensors = role.agent.acting_tensors()
    held["renew"] = partial(Weights(tensors, handle).read, tensors)
    layout = held["actor"].collector.storage.tensors
    held["buffers"] = [nested(layout, arrays, f"{buffer}") for buffer in range(BUFFERS)]


@torch.inference_mode()
def roll(lanes: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> dict[str, Any]:
    """One rollout with the newest weights, written into a buffer."""
    buffer, random = argument
    actor: ActorBody = held["actor"]
    version = held["renew"]()
    said = actor.roll(random or version == 0)
    tree.copy_(held["buffers"][buffer], actor.collector.storage.tensors)
    return {**said, "version": version}
