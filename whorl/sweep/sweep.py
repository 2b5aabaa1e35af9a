"""The loop of a sweep: ask Optuna for settings, train them in processes or on Ray, prune, write down what became of it.

The sweep's folder:

    sweep.yaml               settings of the sweep and of its trials
    study.db                 Optuna's storage (SQLite): all trials, their settings and evaluations
    trial_N_seed_S           the run folder of each run
    history.png, ...         pictures, sweep.html

All writes to the storage are transactions of this one process, so a sweep can be killed at any moment. Trials that
were under way are marked as failed when it is continued, and their settings are tried again from the start.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.core.hardware import cores
from whorl.core.process import first_interrupt
from whorl.distributed.remote import RemoteError, make_backend
from whorl.distributed.task_pool import ProcessPool, gpu_share, process_arguments
from whorl.log.console import amount
from whorl.log.statistics import interquartile_mean
from whorl.state.runlock import RunLock
from whorl.sweep.setup import Sweeping, is_sweep, layers_of, load, read, save
from whorl.sweep.space import decoded, suggested
from whorl.sweep.strategy import import_optuna, make_pruner, make_sampler
from whorl.sweep.worker import Progress, Task, TrialWorker

STORAGE = "study.db"
POLL_SECONDS = 0.5
RETRIES = 2
"""times that settings are tried again after their process died"""
INVALID = 5
"""trials at the start whose settings do not fit each other, after which the sweep ends"""
RETRY, NOTE, STEPS, RETURNS, GAVE_UP = "retries", "note", "steps", "returns", "gave_up"
"""what is stored with a trial"""


@dataclass(frozen=True)
class TrialRow:
    """One trial that has ended."""

    number: int
    state: str
    """complete, pruned, diverged, invalid or failed"""
    value: float
    """the objective at its end, or at its last evaluation; nan: there was none"""
    params: Mapping[str, Any]
    steps: int
    returns: tuple[float, ...]
    """of the last evaluation of each seed"""
    note: str = ""


@dataclass(frozen=True)
class Swept:
    """How a sweep ended."""

    folder: Path
    rows: list[TrialRow]
    reason: str
    signal: str = ""
    """Ctrl-C or SIGTERM, if one ended it"""

    def best(self, count: int = 10) -> list[TrialRow]:
        """Complete trials, the best first."""
        complete = [row for row in self.rows if row.state == "complete"]
        return sorted(complete, key=lambda row: (-row.value, row.number))[:count]


@dataclass
class _Trial:
    """A trial under way."""

    trial: Any
    task: Task
    history: list[tuple[float, ...]] = field(default_factory=list)
    """returns of all seeds at each evaluation"""
    pruned: bool = False
    """whether its end is written down, and its process is closing the runs"""


def load_sweep(config: str | Path, settings: Mapping[str, Any], folder: str | Path = "") -> "Sweep":
    """The sweep of a settings file or of a sweep's folder.

    Args:
        settings: come before those of the file; on a folder, those that a sweep may change.
        folder: where it is; by default sweep_FILE in the folder `runs`.
    """
    import_optuna()
    path = Path(config)
    if path.is_dir():
        if not is_sweep(path):
            raise ConfigError(f"{path} is not the folder of a sweep; name one, or a settings file")
        if folder:
            raise ConfigError(f"{path} is a sweep's folder already; leave --folder out")
        return Sweep(path, load(path, settings))
    sweeping = read(layers_of(path, settings))
    default = Path(sweeping.base.run.runs) / f"sweep_{path.stem.removeprefix('sweep_')}"
    return Sweep(files.expanded(folder or default), sweeping)


class Sweep:
    """A sweep in its folder.

    Args:
        say: shows a line.
    """

    def __init__(self, folder: Path, sweeping: Sweeping, say: Callable[[str], None] = print) -> None:
        self.folder, self.sweeping, self.config, self.say = folder, sweeping, sweeping.config, say
        self._signal = ""
        self._running: dict[int, _Trial] = {}
        self._invalid = self._finished = 0
        self._reached = False
        self._began = time.monotonic()

    def run(self) -> Swept:
        """Go on until the last trial, the target, the time limit or a signal."""
        run = self.sweeping.base.run
        with ExitStack() as stack:
            self.open(stack)
            stack.enter_context(first_interrupt(self._interrupt))
            self._recover()
            if not self._over():
                count = min(self.config.parallel or cores(), max(1, self._left()))
                backend = make_backend(run.ray, count)
                stack.callback(backend.close)
                given, gpus = process_arguments(count, bool(run.ray)), gpu_share(backend, run.device, count)
                self.pool = ProcessPool(
                    backend, "trial", TrialWorker, lambda place: (*given[place], place), count, gpus
                )
            while not self._over() and (self._running or self._left()):
                self.lock.beat()
                self._start_trials()
                for number, _, answer in self.pool.ready(POLL_SECONDS):
                    self._handle(self._running[number], answer)
            self._recover()
        return Swept(self.folder, self.rows(), self._reason(), self._signal)

    def found(self) -> Swept:
        """Results of the trials so far."""
        with ExitStack() as stack:
            self.open(stack)
            return Swept(self.folder, self.rows(), "what it has found so far", "")

    def open(self, stack: ExitStack) -> None:
        """Take the folder, and open Optuna's storage in it."""
        optuna = import_optuna()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"can't create {self.folder}: {files.reason(error)}") from error
        self.lock = RunLock(self.folder)
        stack.callback(self.lock.release)
        save(self.sweeping, self.folder)
        seed, run = self.sweeping.base.run.seed, self.sweeping.base.run
        self.states = optuna.trial.TrialState
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{(self.folder / STORAGE).resolve()}")
            stack.callback(storage.engine.dispose)
            self.study = optuna.create_study(
                storage=storage,
                study_name="sweep",
                direction="maximize",
                load_if_exists=True,
                pruner=make_pruner(self.config.pruner, run.eval_freq, run.total_timesteps),
            )
        except WhorlError:
            raise
        except Exception as error:  # SQLAlchemy's, of a file that is damaged or no database
            raise CheckpointError(
                f"{self.folder / STORAGE} can't be opened: {' '.join(str(error).split())}"
            ) from None
        earlier = len(self.study.trials)
        self.study.sampler = make_sampler(self.config.sampler, self.sweeping.spaces, seed, earlier)
        self.total = self.config.trials
        if self.config.sampler.name.lower() == "grid":
            self.total = min(self.total, math.prod(len(space.grid()) for space in self.sweeping.spaces))

    def rows(self) -> list[TrialRow]:
        """All trials that have ended, those that are tried again left out."""
        return [self._row(trial) for trial in self._ended()]

    # Trials

    def _ended(self) -> list[Any]:
        kept = (self.states.COMPLETE, self.states.PRUNED)
        return [t for t in self.study.trials if t.state in kept or GAVE_UP in t.user_attrs]

    def _left(self) -> int:
        """Trials that are still to be started."""
        return max(0, self.total - self._finished - len(self._running))

    def _start_trials(self) -> None:
        for _ in range(min(self._left(), len(self.pool.idle))):
            trial = self.study.ask()
            params = suggested(self.sweeping.spaces, trial)
            run, sweeping = self.sweeping.base.run, self.sweeping
            seeds = tuple(run.seed + number for number in range(self.config.seeds))
            task = Task(
                trial.number,
                sweeping.algorithm,
                sweeping.env,
                sweeping.trial_layers(),
                params,
                seeds,
                str(self.folder),
                sweeping.eval_freq,
            )
            self._running[trial.number] = _Trial(trial, task)
            self.pool.give(trial.number, task)

    def _handle(self, one: _Trial, answer: Any) -> None:
        """Handle the answer of a trial's process."""
        number = one.task.number
        if one.pruned:  # the process has closed its runs, or failed to: either way the trial is over
            del self._running[number]
        elif isinstance(answer, RemoteError):
            self._failed(one, answer)
        elif answer.note:
            self._end(one, "invalid" if answer.invalid else "diverged", answer)
            self._invalid += answer.invalid
            if answer.invalid and self._invalid >= INVALID and self._invalid == self._finished:
                raise ConfigError(
                    f"the settings of the first {self._invalid} trials do not fit each other; the last one: "
                    f"{answer.note}"
                )
        else:
            one.history.append(answer.returns)
            value = self.objective(one.history)
            one.trial.report(value, answer.rung * one.task.eval_freq)
            if answer.finished:
                self._end(one, "complete", answer, value)
            elif one.trial.should_prune():
                self._end(one, "pruned", answer, value)
                self.pool.give_next(number, one.task, "prune")
                one.pruned = True
                self._running[number] = one  # until its process has closed the runs
            else:
                self.pool.give_next(number, one.task, "advance")

    def objective(self, history: list[tuple[float, ...]]) -> float:
        """The value of a trial, given the returns of its seeds at each evaluation."""
        returns = np.array(history)  # [evaluations, seeds]
        scores = {"last": returns[-1], "best": returns.max(0), "average": returns.mean(0)}[self.config.score]
        if self.config.objective == "worst":
            return float(scores.min())
        return float(scores.mean() if self.config.objective == "mean" else interquartile_mean(scores))

    def _end(self, one: _Trial, state: str, answer: Progress, value: float = math.nan) -> None:
        trial = one.trial
        trial.set_user_attr(STEPS, answer.steps)
        trial.set_user_attr(RETURNS, list(answer.returns))
        trial.set_user_attr(NOTE, f"{state}: {answer.note}" if answer.note else state)
        if state == "complete":
            self.study.tell(trial, value)
            self._reached = self._reached or value >= self.config.target_return
        else:  # samplers take a trial that was pruned for a bad one
            self.study.tell(trial, state=self.states.PRUNED)
        del self._running[one.task.number]
        self._finished += 1
        self._show(one, state, answer, value)

    def _failed(self, one: _Trial, error: RemoteError) -> None:
        """Its process died or raised: try the settings again, unless that happened too often."""
        times = one.trial.user_attrs.get(RETRY, 0)
        reason = error.message.partition("\n")[0]
        del self._running[one.task.number]
        if times < RETRIES:
            self.say(f"trial {one.task.number} failed and is tried again: {reason}")
            self._again(one.trial, times + 1)
            return
        self.say(f"trial {one.task.number} failed {times + 1} times; its settings are given up: {reason}")
        one.trial.set_user_attr(GAVE_UP, True)
        one.trial.set_user_attr(NOTE, f"failed: {reason}")
        self.study.tell(one.trial, state=self.states.FAIL)
        self._finished += 1
        if not any(trial.state == self.states.COMPLETE for trial in self.study.trials):
            raise error

    def _again(self, trial: Any, times: int) -> None:
        """Put the settings of a trial back into the queue, and mark it as failed."""
        if trial.params:
            self.study.enqueue_trial(dict(trial.params), user_attrs={RETRY: times})
        self.study.tell(trial.number, state=self.states.FAIL)
        for run in self.folder.glob(f"trial_{trial.number}_seed_*"):
            with files.scratch(run) as trash:
                run.rename(trash)

    def _recover(self) -> None:
        """Trials that are under way in the storage, but in no process any more, are tried again."""
        self._running.clear()
        self._finished = len(self._ended())
        best = max((t.value for t in self.study.trials if t.state == self.states.COMPLETE), default=-math.inf)
        self._reached = best >= self.config.target_return
        for trial in self.study.get_trials(states=(self.states.RUNNING,)):
            self._again(trial, trial.user_attrs.get(RETRY, 0))

    def _row(self, trial: Any) -> TrialRow:
        note = trial.user_attrs.get(NOTE, "")
        state, _, why = note.partition(": ")
        last = trial.value if trial.value is not None else math.nan
        if trial.state == self.states.PRUNED and trial.intermediate_values:
            last = trial.intermediate_values[max(trial.intermediate_values)]
        return TrialRow(
            trial.number,
            state or trial.state.name.lower(),
            last,
            decoded(self.sweeping.spaces, trial.params),
            int(trial.user_attrs.get(STEPS, 0)),
            tuple(trial.user_attrs.get(RETURNS, ())),
            why,
        )

    # When it ends

    def _over(self) -> bool:
        late = 0 < self.config.max_minutes * 60 <= time.monotonic() - self._began
        return bool(self._signal) or late or self._reached or self._finished >= self.total

    def _reason(self) -> str:
        if self._signal:
            return "it was interrupted"
        if self._reached:
            return "the target return is reached"
        return "all trials are finished" if self._finished >= self.total else "the time is over"

    def _interrupt(self, name: str) -> None:
        self._signal = name
        self.say(f"{name}: stopping; trials that are not finished will be repeated")

    def _show(self, one: _Trial, state: str, answer: Progress, value: float) -> None:
        words = ", ".join(f"{name} {shown(value)}" for name, value in one.task.params.items())
        what = {
            "complete": f"{amount(value)}",
            "pruned": f"{amount(value)}, pruned after {answer.steps:,} steps",
        }
        self.say(f"trial {one.task.number}: {what.get(state, f'{state}: {answer.note}')}  ({words})")


def shown(value: Any) -> str:
    """A value of a setting, short."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
