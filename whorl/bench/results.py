"""Results of a benchmark: scores, aggregates with intervals, tables."""

import json
import sys
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from whorl.bench.bench import Benched
from whorl.core import files
from whorl.log.console import PLAIN, amount
from whorl.log.statistics import (
    Floats,
    aggregate_iqm,
    aggregate_mean,
    aggregate_median,
    optimality_gap,
    probability_of_improvement,
    stratified_interval,
)

RESULTS, TABLE = "results.json", "table.md"
PIPED = 140
"""width of a table where there is no terminal"""
AGGREGATES = {
    "IQM": aggregate_iqm,
    "mean": aggregate_mean,
    "median": aggregate_median,
    "optimality gap": optimality_gap,
}


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def scores_of(benched: Benched) -> dict[str, Floats]:
    """Normalised scores of the algorithms all of whose runs have ended, [seeds, tasks] each.

    A run that diverged counts with the score of a random policy, 0.
    """
    suite = benched.suite
    found = {}
    for one in suite.contestants:
        keys = [[(one.name, task.env, seed) for task in suite.tasks] for seed in suite.seeds]
        if all(key in benched.results for row in keys for key in row):
            values = [[_score(benched, task, key) for task, key in zip(suite.tasks, row)] for row in keys]
            found[one.name] = np.array(values)
    return found


def _score(benched: Benched, task: Any, key: tuple[str, str, int]) -> float:
    value = benched.results[key].mean_return
    return 0.0 if value is None else task.normalized(value)


def aggregates(scores: dict[str, Floats]) -> dict[str, dict[str, Estimate]]:
    """Each aggregate of each algorithm, with its interval."""
    return {
        name: {
            what: Estimate(float(statistic(values)), *map(float, stratified_interval([values], statistic)))
            for what, statistic in AGGREGATES.items()
        }
        for name, values in scores.items()
    }


def improvements(scores: dict[str, Floats]) -> dict[tuple[str, str], Estimate]:
    """The probability that a run of one algorithm scores higher than one of another, for each pair."""
    return {
        (one, other): Estimate(
            float(probability_of_improvement(scores[one], scores[other])),
            *map(float, stratified_interval([scores[one], scores[other]], probability_of_improvement)),
        )
        for one, other in permutations(scores, 2)
    }


def write_results(benched: Benched) -> list[Path]:
    """results.json and table.md in the benchmark's folder."""
    scores = scores_of(benched)
    found = {
        "suite": benched.suite.name,
        "seeds": list(benched.suite.seeds),
        "returns": {
            one.name: {
                task.env: {
                    str(seed): benched.results[one.name, task.env, seed].mean_return
                    for seed in benched.suite.seeds
                    if (one.name, task.env, seed) in benched.results
                }
                for task in benched.suite.tasks
            }
            for one in benched.suite.contestants
        },
        "scores": {name: values.tolist() for name, values in scores.items()},
        "aggregates": {
            name: {what: [one.value, one.low, one.high] for what, one in each.items()}
            for name, each in aggregates(scores).items()
        },
        "improvement": [
            {"of": one, "over": other, "probability": [found.value, found.low, found.high]}
            for (one, other), found in improvements(scores).items()
        ],
    }
    paths = [benched.folder / RESULTS, benched.folder / TABLE]
    files.write_atomic(paths[0], json.dumps(found, indent=1).encode())
    files.write_atomic(paths[1], markdown(benched).encode())
    return paths


def markdown(benched: Benched) -> str:
    """The tables of returns and of aggregates."""
    parts = [f"# {benched.suite.name}: {benched.suite.about}".rstrip(": ")]
    for head, rows in _tables(benched):
        lines = [" | ".join(row) for row in [head, ["---"] * len(head), *rows]]
        parts.append("\n".join(f"| {line} |" for line in lines))
    if note := _missing(benched):
        parts.append(note)
    return "\n\n".join(parts) + "\n"


def show(benched: Benched) -> None:
    """The same on the terminal."""
    console = Console(width=None if sys.stdout.isatty() else PIPED, **PLAIN)
    for head, rows in _tables(benched):
        table = Table(box=box.SIMPLE_HEAD)
        for number, name in enumerate(head):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if note := _missing(benched):
        console.print(note, soft_wrap=True)


def _tables(benched: Benched) -> list[tuple[list[str], list[list[str]]]]:
    """Heads and rows: the mean return and deviation over seeds, and the aggregates of the scores."""
    suite = benched.suite
    names = [one.name for one in suite.contestants]
    returns = [[task.env, *(_cell(benched, name, task.env) for name in names)] for task in suite.tasks]
    tables = [(["return", *names], returns)]
    if found := aggregates(scores_of(benched)):
        rows = [[what, *(str(each[what]) for each in found.values())] for what in AGGREGATES]
        tables.append((["score, 95% interval", *found], rows))
    return tables


def _cell(benched: Benched, name: str, env: str) -> str:
    results = [result for (one, where, _), result in benched.results.items() if (one, where) == (name, env)]
    values = [result.mean_return for result in results if result.mean_return is not None]
    notes = (
        [f"{len(values)} seed{'s' if len(values) != 1 else ''}"]
        if len(values) < len(benched.suite.seeds)
        else []
    )
    notes += [f"{len(results) - len(values)} diverged"] if len(values) < len(results) else []
    if not values:
        return ", ".join(notes[1:]) or "–"
    spread = f" ± {amount(stdev(values))}" if len(values) > 1 else ""
    return f"{amount(fmean(values))}{spread}" + (f" ({', '.join(notes)})" if notes else "")


def _missing(benched: Benched) -> str:
    left = [one.name for one in benched.suite.contestants if one.name not in scores_of(benched)]
    if not left:
        return ""
    return f"Scores are those of algorithms all of whose runs have ended; not yet: {', '.join(left)}."
