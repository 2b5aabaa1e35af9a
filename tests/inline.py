"""Remote objects in this process, so that a test of a population starts no other."""

from collections.abc import Sequence
from typing import Any

from whorl.core.errors import WhorlError
from whorl.distributed.remote import RemoteError


class InlineRemote:
    """An object in this process."""

    node, pid = "", 0

    def __init__(self, name: str, held: Any) -> None:
        self.name, self.held, self.calls = name, held, [(None, ())]

    def post(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, arguments))

    def take(self, timeout: float | None = None) -> Any:
        method, arguments = self.calls.pop(0)
        try:
            return None if method is None else getattr(self.held, method)(*arguments)
        except WhorlError as error:
            raise RemoteError(f"{self.name}: {error.message}") from None

    def close(self) -> None: ...


class InlineBackend:
    """Runs the learners in this process, one after the other."""

    dashboard, host, gpus = "", "", None

    def start(self, name: str, make: Any, *arguments: Any, cpus: float = 0, gpus: float = 0) -> Any:
        return InlineRemote(name, make(*arguments))

    def wait(self, remotes: Sequence[Any], timeout: float) -> list[Any]:
        return list(remotes[:1])

    def close(self) -> None: ...
