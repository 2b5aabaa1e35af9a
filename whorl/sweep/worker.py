"""A trial in a process of its own: the runs of its seeds, trained from one evaluation to the next."""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from whorl.core.errors import ConfigError, DivergedError
from whorl.core.process import configure_process, interruptible_waits
from whorl.distributed.task_pool import prepare_process
from whorl.run.build import learner_threads, on_gpu
from whorl.run.prepare import prepare_all
from whorl.run.trainer import Trainer
from whorl.settings.merge import Settings


@dataclass(frozen=True)
class Task:
    """What a trial trains."""

    number: int
    algorithm: str
    env: str
    layers: tuple[Mapping[str, Any], ...]
    """settings of the sweep"""
    params: Mapping[str, Any]
    """settings of the trial"""
    seeds: tuple[int, ...]
    folder: str
    """of the sweep, in which each run has one"""
    eval_freq: int


@dataclass(frozen=True)
class Progress:
    """How far a trial has come."""

    rung: int
    """evaluations that are behind it, counted by `eval_freq`"""
    returns: tuple[float, ...]
    """of the last evaluation of each seed"""
    steps: int
    finished: bool
    note: str = ""
    """why it can't continue"""
    invalid: bool = False
    """whether that is because its settings do not fit each other; else it diverged"""


@dataclass
class _Run:
    trainer: Trainer
    last: float = math.nan


class TrialWorker:
    """Lives in a process of its own and works on one trial after the other.

    Args:
        cores: those that it may use; none: all.
        place: its number among all workers; each has one of the GPUs.
    """

    def __init__(self, cores: Sequence[int], registered: Mapping[str, Mapping[str, Any]], place: int) -> None:
        prepare_process(cores, registered)
        self.place = place
        self.runs: list[_Run] = []
        self.rung = 0
        self._open = ExitStack()

    def train(self, task: Task) -> Progress:
        """Begin a trial, and train up to its first evaluation."""
        self.close()
        self.rung = 0
        try:
            self.runs = [_Run(self._trainer(task, seed)) for seed in task.seeds]
        except ConfigError as error:
            return Progress(0, (), 0, True, error.message, True)
        run = self.runs[0].trainer.settings.run
        self._open.enter_context(
            configure_process(run.threads, run.tf32, learner_threads(self.runs[0].trainer.settings))
        )
        self._open.enter_context(interruptible_waits())
        for one in self.runs:
            one.trainer.owns_process = True
            self._open.enter_context(one.trainer)
        return self.advance(task)

    def advance(self, task: Task) -> Progress:
        """Train up to the next evaluation of all seeds."""
        goal = (self.rung + 1) * task.eval_freq
        try:
            for run in self.runs:
                _train_until(run, goal)
        except (ConfigError, DivergedError) as error:
            self._drop()
            why = error.message.partition(";")[0]
            return Progress(self.rung, (), 0, True, why, isinstance(error, ConfigError))
        steps = min(run.trainer.steps for run in self.runs)
        finished = all(run.trainer.finished for run in self.runs)
        self.rung = max(self.rung + 1, steps // task.eval_freq)
        found = Progress(self.rung, tuple(run.last for run in self.runs), steps, finished)
        if finished:
            self.close()
        return found

    def prune(self, task: Task) -> bool:
        """End the trial before its budget is spent."""
        self.close()
        return True

    def close(self) -> None:
        """Write what the end of a run writes, and free its environments."""
        runs, self.runs = self.runs, []
        stack, self._open = self._open, ExitStack()
        if runs:
            with suppress(DivergedError):
                stack.close()

    def _drop(self) -> None:
        """Free everything and write nothing."""
        self.runs, stack, self._open = [], self._open, ExitStack()
        error = DivergedError("dropped")
        stack.__exit__(DivergedError, error, None)

    def _trainer(self, task: Task, seed: int) -> Trainer:
        own = {
            "seed": seed,
            "runs": task.folder,
            "name": run_name(task.number, seed),
            "ray": "",
            "quiet": True,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings: the sweep has shown them once
            source, settings = prepare_all(
                task.env, task.algorithm, {**task.params, **own}, task.layers, None, {}
            )
        assert isinstance(settings, Settings)  # the sweep refuses several behaviours
        return Trainer(source, on_gpu(settings, self.place))


def run_name(number: int, seed: int) -> str:
    """The folder of a run."""
    return f"trial_{number}_seed_{seed}"


def _train_until(run: _Run, goal: int) -> None:
    """Train until the first evaluation at `goal` steps or later, or to the end."""
    trainer = run.trainer
    while not trainer.finished:
        row = trainer.step()
        if "evaluation/return" in row:
            run.last = float(row["evaluation/return"])
        elif trainer.finished:  # max_seconds are over, after which a run does not evaluate by itself
            run.last = trainer.evaluate().mean_return
        else:
            continue
        if not math.isfinite(run.last):
            raise DivergedError("the return of its evaluation is not finite")
        if trainer.steps >= goal:
            return
