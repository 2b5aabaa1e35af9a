"""The loop of a benchmark: train every algorithm on every environment with every seed, in processes or on Ray.

The benchmark's folder:

    suite.yaml                           what is compared
    ALGORITHM_ENVIRONMENT_seed_S         the run folder of each run; result.json is there when it has ended
    results.json, table.md, *.png        what came out

Runs that have ended are skipped and others continued from their newest checkpoint, so a benchmark can be killed at any
moment and continues with the same command.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whorl.bench.cell import Cell, CellResult, CellWorker, read_result
from whorl.bench.suite import (
    CONFIG,
    Suite,
    check_runs,
    find_suite,
    read_contestant,
    read_seeds,
    read_suite,
    run_name,
    save,
    suites,
)
from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, nearest
from whorl.core.hardware import cores
from whorl.core.process import first_interrupt
from whorl.distributed.remote import RemoteError, RestartPolicy, make_backend
from whorl.distributed.task_pool import ProcessPool, gpu_share, process_arguments
from whorl.log.console import amount
from whorl.state.runlock import RunLock

POLL_SECONDS = 0.5
RESTARTS = 2
"""times that a run whose process died is continued"""


@dataclass(frozen=True)
class Choice:
    """Parts of a suite, and settings that come before its own; empty: all of it, as it is."""

    algorithms: Sequence[str] = ()
    environments: Sequence[str] = ()
    seeds: Sequence[int] = ()
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Benched:
    """How a benchmark ended."""

    folder: Path
    suite: Suite
    results: dict[tuple[str, str, int], CellResult]
    """of the runs that have ended, by algorithm, environment and seed"""
    signal: str = ""
    """Ctrl-C or SIGTERM, if one ended it"""


def load_bench(name: str, choice: Choice, folder: str = "", runs: str = "runs") -> "Bench":
    """The benchmark of a suite's name or file, or of a benchmark's folder or its name in `runs`."""
    if name not in suites() and not Path(name).exists() and (Path(runs) / name / CONFIG).is_file():
        name = str(Path(runs) / name)
    title, content = find_suite(name)
    suite = chosen(read_suite(title, content), choice)
    if Path(name).is_dir():
        if folder:
            raise ConfigError(f"{name} is a benchmark's folder already; leave --folder out")
        return Bench(Path(name), suite)
    return Bench(files.expanded(folder or Path(runs) / f"bench_{title}"), suite)


def chosen(suite: Suite, choice: Choice) -> Suite:
    """A part of a suite; algorithms that it does not have join with the settings of their presets."""
    where, contestants, tasks, seeds = f"suite {suite.name!r}", suite.contestants, suite.tasks, suite.seeds
    for flag, names in (("--algorithms", choice.algorithms), ("--environments", choice.environments)):
        if twice := [one for one in names if names.count(one) > 1]:
            raise ConfigError(
                f"{flag} names {twice[0]!r} twice, which would train one run twice; name it once"
            )
    if choice.algorithms:
        known = {one.name: one for one in contestants}
        added = [known.get(name) or read_contestant(where, name) for name in choice.algorithms]
        contestants = tuple(added)
    if choice.environments:
        there = {task.env: task for task in tasks}
        for env in choice.environments:
            if env not in there:
                raise ConfigError(f"{where} has no environment {env!r}; {nearest(env, there)}")
        tasks = tuple(there[env] for env in choice.environments)
    if choice.settings:
        tasks = tuple(replace(task, settings={**task.settings, **choice.settings}) for task in tasks)
    if choice.seeds:
        seeds = read_seeds(where, choice.seeds)
    return replace(suite, contestants=contestants, tasks=tasks, seeds=seeds)


class Bench:
    """A benchmark in its folder.

    Args:
        say: shows a line.
    """

    def __init__(self, folder: Path, suite: Suite, say: Callable[[str], None] = print) -> None:
        self.folder, self.suite, self.say = folder, suite, say
        self._signal = ""

    def run(self, jobs: int = 0, ray: str = "") -> Benched:
        """Train what has not ended yet, `jobs` runs at the same time (0: one per core), until all have or a signal."""
        settings = check_runs(self.suite)
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(f"can't create {self.folder}: {files.reason(error)}") from error
            lock = RunLock(self.folder)
            stack.callback(lock.release)
            save(self.suite, self.folder)
            queue = deque(cell for cell in self._cells(settings) if read_result(Path(cell.folder)) is None)
            total = len(self.suite.contestants) * len(self.suite.tasks) * len(self.suite.seeds)
            self.say(f"{total} runs, {total - len(queue)} of them finished before: {self.folder}")
            stack.enter_context(first_interrupt(self._interrupt))
            if queue:
                count = min(jobs or cores(), len(queue))
                backend = make_backend(ray, count)
                stack.callback(backend.close)
                given, gpus = process_arguments(count, bool(ray)), gpu_share(backend, "auto", count)
                self.pool = ProcessPool(
                    backend, "run", CellWorker, lambda place: (*given[place], place), count, gpus
                )
                self._train(queue, total, lock)
        return self.results()

    def results(self) -> Benched:
        """Results of the runs that have ended."""
        found = {}
        for name, env, seed in self._keys():
            result = read_result(self.folder_of(name, env, seed))
            if result is not None:
                found[name, env, seed] = result
        return Benched(self.folder, self.suite, found, self._signal)

    def _train(self, queue: deque[Cell], total: int, lock: RunLock) -> None:
        restarts = RestartPolicy(RESTARTS, 0, self.say)
        done = total - len(queue)
        while (queue or self.pool.busy) and not self._signal:
            lock.beat()
            while queue and self.pool.idle:
                cell = queue.popleft()
                self.pool.give(cell.folder, cell)
            for _, cell, answer in self.pool.ready(POLL_SECONDS):
                name = f"{cell.name} on {cell.env}, seed {cell.seed}"
                if isinstance(answer, RemoteError):
                    restarts.failed(name, answer)
                    queue.appendleft(cell)
                    continue
                restarts.succeeded(name)
                done += 1
                value = (
                    f"diverged: {answer.note}" if answer.mean_return is None else amount(answer.mean_return)
                )
                self.say(f"{name}: {value}  ({done} of {total})")

    def _keys(self) -> list[tuple[str, str, int]]:
        """All runs, one seed of everything first."""
        suite = self.suite
        return [
            (one.name, task.env, seed)
            for seed in suite.seeds
            for task in suite.tasks
            for one in suite.contestants
        ]

    def _cells(self, settings: Mapping[tuple[str, str], Any]) -> list[Cell]:
        def cell(name: str, env: str, seed: int) -> Cell:
            found = settings[name, env]
            folder = str(self.folder_of(name, env, seed))
            return Cell(name, env, seed, folder, found.plain(), found.buffer_chosen)

        return [cell(*key) for key in self._keys()]

    def folder_of(self, name: str, env: str, seed: int) -> Path:
        """The run folder of a run."""
        return self.folder / run_name(name, env, seed)

    def _interrupt(self, name: str) -> None:
        self._signal = name
        self.say(f"{name}: stopping; runs continue from their newest checkpoints next time")
