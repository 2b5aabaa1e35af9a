"""Notices a step of an environment that does not return. Imports no torch, because environment workers use it."""

import faulthandler
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from whorl.core.errors import EnvError

Report = Callable[[EnvError], NoReturn]
"""tells the parent process why, and ends this one"""
GRACE = 5.0
"""seconds after which the C library ends a process whose step holds Python's lock, so that no thread can report it"""


class HangTimer:
    """A thread that reports when `state` stays the same for more than `timeout` seconds; 0: no thread.

    It costs nothing per step. Where Python's lock is held for longer, a timer of the C library ends the process with a
    traceback on standard error.

    Args:
        state: anything that changes with every step; None: no step is under way.
        where: names the environment and the step.
    """

    def __init__(
        self, timeout: float, state: Callable[[], Any], where: Callable[[], str], report: Report
    ) -> None:
        self._timeout, self._state, self._where, self._report = timeout, state, where, report
        if timeout:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        seen, since = self._state(), time.monotonic()
        while True:
            faulthandler.dump_traceback_later(self._timeout + GRACE, exit=True)
            time.sleep(min(1.0, self._timeout / 4))
            now = self._state()
            if now is None or now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._timeout:
                self._report(
                    EnvError(
                        f"{self._where()} did not return within {self._timeout:g} seconds, the setting env_timeout"
                    )
                )
