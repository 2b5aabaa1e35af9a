"""Remote objects as actors of a Ray cluster (extra `ray`); see `whorl.distributed.remote`.

Tensors travel through Ray's object store, which brings an object to each node once. An object whose process or node
dies is started again wherever there is room; if there is none, it waits for a node to join.
"""

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import cloudpickle
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError, EnvError, missing_extra
from whorl.core.tree import Tree
from whorl.distributed.remote import MISTAKES, RemoteDied, RemoteError, SlotLost
from whorl.distributed.tensors import Layout, array, padded, tensor_of, views
from whorl.distributed.watch import watch

LOOPBACK = "127.0.0.1"
PATIENT = {"health_check_timeout_ms": 60_000}
"""of a cluster that is started here: a node is not taken for dead because all cores are busy. Whether its process has
ended is noticed as quickly as before."""


class RayHost:
    """Runs in the cluster and holds the object."""

    def __init__(self, packed: bytes) -> None:
        # As bytes: arrays that Ray unpickles itself are read-only, and an environment may hold some.
        make, arguments = cloudpickle.loads(packed)
        self._held = make(*arguments)
        if hasattr(self._held, "watch_hangs"):
            self._held.watch_hangs(_report_hang)

    def where(self) -> tuple[str, int]:
        """The node and the process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._held, method)(*arguments)


def _report_hang(error: EnvError) -> NoReturn:
    """Runs in a thread: what the main one hangs in can't be answered any more; the message is in Ray's logs."""
    sys.stderr.write(f"{error.message}\n")
    sys.stderr.flush()
    os._exit(1)


class RayRemote:
    """An object in the cluster; see `Remote`."""

    def __init__(self, ray: Any, name: str, actor: Any) -> None:
        self.name, self.node, self.pid, self.closed = name, "", 0, False
        self.pending = deque([actor.where.remote()])
        """results to take, oldest first"""
        self._ray, self._actor = ray, actor

    def post(self, method: str, *arguments: Any) -> None:
        self.pending.append(self._actor.call.remote(method, arguments))

    def take(self, timeout: float | None = None) -> Any:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(self.pending.popleft(), timeout=timeout)
        except errors.GetTimeoutError:
            raise RemoteError(f"{self.name} has not answered for {timeout:.0f} seconds") from None
        except errors.RayActorError as error:
            raise RemoteDied(f"{self.name} died: {_text(error)}") from error
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, MISTAKES):
                raise RemoteError(f"{self.name}: {cause.message}", cause.details) from None
            first, _, rest = _text(error).partition("\n")
            raise RemoteError(f"{self.name} failed with {first}", rest) from None
        if self.pid:
            return answer
        self.node, self.pid = answer
        return None

    def close(self) -> None:
        if not self.closed and self._ray.is_initialized():  # else Ray would connect to some cluster
            self._ray.kill(self._actor)
        self.closed = True
        self.pending.clear()


class RaySlots:
    """Trees of tensors in Ray's object store; the token of a written slot is the arrays or a reference to them."""

    def __init__(self, layout: Layout, direct: bool) -> None:
        self.layout, self.direct = layout, direct

    def write(self, slot: int, tensors: Tree) -> Any:
        import ray

        arrays = tree.map(array, tensors)
        return [ray.put(arrays)] if self.direct else arrays  # in a list Ray passes the reference on unread

    def read(self, token: Any) -> Tree:
        import ray

        try:
            arrays = ray.get(token[0]) if self.direct else token
        except ray.exceptions.RayError as error:
            raise SlotLost(str(error)) from None
        return tree.map(tensor_of, arrays)


class RayWeights:
    """Weights in Ray's object store: a version goes once to each node whose actors read it."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self.bytes, self._version = sum(map(padded, tensors)), 0

    @torch.no_grad()
    def write(self, tensors: list[Tensor], version: int) -> Any:
        import ray

        block = torch.empty(self.bytes, dtype=torch.uint8)
        for into, tensor in zip(views(block, tensors), tensors):
            into.copy_(tensor)
        return [ray.put(block.numpy())], version

    def read(self, into: list[Tensor], token: Any) -> int:
        import ray

        (reference,), version = token
        if version != self._version:
            for tensor, value in zip(into, views(tensor_of(ray.get(reference)), into)):
                tensor.copy_(value)
            self._version = version
        return version


class RayBackend:
    """Runs remote objects on a Ray cluster; see `Backend`.

    A process that is connected to Ray already uses that connection, and stays connected.

    Args:
        address: local: start a cluster of this machine alone, bound to loopback; auto: the one that this machine
            belongs to; or the address of one, host:port or ray://host:port.
        cpus: of a cluster that is started here.
    """

    def __init__(self, address: str, cpus: int) -> None:
        self._ray, self._connected, self.dashboard = connect(address, cpus)
        self.host: str = self._ray.util.get_node_ip_address()
        self._remotes: list[RayRemote] = []
        self._watch = watch()

    @property
    def gpus(self) -> float:
        return float(self._ray.cluster_resources().get("GPU", 0))

    def start(
        self, name: str, make: Callable[..., Any], *arguments: Any, cpus: float = 0, gpus: float = 0
    ) -> RayRemote:
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actor = self._ray.remote(**options)(RayHost).remote(cloudpickle.dumps((make, arguments)))
        remote = RayRemote(self._ray, name, actor)
        self._remotes = [*(one for one in self._remotes if not one.closed), remote]
        return remote

    def wait(self, remotes: Sequence[Any], timeout: float) -> list[Any]:
        oldest = {remote.pending[0]: remote for remote in remotes if remote.pending}
        if not oldest:
            raise EnvError("no call is under way; there is nothing to wait for")
        ready, _ = self._ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(list(oldest), num_returns=1, timeout=timeout)
        return [oldest[answer] for answer in ready]

    def slots(self, layout: Layout, count: int, direct: bool = False) -> RaySlots:
        return RaySlots(layout, direct)

    def weights(self, tensors: list[Tensor]) -> RayWeights:
        return RayWeights(tensors)

    def resources(self) -> str:
        there, free = (
            found.get("CPU", 0) for found in (self._ray.cluster_resources(), self._ray.available_resources())
        )
        return f"the cluster has {there:g}, of which {free:g} are free"

    def close(self) -> None:
        for remote in self._remotes:
            remote.close()
        self._remotes = []
        if self._connected:
            self._connected = False
            self._ray.shutdown()
        if self._watch is not None:
            self._watch.release()
            self._watch = None


def _text(error: Exception) -> str:
    """Ray's message, with the error that was raised over there, if any, in its first line."""
    text = str(error).strip()
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    return f"{last}\n{text}" if "ray::" in first else text


def connect(address: str, cpus: int) -> tuple[Any, bool, str]:
    """Ray, whether this call connected to it, and the address of its dashboard."""
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
        with _loopback(), _same_path(), _same_signals():
            context = ray.init(
                "local",
                num_cpus=cpus,
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                _system_config=PATIENT,
                **quiet,
            )
        if ray.util.get_node_ip_address() != LOOPBACK:
            ray.shutdown()
            raise EnvError(
                f"Ray {ray.__version__} can't be bound to {LOOPBACK}; start it yourself, and set ray to auto"
            )
    else:
        try:
            with _loopback() if _on_loopback(ray, address) else nullcontext(), _same_signals():
                context = ray.init(address, **quiet)
        except ConnectionError as error:
            raise EnvError(f"{error}: {error.__cause__}" if error.__cause__ else f"{error}") from error
    return ray, True, f"http://{context.dashboard_url}" if context.dashboard_url else ""


def _on_loopback(ray: Any, address: str) -> bool:
    """Whether a cluster listens on loopback alone; raises at once if none answers, where Ray retries for minutes."""
    # Private: Ray has no public function that finds the address of the local cluster without connecting to it.
    from ray._private.services import get_ray_address_from_environment

    remedy = "start one with `ray start --head`, or set ray to local"
    try:
        found = get_ray_address_from_environment("auto", None) if address == "auto" else address
    except ConnectionError:
        raise EnvError(f"this machine belongs to no Ray cluster; {remedy}") from None
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray {address!r} is not an address; use local, auto, host:port or ray://host:port")
    if not _answers(host, int(port)):
        raise EnvError(f"no Ray cluster answers at {found}; {remedy}")
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
    """Let Ray listen on loopback: given 127.0.0.1 it takes the address of a network card instead."""
    # Private: the public environment variable for this switch is read only when Ray is imported.
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _same_path() -> Iterator[None]:
    """Processes that are started meanwhile import from the same places as this one."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _same_signals() -> Iterator[None]:
    """Keep what SIGTERM does: `ray.init` lets it end the process with status 15, and nothing is saved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as left:  # it came meanwhile
        raise SystemExit(128 + signal.SIGTERM) if left.code == signal.SIGTERM else left from None
    finally:
        if before is not None:  # else it was not set from Python
            signal.signal(signal.SIGTERM, before)
