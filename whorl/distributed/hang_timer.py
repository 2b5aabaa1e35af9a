"""Notices a step of an environment that does not return. Imports no torch, because environment workers use it."""

import faulthandler
import threading
import time
from collections.abc import Callable
from typing import Any

from whorl.core.errors import EnvError

Report = Callable[[EnvError], None]
"""says that a step does not return; one that comes back is called again, every `GRACE` seconds"""
GRACE = 5.0
"""seconds after which the C library ends an actor whose step holds Python's lock, so that no thread can report it"""


class AwakeClock:
    """Seconds in which this process could run: none pass while it is stopped (a suspended job, a paused container).

    Args:
        most: what may pass between two calls; more counts as this much.
    """

    def __init__(self, most: float) -> None:
        self._most, self._last, self._seconds = most, time.monotonic(), 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._last, self._most)
        self._last = now
        return self._seconds


class HangTimer:
    """A thread that reports when `state` stays the same for more than `timeout` seconds; 0: no thread.

    It costs nothing per step.

    Args:
        state: anything that changes with every step; None: no step is under way.
        where: names the environment and the step.
        ends: where Python's lock is held for longer, a timer of the C library ends the process with a traceback on
            standard error. It does not know of time in which the process was stopped.
    """

    def __init__(
        self,
        timeout: float,
        state: Callable[[], Any],
        where: Callable[[], str],
        report: Report,
        ends: bool = False,
    ) -> None:
        self._timeout, self._state, self._where, self._report = timeout, state, where, report
        self._ends, self._closed = ends, threading.Event()
        if timeout:
            threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        pause = min(1.0, self._timeout / 4)
        clock = AwakeClock(2 * pause)
        seen, since = self._state(), clock()
        while True:
            if self._ends:
                faulthandler.dump_traceback_later(self._timeout + GRACE, exit=True)
            if self._closed.wait(pause):
                return
            state, now = self._state(), clock()
            if state is None or state != seen:
                seen, since = state, now
            elif now - since > self._timeout:
                self._report(
                    EnvError(
                        f"{self._where()} did not return within {self._timeout:g} seconds, the setting env_timeout"
                    )
                )
                since = now - self._timeout + GRACE
