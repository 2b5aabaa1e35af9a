"""Objects in other processes: what actors, replay shards, learner replicas and environment workers have in common.

A `Backend` starts an object in a process of this machine (`process.py`) or on a Ray cluster (`ray.py`) and returns a
`Remote`. Calls are posted, and their results are taken in the same order. Large tensors do not travel inside calls: the
sender writes them to `Slots` that both sides hold, and the call carries a small token. The learner can pass a token
on without reading the tensors, so that rows go from an actor to a replay shard directly.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from whorl.core import messages
from whorl.core.errors import ConfigError, EnvError, WhorlError

MISTAKES = (EnvError, ConfigError)
"""errors of remote objects that are reported by their message alone; others with their traceback"""

if TYPE_CHECKING:  # environment workers import this module, and start without torch
    from torch import Tensor

    from whorl.core.tree import Tree


class RemoteError(EnvError):
    """A remote object raised an error or does not answer."""


class RemoteDied(RemoteError):
    """The process of a remote object has ended."""


class SlotLost(RemoteError):
    """Tensors that were written to a slot no longer exist, because their node has gone."""


class Remote(Protocol):
    """An object in another process. The first result to take is None: the object was made."""

    name: str
    """used in messages"""
    node: str
    """the node it runs on; empty on this machine"""

    @property
    def pid(self) -> int:
        """Its process; 0 as long as that is unknown."""

    def post(self, method: str, *arguments: Any) -> None:
        """Request a call; several may be under way."""

    def take(self, timeout: float | None = None) -> Any:
        """Wait for the result of the oldest call; raises `RemoteError`, after `timeout` seconds at the latest."""

    def close(self) -> None:
        """End the process; safe to call twice."""


class Slots(Protocol):
    """A number of equally shaped trees of tensors that one side writes and the other reads."""

    layout: Any

    def write(self, slot: int, tensors: "Tree") -> Any:
        """Copy tensors into a slot; returns the token that `read` takes."""

    def read(self, token: Any) -> "Tree":
        """The tensors; valid until the same slot is written again. Raises `SlotLost` if they are gone."""


class Weights(Protocol):
    """Weights that the learner publishes and actors read."""

    bytes: int

    def write(self, tensors: "list[Tensor]", version: int) -> Any:
        """Publish new weights; returns a token to send along with calls that read them."""

    def read(self, into: "list[Tensor]", token: Any) -> int:
        """Copy the weights into these tensors; returns their version."""


class Backend(Protocol):
    """Where remote objects run."""

    dashboard: str
    """address of a web page about the processes, if there is one"""
    host: str
    """the address at which remote objects reach this process"""

    @property
    def gpus(self) -> float | None:
        """GPUs that can be assigned to remote objects; None: objects share those of this machine."""

    def start(
        self, name: str, make: Callable[..., Any], *arguments: Any, cpus: float = 0, gpus: float = 0
    ) -> Any:
        """Run `make(*arguments)` elsewhere and return its `Remote`, without waiting for it to start."""

    def wait(self, remotes: Sequence[Any], timeout: float) -> list[Any]:
        """Those whose next result is there; waits for at least one, up to `timeout` seconds."""

    def slots(self, layout: Any, count: int, direct: bool = False) -> Slots:
        """Slots to give to remote objects; `direct`: this process passes tokens on and rarely reads them."""

    def weights(self, tensors: "list[Tensor]") -> Weights:
        """A place to publish weights shaped like `tensors`."""

    def resources(self) -> str:
        """Resources of the backend, for the message about objects that do not start."""

    def close(self) -> None:
        """End all remote objects; safe to call twice."""


def make_backend(ray: str, cpus: int = 1) -> Backend:
    """Processes of this machine, or the Ray cluster at the address `ray` (see the setting of that name)."""
    if ray:
        from whorl.distributed.ray import RayBackend  # an extra

        return RayBackend(ray, cpus)
    from whorl.distributed.process import ProcessBackend

    return ProcessBackend()


Notify = Callable[[str], None]
"""shows a message to the user"""
WINDOW = 3600.0
"""seconds over which `restarts_per_hour` counts"""


def warn(text: str) -> None:
    """A message where there is no console."""
    messages.warn(text)


class RestartPolicy:
    """Failed remote objects are replaced, each time with a message; too many failures of one end the run.

    Args:
        limit: failures in a row.
        per_hour: failures within an hour, whatever succeeded in between; 0: any number.
    """

    def __init__(self, limit: int, per_hour: int = 0, notify: Notify = warn) -> None:
        self.limit, self.per_hour, self.notify = limit, per_hour, notify
        self._in_a_row: Counter[str] = Counter()
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def failed(self, name: str, error: WhorlError) -> None:
        """Count a failure; raises if it was one too many."""
        now, times = time.monotonic(), self._times[name]
        self._in_a_row[name] += 1
        times.append(now)
        while now - times[0] > WINDOW:
            times.popleft()
        if self._in_a_row[name] > self.limit:
            raise self._last(name, self._in_a_row[name], "in a row", error)
        if self.per_hour and len(times) > self.per_hour:
            raise self._last(
                name, len(times), f"within an hour (restarts_per_hour is {self.per_hour})", error
            )
        reason = error.message.partition("\n")[0]
        self.notify(
            f"{name} failed and is replaced ({self._in_a_row[name]} of {self.limit} in a row, {len(times)} within an "
            f"hour): {reason}"
        )

    def succeeded(self, name: str) -> None:
        """Failures before this one are no longer in a row."""
        del self._in_a_row[name]

    def _last(self, name: str, count: int, when: str, error: WhorlError) -> RemoteError:
        times = "once" if count == 1 else f"{count} times {when}"
        return RemoteError(f"{name} failed {times}; last error: {error.message}", error.details)
