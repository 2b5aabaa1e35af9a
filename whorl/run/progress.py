"""Progress within an iteration: called at every row of a rollout and every update, it draws a few times a second.

It runs in the thread that trains, so that there is none to disturb a fork, and reads nothing from a device.
"""

import time
from collections.abc import Callable

EVERY_SECONDS = 0.2


class Progress:
    """How far the present iteration has come.

    Collection and updates count by the share of time that each took in the iteration before.

    Args:
        draw: shows the share of the iteration, the share of its rollout, and what is being done.
        clock: seconds, for tests.
    """

    def __init__(
        self, draw: Callable[[float, float, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._draw, self._clock = draw, clock
        self._due = clock()
        self._weight = 0.5
        """of the rollout, in an iteration"""
        self._rollout = 0.0
        self._updates = self._expected = 0

    def collected(self, share: float) -> None:
        """This share of the rollout has been collected."""
        self._rollout = share
        self._tick("collecting")

    def updated(self) -> None:
        """An optimizer has made a step."""
        self._updates += 1
        self._tick("updating")

    def evaluated(self) -> None:
        """An evaluation has made a step."""
        self._tick("evaluating")

    def next(self, collecting: float, updating: float) -> None:
        """The iteration is over, after these seconds of collection and of updates."""
        self._weight = collecting / max(collecting + updating, 1e-9)
        self._expected, self._updates, self._rollout = self._updates, 0, 0.0

    def _tick(self, doing: str) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        updates = min(self._updates / self._expected, 1.0) if self._expected else 0.0
        share = self._weight * self._rollout + (1 - self._weight) * updates
        self._draw(share, self._rollout, doing)
