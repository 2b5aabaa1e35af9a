"""What commands print: tables of results, the commands to continue with, lists of runs."""

import math
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from whorl.core.errors import WhorlError
from whorl.settings.merge import Settings

if TYPE_CHECKING:
    from whorl.population.evolver import Evolved
    from whorl.run.reporting import Result


def in_lines(error: WhorlError) -> str:
    """An error for the terminal: its sentence, below it the details, with their lines kept."""
    return f"{error.message}\n\n{error.details}" if error.details else error.message


def show_result(result: "Result", settings: Settings, env: str = "") -> None:
    """A table, and the commands to continue with, which name the environment that `whorl resume --env` was given."""
    show_table(
        {
            "stopped because": result.reason,
            "steps": result.steps,
            "episodes": result.episodes,
            "mean return": "no episode ended" if math.isnan(result.mean_return) else result.mean_return,
            **{f"mean return of {name}": value for name, value in result.returns.items()},
            "wall time": f"{result.wall_time:.1f} s",
            "run folder": str(result.run_dir),
        }
    )
    if settings.run.save_model:
        from whorl.run.trust import trust_flag

        trust = trust_flag(settings)
        also = (*trust, *(("--env", env) if env else ()))
        print(f"evaluate: {command('eval', result.run_dir, *also)}")
        print(f"continue: {command('resume', result.run_dir, *_more(result), *also)}")
        if result.code:
            print(f"on another machine, with the code saved in it: --trust {result.code}")


def show_evolved(result: "Evolved", settings: Settings) -> None:
    """The best learner of a population, and the commands to continue with."""
    from whorl.run.trust import trust_flag

    show_table(
        {
            "stopped because": result.reason,
            "generations": result.generations,
            "steps of all learners": result.steps,
            "best score": result.mean_return,
            "learner": result.learner,
            **dict(result.params or {}),
            "wall time": f"{result.wall_time:.1f} s",
            "folder": str(result.run_dir),
        }
    )
    trust = trust_flag(settings)
    print(f"evaluate: {command('eval', result.run_dir, *trust)}")
    more = [] if result.interrupted else ["--generations", str(2 * result.generations)]
    print(f"continue: {command('resume', result.run_dir, *more, *trust)}")


def show_seeds(results: Mapping[int, "Result | None"]) -> None:
    """The mean return of every seed (None: it failed), their mean, and the command that compares them."""
    ended = [result for result in results.values() if result is not None]
    returns = [result.mean_return for result in ended if math.isfinite(result.mean_return)]
    rows: dict[str, Any] = {
        f"seed {seed}": "failed" if result is None else result.mean_return for seed, result in results.items()
    }
    if len(returns) > 1:
        rows["mean ± std"] = f"{fmean(returns):.1f} ± {stdev(returns):.1f}"
    show_table(rows, "mean return")
    if ended:
        print(f"compare:  {command('plot', *(result.run_dir for result in ended))}")


def command(*words: object) -> str:
    """A command of `whorl` that works as printed."""
    return shlex.join(["whorl", *map(str, words)])


def _more(result: "Result") -> list[str]:
    """The flag that doubles the limit that was reached."""
    spent = {
        "steps": ["--total-timesteps", str(2 * result.steps)],
        "episodes": ["--total-episodes", str(2 * result.episodes)],
        "iterations": ["--max-iterations", str(2 * result.iterations)],
    }
    return spent.get(result.reason.removeprefix("the budget of ").partition(" ")[0], [])


def show_table(values: Mapping[str, Any], title: str = "") -> None:
    """Names and values in a frame."""
    from whorl.log.console import Console

    Console(0).summary(values, title)


def show_columns(values: Mapping[str, str]) -> None:
    """A name and a line about it in each row."""
    width = max((len(name) for name in values), default=0)
    for name, about in values.items():
        print(f"{name:<{width}}  {about}")


def show_runs(folder: Path) -> None:
    """Every run below a folder with its state, steps and last return."""
    from whorl.page.catalog import Catalog

    found: dict[str, dict[str, Any]] = {}
    if folder.is_dir():
        catalog = Catalog(folder)
        catalog.refresh()
        found = {name: entry.row for name, entry in catalog.entries.items()}
    if not found:
        print(f"there are no runs in {folder}")
        return
    rows = [("run", "state", "steps", "return", "written"), *(_run_row(row) for row in found.values())]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for name, state, *numbers in rows:
        columns = [f"{text:>{width}}" for text, width in zip(numbers, widths[2:])]
        print("  ".join([f"{name:<{widths[0]}}", f"{state:<{widths[1]}}", *columns]))


def _run_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    earned = "" if row["return"] is None else f"{row['return']:.1f}"
    when = f"{datetime.fromtimestamp(row['written']):%Y-%m-%d %H:%M}"
    return row["name"], row["state"], f"{int(row['steps'] or 0):,}", earned, when
