"""The loop of a run with several behaviours.

    for each step of the environment:
        actions = each behaviour's agent acts
        each behaviour stores what the environment answers
        a behaviour whose rollout is complete learns from it

Rollouts may have different lengths. An iteration ends when all end together, so that nothing is under way between two
iterations, and one checkpoint holds all behaviours as they were at the same step.
"""

import time
from typing import Any

from whorl.collect.collector import acting
from whorl.run.behaviors.parts import BehaviorParts
from whorl.run.loop import Counters
from whorl.run.progress import Progress


class BehaviorLoop:
    """Runs iterations of all behaviours and counts them; as `whorl.run.loop.Loop` does for one."""

    def __init__(self, parts: BehaviorParts, counters: Counters) -> None:
        self.parts, self.counters = parts, counters
        self.progress: Progress | None = None
        self.whole = True
        self.reset_due = False

    def watch(self, progress: Progress | None) -> None:
        """Report to `progress` from now on."""
        self.progress = progress
        for member in self.parts.members:
            member.parts.agent.on_optimizer_step = None if progress is None else progress.updated

    def iterate(self, progress: float) -> dict[str, Any]:
        """Collect until all rollouts end together, each with the updates that are due after it; the metrics."""
        parts, counters = self.parts, self.counters
        began, updating = time.perf_counter(), 0.0
        shared, period = parts.acting.collector, parts.reset_period
        cut = period > 0 and (counters.iteration + 1) % period == 0
        steps, episodes, earned = self._sums()
        total = parts.settings.run.num_steps
        for number in range(1, total + 1):
            for member in parts.members:
                if (number - 1) % member.collector.steps == 0:
                    member.loop.start(progress)
                    with acting(member.collector.agent.device):
                        member.collector.open()
            shared.step()
            if self.progress is not None:
                self.progress.collected(number / total)
            for member in parts.members:
                if number % member.collector.steps == 0:
                    self.whole = False
                    collected, _ = member.loop.finish(cut and number == total)
                    updating += time.perf_counter() - collected
        after = self._sums()
        counted = dict(
            zip(("steps", "episodes", "return"), (after[0] - steps, after[1] - episodes, after[2] - earned))
        )
        counters.count({**counted, "length": 0.0}, ())
        self.whole = True
        self.reset_due = cut
        counters.resets += cut  # before callbacks, which may save
        row = self._row()
        over = time.perf_counter()
        row["time/update"] = updating
        row["time/collect"] = over - began - updating
        row["time/steps_per_second"] = counted["steps"] / (over - began)
        if self.progress is not None:
            self.progress.next(row["time/collect"], row["time/update"])
        return row

    def row_is_due(self) -> bool:
        """Whether the metrics of this iteration are written, however long the run continues."""
        run, counters = self.parts.settings.run, self.counters
        return counters.passed(run.log_freq) or (run.eval and counters.passed(run.eval_freq))

    def _sums(self) -> tuple[int, int, float]:
        """Steps and episodes of all behaviours, and the sum of returns since rows were written."""
        counts = [member.counters for member in self.parts.members]
        return (
            sum(one.steps for one in counts),
            sum(one.episodes for one in counts),
            sum(one.new_return for one in counts),
        )

    def _row(self) -> dict[str, Any]:
        """The counters of the run, and the metrics of each behaviour with its name before theirs."""
        counters, due = self.counters, self.row_is_due()
        row: dict[str, Any] = {
            "steps": counters.steps,
            "iteration": counters.iteration,
            "episodes": counters.episodes,
        }
        for member in self.parts.members:
            own = member.counters.row()
            if due:
                own |= member.loop.metrics()
                member.counters.clear_new()
            row |= {f"{member.name}/{name}": value for name, value in own.items() if name != "iteration"}
        return row
