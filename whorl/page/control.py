"""Runs stopped and resumed from the page."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from whorl.core.errors import ConfigError, WhorlError
from whorl.core.files import reason
from whorl.page.catalog import Catalog, Entry
from whorl.page.details import log_tail
from whorl.state.code import PREFIX
from whorl.state.runlock import Owner, living_owner

LOG = "resume.log"
"""in the run's folder: what `whorl resume` prints when it was started here"""


class Control:
    """Stops and resumes runs of a catalog; remembers what was asked for until it has happened.

    Args:
        trust: code of the user's own that resumed runs may load.
    """

    def __init__(self, catalog: Catalog, trust: Sequence[str] = ()) -> None:
        if hashes := [entry for entry in trust if entry.startswith(PREFIX)]:
            raise ConfigError(
                f"trust names {hashes[0]!r}, the hash of one run's code, but applies to all runs of the page; name "
                "modules or files, or continue that run with whorl resume"
            )
        self._catalog, self._trust = catalog, tuple(trust)
        self._stopping: dict[str, Owner] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def stop(self, name: str) -> None:
        """Ask the process that trains a run to save it and end: SIGTERM, as by a scheduler."""
        entry = self._in_charge(name)
        owner = _owner(entry)
        if owner is None:
            raise WhorlError(f"{entry.name} is not running")
        me = Owner.current()
        if not owner.under_kernel_of(me) or owner.namespace != me.namespace:
            raise WhorlError(f"{entry.name} is trained by {owner}; stop it there")
        if sys.platform == "win32":
            raise WhorlError("Windows can't ask a process to save and end; press Ctrl-C in its terminal")
        try:
            os.kill(owner.pid, signal.SIGTERM)
        except OSError as error:
            raise WhorlError(f"{owner} can't be stopped: {reason(error)}") from None
        self._stopping[entry.name] = owner

    def resume(self, name: str, total_timesteps: int = 0) -> int:
        """Start `whorl resume` as a process of its own, which outlives the server; its number."""
        entry = self._in_charge(name)
        if (owner := _owner(entry)) is not None:
            raise WhorlError(f"{entry.name} is being trained by {owner}")
        if self._starting(entry.name):
            raise WhorlError(f"{entry.name} is being resumed already")
        command = [sys.executable, "-m", "whorl", "resume", str(entry.folder)]
        if total_timesteps:
            command += ["--total-timesteps", str(total_timesteps)]
        if self._trust:
            command += ["--trust", *self._trust]
        try:
            # A link of this name may lead anywhere.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            log = os.open(entry.folder / LOG, flags, 0o644)
        except OSError as error:
            raise WhorlError(f"can't write {entry.folder / LOG}: {reason(error)}") from None
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        finally:
            os.close(log)
        self._started[entry.name] = process
        return process.pid

    def state(self, entry: Entry) -> dict[str, Any]:
        """Changes to a run's row after a request: its state, and an error."""
        name = entry.name
        if name in self._stopping:
            if _owner(entry) == self._stopping[name]:
                return {"state": "stopping"}
            del self._stopping[name]
        process = self._started.get(name)
        if process is None:
            return {}
        if process.poll() is None:
            return {} if entry.row.get("state") == "running" else {"state": "starting"}
        if process.returncode in (0, 130, 143):  # it has ended as asked
            del self._started[name]
            return {}
        lines = log_tail(entry)[1]
        return {"error": lines[-1] if lines else f"whorl resume ended with status {process.returncode}"}

    def _starting(self, name: str) -> bool:
        process = self._started.get(name)
        return process is not None and process.poll() is None

    def _in_charge(self, name: str) -> Entry:
        """The run itself, or the population that trains it."""
        entry = self._catalog.get(name)
        return self._catalog.get(entry.parent) if entry.parent else entry


def _owner(entry: Entry) -> Owner | None:
    with suppress(OSError):
        return living_owner(entry.folder)
    return None
