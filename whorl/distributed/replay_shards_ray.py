"""Shards of replay on a Ray cluster (extra `ray`): the same as processes, wherever Ray puts them."""

from collections import deque
from typing import Any

from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.distributed.buffers import array, tensor_of
from whorl.distributed.remote import DiedError
from whorl.distributed.replay_shards import AHEAD, Shard


class RayLink:
    """The learner's side of a shard in a cluster that this process is connected to; see `Link`."""

    def __init__(self, number: int, layout: dict[str, Tree], told: tuple[Any, ...]) -> None:
        import ray

        self._ray, self.name = ray, f"replay shard {number}"
        # They hold memory and hardly compute: the CPUs are the actors'.
        self.actor: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(RayShard).remote(*told)
        self._pending: deque[tuple[str, Any]] = deque()
        self._asked = 0
        self.ready = False

    @property
    def free(self) -> bool:
        """Whether a batch may be asked for."""
        return self.ready and self._asked < AHEAD

    def add(self, rows: dict[str, Tree]) -> None:
        """Send rows; they are copied."""
        while sum(kind == "add" for kind, _ in self._pending) >= AHEAD:
            self._take()
        self._post("add", tree.map(array, rows))

    def ask(self) -> None:
        """Have a batch drawn."""
        self._asked += 1
        self._post("draw")

    def take(self) -> dict[str, Tree]:
        """The oldest batch that was asked for."""
        kind, answer = self._take()
        while kind != "draw":
            kind, answer = self._take()
        self._asked -= 1
        return tree.map(tensor_of, answer)

    def settle(self, index: Tensor, error: Tensor) -> None:
        """Errors [B] of the samples that start at `index`."""
        self._post("settle", array(index), array(error))

    def call(self, method: str, *arguments: Any) -> Any:
        """One of the shard's rarer methods, with its answer."""
        self.wait()
        self._post(method, *arguments)
        return self._take()[1]

    def wait(self) -> None:
        """Until all that was sent is done."""
        while self._pending:
            self._take()

    def close(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self.actor)

    def _post(self, method: str, *arguments: Any) -> None:
        self._pending.append((method, getattr(self.actor, method).remote(*arguments)))

    def _take(self) -> tuple[str, Any]:
        kind, reference = self._pending.popleft()
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            raise DiedError(f"{self.name} is gone: {error}") from error
        if kind == "add":
            self.ready = bool(answer)
        return kind, answer


class RayShard(Shard):
    """Runs in the cluster; arrays travel."""

    def add(self, rows: dict[str, Tree]) -> bool:
        return super().add(tree.map(tensor_of, rows))

    def draw(self) -> dict[str, Tree]:
        return tree.map(array, super().draw())
