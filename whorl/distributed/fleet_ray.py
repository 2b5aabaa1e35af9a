"""Actors on a Ray cluster, or on one that is started here (extra `ray`).

Weights go out through Ray's object store, which brings a version once to each node whose actors want it; rollouts come
back the same way. An actor that dies with its process or its node, or whose environment raises, is started again
wherever there is room; where there is none it waits for a node to come, and the others go on.
"""

import importlib.util
import logging
import os
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError, EnvError, missing_extra
from whorl.core.tree import Tree
from whorl.distributed.actor import ActorProcess, Role, Trajectory
from whorl.distributed.buffers import array, padded, tensor_of, views
from whorl.distributed.fleet import Seed, given_up

LOOPBACK = "127.0.0.1"
PATIENCE = 30.0
"""seconds after which one is told of actors that have not started"""
GIVE_UP = 600.0
"""seconds without a single actor after which the run ends; nodes that are ordered when they are wanted take minutes"""


@dataclass
class _Place:
    """Where an actor belongs."""

    actor: Any = None
    """Ray's handle of it"""
    asked: deque[Any] = field(default_factory=deque)
    """what it has to answer yet, oldest first: where it is, then rollouts"""
    where: tuple[str, int] | None = None
    """its node and process, once it has answered"""
    since: float = 0.0
    """when it was asked for"""
    failures: int = 0
    """in a row"""


class RayFleet:
    """`actors` Ray actors; see `ProcessFleet` for what the two have in common.

    A process that is connected to Ray already goes on with that, and stays connected. `dashboard` is the address of its
    pages about the cluster, where it has any.

    Args:
        address: local to start a cluster of this machine alone, bound to loopback; auto for the one that this machine
            belongs to; or the address of one, host:port or ray://host:port.
    """

    def __init__(
        self, role: Role, actors: int, seed: Seed, ahead: int = 2, restarts: int = 3, address: str = "local"
    ) -> None:
        self.seed, self.ahead, self.restarts = seed, ahead, restarts
        self.lives, self.sent = [0] * actors, 0
        weights = role.weights(role.agent)
        self._block = torch.zeros(sum(map(padded, weights)), dtype=torch.uint8)
        self._views = views(self._block, weights)
        self._weights: Any = None
        self._version, self._random = 0, False
        self._newest: dict[str, int] = {}
        """the newest weights that a node has fetched"""
        self._places = [_Place() for _ in range(actors)]
        self._complained = False
        # As bytes: arrays that Ray pickles itself are read-only over there, and an environment may hold some.
        packed = cloudpickle.dumps(role)
        role.payload()  # where that can't be made, one hears of it here, and at once
        self._ray, self._connected, self.dashboard = connect(address, actors)
        gpus = int(self._ray.cluster_resources().get("GPU", 0)) if role.on_gpu else 0
        if role.on_gpu and not gpus:
            self.stop()
            raise ConfigError("actors_on_gpu is true, but the Ray cluster has no GPU; leave it out")
        options = {"num_cpus": 1, "num_gpus": share(gpus, actors), "scheduling_strategy": "SPREAD"}
        self._kind = self._ray.remote(**options)(RayActor)
        self._packed = self._ray.put(packed)

    def publish(self, weights: list[Tensor], version: int, random: bool) -> None:
        with torch.no_grad():
            for into, tensor in zip(self._views, weights):
                into.copy_(tensor)
        self._weights = self._ray.put(self._block.numpy())
        self._version, self._random = version, random
        for number, place in enumerate(self._places):
            if place.actor is None:
                self._start(number)

    def alive(self) -> int:
        return sum(place.where is not None for place in self._places)

    def poll(self, seconds: float) -> list[Trajectory]:
        # Of each actor the oldest answer alone, so that its rollouts are handed over in order.
        waiting = {place.asked[0]: number for number, place in enumerate(self._places) if place.asked}
        if not waiting:
            raise EnvError(
                "no rollout is under way: publish weights and release trajectories before polling for more"
            )
        ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=seconds)
        found = [trajectory for answer in ready if (trajectory := self._take(waiting[answer])) is not None]
        self._complain()
        return found

    def release(self, trajectory: Trajectory) -> None:
        if self.lives[trajectory.actor] == trajectory.life:
            self._ask(self._places[trajectory.actor])

    def stop(self) -> None:
        for place in self._places:
            # Ray would connect to some cluster by itself if it was shut down before.
            if place.actor is not None and self._ray.is_initialized():
                self._ray.kill(place.actor)
        self._places = [_Place() for _ in self._places]
        self._weights = self._packed = None
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def _start(self, number: int) -> None:
        place = self._places[number]
        place.actor = self._kind.remote(self._packed, number, self.seed(number, self.lives[number]))
        place.asked = deque([place.actor.where.remote()])
        place.where, place.since = None, time.monotonic()

    def _ask(self, place: _Place) -> None:
        place.asked.append(place.actor.roll.remote(self._weights, self._version, self._random))

    def _take(self, number: int) -> Trajectory | None:
        """The answer of an actor; None where it only says that it is there, or died."""
        place = self._places[number]
        try:
            answer = self._ray.get(place.asked.popleft())
        except self._ray.exceptions.RayError as error:
            self._replace(number, error)
            return None
        if place.where is None:
            place.where = answer
            for _ in range(self.ahead):
                self._ask(place)
            return None
        place.failures = 0
        said, arrays = answer
        node = place.where[0]
        if said["version"] > self._newest.get(node, 0):
            self._newest[node] = said["version"]
            self.sent += self._block.numel()
        return Trajectory(tree.map(tensor_of, arrays), number, self.lives[number], **said)

    def _replace(self, number: int, error: Exception) -> None:
        place = self._places[number]
        place.failures += 1
        if place.failures > self.restarts:
            raise given_up(number, place.failures, EnvError(_told(error))) from error
        self._ray.kill(place.actor)
        self.lives[number] += 1
        self._start(number)

    def _complain(self) -> None:
        """Tell once of actors that do not start, until all have; end a run that has none."""
        waits = [time.monotonic() - place.since for place in self._places if place.where is None]
        if not waits:
            self._complained = False
            return
        none = len(waits) == len(self._places) and min(waits) > GIVE_UP
        if not none and (self._complained or max(waits) < PATIENCE):
            return
        there, free = (
            found.get("CPU", 0) for found in (self._ray.cluster_resources(), self._ray.available_resources())
        )
        text = (
            f"{len(waits)} of {len(self._places)} actors have not started in {max(waits):.0f} s; each takes a CPU, and "
            f"the cluster has {there:g}, of which {free:g} are free; add nodes or use fewer actors"
        )
        if none:
            raise EnvError(text)
        self._complained = True
        warnings.warn(text, stacklevel=2)


class RayActor:
    """Runs in the cluster."""

    def __init__(self, packed: bytes, number: int, seeds: tuple[int, int]) -> None:
        self.body = ActorProcess(cloudpickle.loads(packed), number, seeds)
        self.version = 0

    def where(self) -> tuple[str, int]:
        """The node and the process that it is in."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def roll(self, weights: np.ndarray, version: int, random: bool) -> tuple[dict[str, Any], Tree]:
        """One rollout with these weights."""
        if version != self.version:
            with torch.no_grad():
                for tensor, value in zip(self.body.weights, views(tensor_of(weights), self.body.weights)):
                    tensor.copy_(value)
            self.version = version
        said = self.body.roll(random)
        return {**said, "version": version}, tree.map(array, self.body.tensors)


def share(gpus: int, actors: int) -> float:
    """Of a GPU for each actor, such that all fit; Ray counts in ten-thousandths."""
    return 10_000 // -(-actors // gpus) / 10_000 if gpus else 0.0


def _told(error: Exception) -> str:
    """What Ray says of a failure, with what was raised, if anything was, at the end of its first line."""
    text = str(error).strip()
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    return f"{last}\n{text}" if "ray::" in first else text


def connect(address: str, actors: int) -> tuple[Any, bool, str]:
    """Ray, whether it was this call that connected to it, and the address of its dashboard."""
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray") from None
    if ray.is_initialized():
        return ray, False, ""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        dashboard = importlib.util.find_spec("aiohttp_cors") is not None  # comes with ray[default]
        with _loopback(), _same_path():
            context = ray.init(
                "local", num_cpus=actors, include_dashboard=dashboard, dashboard_host=LOOPBACK, **quiet
            )
        if ray.util.get_node_ip_address() != LOOPBACK:
            ray.shutdown()
            raise EnvError(
                f"Ray {ray.__version__} does not stay on {LOOPBACK} by itself; start it, and use auto"
            )
    else:
        try:
            with _loopback() if _only_here(ray, address) else nullcontext():
                context = ray.init(address, **quiet)
        except ConnectionError as error:
            raise EnvError(f"{error}: {error.__cause__}" if error.__cause__ else f"{error}") from error
    return ray, True, f"http://{context.dashboard_url}" if context.dashboard_url else ""


def _only_here(ray: Any, address: str) -> bool:
    """Whether a cluster can be reached by loopback alone; raises where none answers, which Ray tries for minutes."""
    from ray._private.services import get_ray_address_from_environment

    start = "start one with `ray start --head`, or use local"
    try:
        found = get_ray_address_from_environment("auto", None) if address == "auto" else address
    except ConnectionError:
        raise EnvError(f"this machine belongs to no Ray cluster; {start}") from None
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray {address!r} is no address; use local, auto, host:port or ray://host:port")
    if not _answers(host, int(port)):
        raise EnvError(f"no Ray cluster answers at {found}; {start}")
    if found.startswith("ray://") or host not in (LOOPBACK, "localhost"):
        return False
    return not _answers(ray.util.get_node_ip_address(), int(port))


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def _loopback() -> Iterator[None]:
    """Asked for 127.0.0.1 Ray takes the address of a network card, except where it thinks there are no clusters."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _same_path() -> Iterator[None]:
    """What is started meanwhile imports from where this process does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
