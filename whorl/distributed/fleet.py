"""Actors as processes of this machine.

Weights go out through one block of shared memory, written once for all actors; rollouts come in as whole trajectories, through
`ahead` buffers of each actor: with two, one is read while the other is filled, and an actor whose buffers are full
waits, alone. One that dies, or whose environment raises, is replaced, a bounded number of times in a row.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import cloudpickle
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.distributed.actor import ActorProcess, Role, Trajectory
from whorl.distributed.buffers import blocks_of, buffers_of, padded, views
from whorl.distributed.remote import RemoteObject, readable
from whorl.distributed.shared_memory import Block, Segment

Seed: TypeAlias = Callable[[int, int], tuple[int, int]]
"""seeds of an actor's random stream and of its environments, by its number and by how often it was replaced"""


class Fleet(Protocol):
    """Actors elsewhere."""

    lives: list[int]
    """how often each actor was replaced"""
    sent: int
    """bytes of weights that went out so far; on each node they are counted once"""
    dashboard: str
    """the address of a page about the actors, where there is one"""

    def poll(self, seconds: float) -> list[Trajectory]:
        """The rollouts that are there, at the latest after so many seconds; raises where no actor is left."""

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        """Let actors go on with these weights, or for now with random actions."""

    def release(self, trajectory: Trajectory) -> None:
        """A trajectory was copied, and its actor may overwrite it."""

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
        self.bytes = sum(sizes)
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
    remote_object: RemoteObject
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
    """`actors` processes.

    Args:
        ahead: rollouts that an actor may begin before the first of them was released.
        restarts: failures in a row after which an actor is given up, and the run ends with what it said.
    """

    dashboard = ""

    def __init__(self, role: Role, actors: int, seed: Seed, ahead: int = 2, restarts: int = 3) -> None:
        self.seed, self.ahead, self.restarts = seed, ahead, restarts
        self.lives, self.sent = [0] * actors, 0
        self._random = False
        self._packed = cloudpickle.dumps(role)
        self._layout = role.payload().tensors
        self._weights = Weights(role.weights(role.agent))
        self._threads = ThreadPoolExecutor(actors, thread_name_prefix="fleet")
        self._places: list[_Place] = []

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        self._weights.write(weights, version)
        self.sent += self._weights.bytes
        self._random = random
        if not self._places:
            self._places = [_Place(starting=self._start(number)) for number in range(len(self.lives))]

    def alive(self) -> int:
        return sum(place.member is not None for place in self._places)

    def poll(self, seconds: float) -> list[Trajectory]:
        starting = [place.starting for place in self._places if place.starting is not None]
        if starting and not self.alive():
            wait(starting, seconds, FIRST_COMPLETED)
        for number, place in enumerate(self._places):
            if place.starting is not None and place.starting.done():
                self._arrived(number, place)
        members = {place.member.remote_object: place.member for place in self._places if place.member}
        found = []
        for member in map(members.__getitem__, readable(list(members), seconds)):
            try:
                said = member.remote_object.take()
            except EnvError as error:
                self._lost(member, error)
                continue
            self._places[member.number].failures = 0
            life = self.lives[member.number]
            found.append(Trajectory(member.buffers[member.turn], member.number, life, **said))
            member.turn = (member.turn + 1) % self.ahead
        return found

    def release(self, trajectory: Trajectory) -> None:
        member = self._places[trajectory.actor].member
        if member is None or self.lives[trajectory.actor] != trajectory.life:
            return
        with suppress(EnvError):  # polling will tell
            member.remote_object.post("roll", trajectory.number % self.ahead, self._random)

    def stop(self) -> None:
        for place in self._places:
            if place.starting is not None:
                with suppress(EnvError):
                    place.member = place.starting.result()
            if place.member is not None:
                place.member.remote_object.close()
            place.member = place.starting = None
        self._threads.shutdown()
        self._weights.segment.release()

    def _start(self, number: int) -> "Future[Member]":
        return self._threads.submit(self._open, number, self.lives[number])

    def _open(self, number: int, life: int) -> Member:
        """Runs in a thread: a process takes seconds to start, and nobody waits for it."""
        blocks = blocks_of(self._layout, self.ahead)
        segment = Segment(blocks)
        handles = (self._weights.segment.handle, segment.handle)
        told = (self._packed, number, self.seed(number, life), self.ahead, blocks, *handles)
        try:
            remote_object = RemoteObject(f"actor {number}", ProcessActor, told, handles)
        finally:
            segment.release()
        try:
            remote_object.take()
            for buffer in range(self.ahead):
                remote_object.post("roll", buffer, self._random)
        except BaseException:
            remote_object.close()
            raise
        return Member(number, remote_object, buffers_of(self._layout, segment, self.ahead))

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
        member.remote_object.close()
        self._replace(member.number, place, error)

    def _replace(self, number: int, place: _Place, error: EnvError) -> None:
        place.failures += 1
        if place.failures > self.restarts:
            raise given_up(number, place.failures, error)
        self.lives[number] += 1
        place.starting = self._start(number)


def given_up(actor: int, failures: int, error: Exception) -> EnvError:
    """What a run ends with whose actor fails again and again."""
    return EnvError(f"actor {actor} failed {failures} times in a row, the last time thus: {error}")


class ProcessActor:
    """An actor that runs in a remote object."""

    def __init__(
        self,
        packed: bytes,
        number: int,
        seeds: tuple[int, int],
        ahead: int,
        blocks: list[Block],
        weights: int | str,
        trajectories: int | str,
    ) -> None:
        self.body = ActorProcess(cloudpickle.loads(packed), number, seeds)
        self.weights = Weights(self.body.weights, weights)
        self.buffers = buffers_of(self.body.tensors, Segment(blocks, trajectories), ahead)

    def roll(self, buffer: int, random: bool) -> dict[str, Any]:
        """One rollout with the newest weights, written into a buffer."""
        with torch.no_grad():
            version = self.weights.read(self.body.weights)
        said = self.body.roll(random or version == 0)
        with torch.no_grad():
            tree.copy_(self.buffers[buffer], self.body.tensors)
        return {**said, "version": version}

    def close(self) -> None:
        self.body.close()
