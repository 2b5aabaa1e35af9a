"""The table of a population while it runs: one row per learner; plain lines where there is no terminal."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from whorl.log.console import Console, amount, compact, heading
from whorl.population.config import EvolveConfig
from whorl.population.member import Report
from whorl.population.rules import LineageRow, Plan, Population
from whorl.settings.merge import Settings

TAIL = 8192
"""bytes at the end of a metrics file in which its last row is looked for"""


class Display(Console):
    """Progress of a population."""

    def __init__(self, config: EvolveConfig, settings: Settings, folder: Path, **options: Any) -> None:
        title = f"{config.rule} of {config.population} {settings.algorithm} on {settings.env}: {folder}"
        super().__init__(config.generations, "generations", title, settings.run.quiet, **options)
        self.plans: Sequence[Plan] = []
        self.folders: Mapping[int, Path] = {}
        self.states: dict[int, str] = {}
        self.scores: dict[int, LineageRow] = {}
        self.best: LineageRow | None = None

    def __enter__(self) -> "Display":
        super().__enter__()
        return self

    def plan(self, plans: Sequence[Plan], folders: Mapping[int, Path]) -> None:
        """A generation begins."""
        self.plans, self.folders = plans, folders
        self.states = {plan.slot: "waiting" for plan in plans}
        self._draw_live()

    def started(self, slot: int) -> None:
        self.states[slot] = "training"
        self._draw_live()

    def ended(self, slot: int, report: Report) -> None:
        self.states[slot] = "diverged" if report.note else f"scored {amount(report.score)}"
        self._draw_live()

    def refresh(self) -> None:
        """Show what the learners have logged meanwhile."""
        self._draw_live()

    def generation(self, population: Population) -> None:
        """A generation is over, or the population is resumed after one."""
        self._done = self._count = population.generation
        if not population.history:
            return
        rows = population.newest()
        self.scores = {row.slot: row for row in rows}
        finite = [row.score for row in rows if math.isfinite(row.score)]
        self.best = max((*rows, *([self.best] if self.best else [])), key=lambda row: row.score)
        if self._live is None and finite:
            top = population.ranked()[0]
            origins = {
                name: sum(row.origin == name for row in rows) for name in ("new", "own", "drawn", "copied")
            }
            told = ", ".join(f"{count} {name}" for name, count in origins.items() if count)
            parts = [
                f"generation {population.generation}/{compact(self.total)}",
                f"best {amount(top.score)} (learner {top.learner})",
                f"mean {amount(sum(finite) / len(finite))}",
                f"weights: {told}",
            ]
            self.message(self._joined(parts))
        self._draw_live()

    def _draw_live(self) -> None:
        if self._live is not None:
            self._draw()

    def _picture(self) -> Group:
        share = f"generation {min(int(self._done) + 1, int(self.total))} of {compact(self.total)}"
        best = f"best so far {amount(self.best.score)} (learner {self.best.learner})" if self.best else ""
        head = Text(self._joined([share, best, self._elapsed()]), no_wrap=True, overflow="crop")
        return Group(*heading(self._legible(self.title)), head, self._table())

    def _table(self) -> RenderableType:
        names = list(self.plans[0].params) if self.plans else []
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in ("learner", "weights", "score", "steps", "return", *names, ""):
            table.add_column(name, justify="left" if name in ("weights", "") else "right", no_wrap=True)
        leader = max(self.scores.values(), key=lambda row: row.score, default=None)
        for plan in self.plans:
            before, now = self.scores.get(plan.slot), self._last_row(plan.slot)
            table.add_row(
                str(plan.learner),
                self._legible(_origin(plan)),
                amount(before.score) if before else "",
                compact(now.get("steps", before.steps if before else 0)),
                amount(now["episode/return"]) if "episode/return" in now else "",
                *(_value(plan.params[name]) for name in names),
                self.states.get(plan.slot, ""),
                style="bold" if leader is not None and leader.slot == plan.slot else "",
            )
        return table

    def _last_row(self, slot: int) -> dict[str, Any]:
        """The newest row of metrics of a learner; empty if it can't be read now."""
        path = self.folders[slot] / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                lines = file.read().split(b"\n")
            rows = [json.loads(line) for line in lines[-4:-1]]
            return {key: value for row in rows for key, value in row.items()}
        except (OSError, ValueError):
            return {}


def _origin(plan: Plan) -> str:
    numbers = sorted(parent.learner for parent in plan.parents)
    if plan.origin == "copied":
        return f"copy of {numbers[0]}"
    return f"drawn from {', '.join(map(str, numbers))}" if plan.origin == "drawn" else plan.origin


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
