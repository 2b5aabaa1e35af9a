"""Many actors, in processes or on Ray.

Weights are published once for all actors. Each actor writes whole trajectories to its `ahead` slots: with two, one is
read while the other is filled, and only an actor whose slots are all full waits. An actor that dies, or whose
environment raises, is replaced.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import cloudpickle
import torch
from torch import Tensor

from whorl.core.errors import ConfigError, EnvError
from whorl.distributed.actor import RemoteActor, Role, Trajectory
from whorl.distributed.remote import Remote, RemoteDied, RemoteError, RestartPolicy, make_backend

Seed: TypeAlias = Callable[[int, int], tuple[int, int]]
"""seeds of an actor's random stream and of its environments, by its number and by how often it was replaced"""
START_WARNING = 30.0
"""seconds after which a warning names the actors that have not started"""
START_LIMIT = 600.0
"""seconds without a single actor after which the run ends; nodes of a cluster that start on demand take minutes"""


@dataclass
class Member:
    """One actor of a fleet."""

    remote: Remote | None = None
    started: bool = False
    since: float = 0.0
    """when it was launched"""
    free: list[int] = field(default_factory=list)
    """slots to be filled"""
    lent: set[int] = field(default_factory=set)
    """slots whose trajectories were handed out and not released"""


class Fleet:
    """`actors` actors on one backend.

    Args:
        ahead: slots of each actor: rollouts that it may collect before the first of them was released.
        policy: decides whether an actor that failed is replaced; its `notify` shows messages.
        ray: address of a Ray cluster; empty: processes of this machine.
        direct: whether replay shards read the trajectories.
    """

    def __init__(
        self,
        role: Role,
        actors: int,
        seed: Seed,
        ahead: int = 2,
        policy: RestartPolicy | None = None,
        ray: str = "",
        direct: bool = False,
    ) -> None:
        self.seed, self.ahead, self.direct = seed, ahead, direct
        layout = role.layout  # raises, if it must, before anything is started
        self._role = cloudpickle.dumps(role)
        self._cpus = 1 + role.workers
        self._backend = make_backend(ray, actors * self._cpus)
        self._gpus = 0.0
        if role.on_gpu and self._backend.gpus is not None:
            self._gpus = gpu_share(int(self._backend.gpus), actors)
            if not self._gpus:
                self._backend.close()
                raise ConfigError("actors_on_gpu is true, but the Ray cluster has no GPU; leave it out")
        self._policy = policy or RestartPolicy(3)
        self.lives = [0] * actors
        """how often each actor was replaced"""
        self.sent = 0
        """bytes of weights that were sent; on each node a version counts once"""
        self._read: dict[str, int] = {}
        """newest version that was read on each node"""
        self._weights = self._backend.weights(role.weights(role.agent))
        self._token: Any = None
        self._random = False
        self.slots = [self._backend.slots(layout, ahead, direct) for _ in range(actors)]
        self.members = [Member(free=list(range(ahead))) for _ in range(actors)]
        self._warned = False

    @property
    def dashboard(self) -> str:
        """Address of Ray's web page, if there is one."""
        return self._backend.dashboard

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        """Give actors these weights for their next rollouts, or let them act at random for now."""
        with torch.no_grad():
            self._token = self._weights.write(weights, version)
        self._random = random
        for number, member in enumerate(self.members):
            if member.remote is None:
                self._start(number)

    def alive(self) -> int:
        """How many actors have started."""
        return sum(member.started for member in self.members)

    def poll(self, seconds: float) -> list[Trajectory]:
        """The finished trajectories; waits up to `seconds` for the first one."""
        numbers = {member.remote: number for number, member in enumerate(self.members) if member.remote}
        if not numbers:
            raise EnvError("no actor was started; publish weights before polling")
        found = []
        for remote in self._backend.wait(list(numbers), seconds):
            number = numbers[remote]
            try:
                answer = remote.take()
            except RemoteError as error:
                self._replace(number, error)
                continue
            if self.members[number].started:
                found.append(self._trajectory(number, remote, *answer))
            else:
                self.members[number].started = True
                self._fill(number)
        self._check_started()
        return found

    def release(self, trajectory: Trajectory) -> None:
        """A trajectory was read, and its slot may be filled again."""
        member = self.members[trajectory.actor]
        member.lent.discard(trajectory.slot)
        member.free.append(trajectory.slot)
        self._fill(trajectory.actor)

    def stop(self) -> None:
        """End all actors; safe to call twice."""
        self.members = [Member() for _ in self.members]
        self._token = None
        self._backend.close()

    def _start(self, number: int) -> None:
        member, seeds = self.members[number], self.seed(number, self.lives[number])
        arguments = (self._role, number, seeds, self.slots[number], self._weights)
        member.remote = self._backend.start(
            f"actor {number}", RemoteActor, *arguments, cpus=self._cpus, gpus=self._gpus
        )
        member.started, member.since = False, time.monotonic()

    def _fill(self, number: int) -> None:
        """Let an actor that has started collect into its free slots."""
        member = self.members[number]
        if member.remote is None or not member.started:
            return
        for slot in member.free:
            with suppress(RemoteDied):  # the next poll finds that it is gone
                member.remote.post("roll", slot, self._token, self._random)
        member.free = []

    def _trajectory(self, number: int, remote: Remote, fields: dict[str, Any], token: Any) -> Trajectory:
        self._policy.succeeded(remote.name)
        if fields["version"] > self._read.get(remote.node, 0):
            self._read[remote.node] = fields["version"]
            self.sent += self._weights.bytes
        self.members[number].lent.add(fields["slot"])
        tensors = {} if self.direct else self.slots[number].read(token)
        return Trajectory(tensors, number, self.lives[number], token=token, **fields)

    def _replace(self, number: int, error: RemoteError) -> None:
        member = self.members[number]
        assert member.remote is not None
        member.remote.close()
        self._policy.failed(f"actor {number}", error)
        self.lives[number] += 1
        # Trajectories of the one before may still be unread.
        member.free = [slot for slot in range(self.ahead) if slot not in member.lent]
        self._start(number)

    def _check_started(self) -> None:
        """Warn once of actors that do not start, until all have; raise if none starts for long."""
        waits = [time.monotonic() - member.since for member in self.members if not member.started]
        if not waits:
            self._warned = False
            return
        hopeless = len(waits) == len(self.members) and min(waits) > START_LIMIT
        if not hopeless and (self._warned or max(waits) < START_WARNING):
            return
        text = (
            f"{len(waits)} of {len(self.members)} actors have not started in {max(waits):.0f} s; each takes "
            f"{'a CPU' if self._cpus == 1 else f'{self._cpus} CPUs'}, and "
            f"{self._backend.resources()}; add CPUs or use fewer actors"
        )
        if hopeless:
            raise EnvError(text)
        self._warned = True
        self._policy.notify(text)


def gpu_share(gpus: int, actors: int) -> float:
    """The fraction of a GPU for each actor, such that all fit; Ray counts in ten-thousandths."""
    return 10_000 // -(-actors // gpus) / 10_000 if gpus else 0.0
