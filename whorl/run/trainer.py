"""The trainer: one run, from settings to a trained policy, step by step or as a whole.

    trainer.train()                    # with progress display and Ctrl-C handling

    with trainer:                      # or the same loop in your own hands
        for metrics in trainer:
            if metrics["steps"] > 10_000:
                break

A trainer changes nothing process-wide outside of `train()`, so several can take turns in one process.
"""

import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakMethod

import torch
import yaml

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector, Row
from whorl.collect.episodes import Episode
from whorl.core import files, messages
from whorl.core.cuda_graphs import GATE
from whorl.core.errors import CheckpointError, ConfigError, DamagedError, WhorlError
from whorl.core.process import CTRL_C, configure_process, first_interrupt, interruptible_waits
from whorl.data.experience import Experience
from whorl.distributed.pool import WorkerPool
from whorl.envs.make import Source
from whorl.log.console import Console
from whorl.log.maps import heat_map, save_maps, shades
from whorl.log.writers import Log
from whorl.run.build import Needs, Parts, build, gpu_memory, learner_threads
from whorl.run.callbacks import (
    BestCheckpoint,
    Callback,
    Screenshots,
    call,
    check_callbacks,
    check_metrics,
    overridden,
)
from whorl.run.checkpointing import (
    FAILED,
    RESTARTS,
    Checkpointing,
    find_checkpoint,
    load_weights,
    use_checkpoint,
)
from whorl.run.dataset import fill_replay
from whorl.run.evaluate import Evaluation, Evaluator
from whorl.run.failures import how_to_go_on, interrupt_explained, saving_on_failure, what_is_saved
from whorl.run.hang_watch import HangWatch
from whorl.run.loop import Counters, Loop
from whorl.run.progress import Progress
from whorl.run.reporting import (
    LoggerFactory,
    Reporting,
    Result,
    SystemMetrics,
    Terminated,
    cut_metrics,
    interrupted,
)
from whorl.settings.aliases import NOTES
from whorl.settings.elsewhere import TRAINER, explaining
from whorl.settings.merge import Settings
from whorl.settings.schema import Count, checked
from whorl.state import checkpoint
from whorl.state.code import flag
from whorl.state.policy import build_agent
from whorl.state.provenance import provenance
from whorl.state.runfolder import new_run_folder, resolve_run
from whorl.state.runlock import RunLock
from whorl.state.streams import Streams

P = ParamSpec("P")
R = TypeVar("R")


def _recorded(method: Callable[Concatenate["Trainer", P], R]) -> Callable[Concatenate["Trainer", P], R]:
    """Log the messages of a method of the trainer."""

    @wraps(method)
    def wrapped(self: "Trainer", *args: P.args, **kwargs: P.kwargs) -> R:
        with messages.recording(self._record):
            return method(self, *args, **kwargs)

    return wrapped


@explaining(TRAINER)
class Trainer:
    """One run. The first step builds everything and opens the run folder.

    Args:
        loggers: besides those that settings ask for: names of registered loggers, or functions (classes) that make one
            from a run folder and settings.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[str | LoggerFactory] = (),
    ) -> None:
        check_callbacks(callbacks)
        self.source, self.settings, self.loggers = source, settings, loggers
        self.callbacks: list[Callback] = list(callbacks)
        if settings.run.eval and settings.run.save_model:
            self.callbacks.insert(0, BestCheckpoint())
        if settings.run.screenshot_freq:
            self.callbacks.append(Screenshots(settings.run.screenshot_freq))
        self.run_dir: Path | None = None
        self.counters = Counters()
        self.wall_time = 0.0
        """seconds of training, including those before the run was resumed"""
        self._spent_here = 0.0
        """seconds of building, restoring and training since the run was opened here, for `max_seconds`"""
        self.interrupted = False
        self._signal = ""
        """what interrupted training"""
        self._stop_reason = ""
        self._parts: Parts | None = None
        self._reporting: Reporting | None = None
        """open from the first step until `close`"""
        self._lock: RunLock | None = None
        """held while this process trains in the run folder"""
        self._console: Console | None = None
        self._unlogged: list[str] = []
        """messages from before the log was open"""
        self._built = False
        self._restored = False
        """whether state was loaded, or training has begun"""
        self._branched = False
        """whether training continues from a checkpoint that is not the newest"""
        self._purge_step: int | None = None
        self._last_row_at: int | None = None
        """see `Reporting`"""
        self._row: dict[str, Any] = {}
        self._logged: set[str] | None = None
        """names in `_row` that were logged, as long as it may still change"""
        self.owns_process = False
        """whether an environment that can't be interrupted ends the process, as on the command line"""
        self._hang_watch: HangWatch | None = None
        """as long as the run is open"""
        self._inside_step = False
        self._iterating = False
        """whether a rollout or its updates are under way, so that nothing can be saved"""
        self._broken = False
        """whether they ended with an error, so that nothing can be saved any more"""
        self._save_asked = False
        """whether `save` was called meanwhile"""
        self._result: Result | None = None

    def __repr__(self) -> str:
        where = "" if self.run_dir is None else f" in {self.run_dir}"
        return f"<trainer of {self.settings.algorithm} on {self.source.id} after {self.steps:,} steps{where}>"

    # What a run consists of

    @property
    def config(self) -> Settings:
        """The settings of this run."""
        return self.settings

    @property
    def parts(self) -> Parts:
        """Agent, collector, experience and learner, from `build` on."""
        if self._parts is None:
            raise WhorlError("nothing is built yet; call build(), step() or train() first")
        return self._parts

    @property
    def agent(self) -> Agent:
        return self.parts.agent

    @property
    def collector(self) -> Collector:
        return self.parts.acting.collector

    @property
    def experience(self) -> Experience:
        return self.parts.experience

    @property
    def streams(self) -> Streams:
        return self.parts.streams

    @property
    def device(self) -> torch.device:
        """Where updates run."""
        return self.parts.device

    @property
    def log(self) -> Log:
        """All loggers."""
        if self._reporting is None:
            raise WhorlError("no log is open; call step() or train() first")
        return self._reporting.log

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.counters.steps

    @property
    def iteration(self) -> int:
        """Rollouts so far, each with its updates."""
        return self.counters.iteration

    @property
    def episodes(self) -> int:
        """Episodes that ended so far."""
        return self.counters.episodes

    @property
    def mean_return(self) -> float:
        """Mean return of the last evaluation or, without one, of at least the last 100 training episodes."""
        return self.counters.mean_return

    def returns(self) -> dict[str, float]:
        """The mean return of each behaviour; empty where there is one."""
        return {}

    @property
    def replay_bytes(self) -> int:
        """Size of the replay buffer, known before it is allocated; 0 for algorithms without one."""
        if self._parts is not None:
            return self.agent.replay_bytes()
        return build_agent(self.settings, self.source.spec(self.settings.run.num_envs)).replay_bytes()

    # Training

    def train(self, total_timesteps: int | None = None, **unknown: Any) -> Result:
        """Train until the budget is spent or a callback stops it; leaves a checkpoint (with `save_model`).

        `total_timesteps` is the setting of that name, for a run that has not begun: train(100_000).

        Ctrl-C and SIGTERM end it after the iteration under way, with a checkpoint, and raise `KeyboardInterrupt` or
        `Terminated`, a `SystemExit`, both with the `result`. The second signal ends it at once, and so does the first
        while there is nothing to save and no actor has started.
        """
        for name in unknown:
            remedy = NOTES.get(name, f"give it to whorl.load(env, 'ppo', {name}=...)")
            raise ConfigError(f"train takes total_timesteps alone, not {name!r}: {remedy}")
        if total_timesteps is not None:
            self._set_budget(total_timesteps)
        run = self.settings.run
        with ExitStack() as stack:
            stack.enter_context(configure_process(run.threads, run.tf32, learner_threads(self.settings)))
            stack.callback(self._release)
            stack.enter_context(interrupt_explained(self))
            self._rebuild()
            stack.enter_context(first_interrupt(self.interrupt))
            stack.enter_context(interruptible_waits())
            reporting = self._open()
            console = reporting.console(self.parts, self.counters, self._spent_here)
            self._console = stack.enter_context(console)
            stack.callback(self._unwatch)
            self.loop.watch(Progress(self._tick))
            for row in self:
                console.update(self._spent()[0], row)
            console.update(self._spent()[0])
            result = self._finish()
        if self.interrupted:
            ended_by_user = self._signal == CTRL_C
            raise interrupted(result, how_to_go_on(self)) if ended_by_user else Terminated(result)
        return result

    def _set_budget(self, total_timesteps: int) -> None:
        if self._built or self._restored:
            raise WhorlError(
                f"train({total_timesteps}) is for a run that has not begun, and this one has made {self.steps} steps; "
                f"{total_timesteps} more are whorl.resume(run, total_timesteps={self.steps} + {total_timesteps})"
            )
        self.settings = self.settings.replace(total_timesteps=total_timesteps)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        self._open()
        if self.finished:
            self._finish()
            raise StopIteration
        return self.step()

    @_recorded
    def step(self) -> dict[str, Any]:
        """Run one iteration with the logging, evaluation and checkpoint that are due; its metrics.

        An iteration is one rollout and its updates. Losses are among the metrics every `log_freq` steps.
        """
        GATE.give_way()
        self._open()
        if self._inside_step:
            raise WhorlError(self._failed())
        if self.finished:
            raise WhorlError(f"training is over: {self._reason()}; resume the run with a larger budget")
        self._inside_step = True
        if self._hang_watch is not None:
            self._hang_watch.thread = threading.get_ident()
        began, before = time.perf_counter(), self.wall_time
        with saving_on_failure(self, collecting=True), gpu_memory(self.settings), self._iteration():
            row = self._row = self.loop.iterate(self.counters.progress(self.settings.run))
        self._logged = set()
        if "time/waited_for_actors" in row:
            row |= self._system.metrics(self.agent.updates, row["time/waited_for_actors"])
        row["updates"] = self.agent.updates
        row["time/elapsed"] = self.wall_time = before + time.perf_counter() - began
        with saving_on_failure(self), gpu_memory(self.settings):
            self._observe(row)
        self._write_row()
        self._logged = None
        if self.loop.reset_due:  # after the row was written: a reset that fails belongs to the next iteration
            with saving_on_failure(self, collecting=True), gpu_memory(self.settings):
                self.reset_environments()
        if self._save_asked or (not self.finished and self.checkpointing.due()):
            self.save()
        spent = time.perf_counter() - began
        self.wall_time, self._spent_here = before + spent, self._spent_here + spent
        if 0 < self.settings.run.max_seconds <= self._spent_here:
            self.stop(f"{self.settings.run.max_seconds:g} s are over")
        self._inside_step = False
        return row

    @contextmanager
    def _iteration(self) -> Iterator[None]:
        """A rollout and its updates."""
        self._iterating = self._broken = True
        try:
            yield
            self._broken = False
        finally:
            self._iterating = False

    def _failed(self) -> str:
        return f"the last step failed; call close(), then whorl.resume({str(self.run_dir)!r})"

    @property
    def finished(self) -> bool:
        """Whether the budget is spent or training was stopped."""
        done, total, _ = self._spent()
        return done >= total or bool(self._stop_reason)

    def stop(self, reason: str) -> None:
        """End training after this iteration."""
        self._stop_reason = self._stop_reason or reason

    @_recorded
    def evaluate(self, episodes: int = 0) -> Evaluation:
        """Play `episodes` (default: as configured) with greedy actions."""
        episodes = checked("episodes", episodes, Count)
        self.parts.learner.check_finite()
        progress = self.loop.progress
        evaluation = self._evaluator.evaluate(
            episodes, self.iteration, None if progress is None else progress.evaluated
        )
        self.counters.evaluated_return = evaluation.mean_return
        return evaluation

    def close(self) -> None:
        """End training: write what the end of a run writes, then stop processes and free the environments.

        After a step that failed nothing is written; the run can be resumed from its newest checkpoint.
        """
        try:
            if self._reporting is not None and not self._inside_step:
                self.stop("the trainer was closed")
                self._finish()
        finally:
            self._release()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    def interrupt(self, name: str) -> None:
        """End training after this iteration, as a signal called `name` does: `train` saves, then raises."""
        self.interrupted, self._signal = True, name
        self.stop("it was interrupted")
        again = "; press Ctrl-C again to stop now" if name == CTRL_C else ""
        text = f"{name}: finishing this iteration and saving{again}"
        if self._shown is None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            self._shown.message(text)

    def _notify(self, text: str) -> None:
        """Show a message that nobody should miss, and log it."""
        if self._shown is None:
            with messages.recording(self._record):
                messages.warn(text)
        else:
            self._shown.message(text)
            self._record(text)

    def _record(self, text: str) -> None:
        """Log a message, as soon as there is a log."""
        if self._reporting is None:
            self._unlogged.append(text)
        else:
            self._reporting.log.message(text)

    @property
    def _shown(self) -> Console | None:
        """The progress display, if there is one."""
        return None if self.settings.run.quiet else self._console

    def _tick(self, share: float, rollout: float, doing: str) -> None:
        """Show how far the iteration has come."""
        waits = doing == "collecting" and not self.parts.acting.collector.begun
        if self.interrupted and waits and self.steps == self.counters.saved_steps:  # there is nothing to save
            raise KeyboardInterrupt() if self._signal == CTRL_C else SystemExit(128 + signal.SIGTERM)
        if self._lock is not None:
            self._lock.beat()
        if self._console is None:
            return
        run, (done, _, unit) = self.settings.run, self._spent()
        steps = run.num_envs * run.num_steps
        size, counted = {"steps": (steps, rollout * steps), "iterations": (1, 0)}.get(unit, (0, 0))
        self._console.tick(done + share * size, done + int(counted), doing)

    def _unwatch(self) -> None:
        self._console = None
        self.loop.watch(None)

    def _spent(self) -> tuple[float, float, str]:
        return self.counters.spent(self.settings.run)

    def _on_step(self, step: Row) -> None:
        call(self.callbacks, "on_step", self, step)

    def _on_episode(self, episode: Episode) -> None:
        call(self.callbacks, "on_episode", self, episode)

    def _on_rollout(self, rollout: Any) -> None:
        call(self.callbacks, "on_rollout", self, rollout)

    def _observe(self, row: dict[str, Any]) -> None:
        """Callbacks and evaluation of this iteration; neither draws from a random stream of training."""
        call(self.callbacks, "on_update", self, row)
        check_metrics(row)
        run = self.settings.run
        if run.eval and (self.counters.passed(run.eval_freq) or (self.finished and not self.interrupted)):
            evaluation = self.evaluate()
            row.update(evaluation.metrics())
            for name, image in self.agent.pictures().items():
                self.log.picture(name, image.cpu().numpy(), self.steps)
            call(self.callbacks, "on_evaluation", self, evaluation)

    def _write_row(self) -> None:
        """Log the metrics of this iteration, if that is due; those that were logged for a checkpoint not again."""
        if self._logged is None or not self.loop.row_is_due():
            return
        new = {name: value for name, value in self._row.items() if name not in self._logged}
        if new:
            self._own_folder().beat()
            self.log.write({"steps": self.steps, "iteration": self.iteration, **new})
            self._logged.update(new)
            self.counters.clear_new()

    def reset_environments(self) -> None:
        """Reset all environments after an iteration that made it due (`reset_every`)."""
        self.loop.reset_due = False
        self.parts.reset(self.counters.resets)

    def _reason(self) -> str:
        return self._stop_reason or f"the budget of {self._spent()[2]} is spent"

    @_recorded
    def _finish(self) -> Result:
        """Write the last row of metrics and the last checkpoint; the result."""
        assert self._reporting is not None and self.run_dir is not None
        if self._result is not None:
            return self._result
        last = bool(self._row) and not self.loop.row_is_due()
        if last:
            self._own_folder()
            self._reporting.write_last({**self._row, **self.parts.learner.means()})
        done, total, _ = self._spent()
        # A checkpoint that a callback has saved in this iteration does not have its last row.
        if self.checkpointing.last_due(again=last and done >= total):
            self.save()
        elif not self.settings.run.save_model:
            self._report_map()
        counts = self.counters
        result = self._result = Result(
            self.run_dir,
            counts.steps,
            counts.iteration,
            counts.episodes,
            counts.mean_return,
            self.wall_time,
            self._reason(),
            self.interrupted,
            self.returns(),
            flag(self.checkpointing.code) if self.checkpointing.code else "",
        )
        call(self.callbacks, "on_end", self, result)
        name = f"{self.settings.algorithm}-{self.source.id}-policy"
        self._reporting.upload(self.checkpointing.saved, name)
        return result

    def _report_map(self) -> None:
        """Save the map of visited cells in the run's folder, and log its pictures."""
        visits = self.parts.map
        if visits is None or self.run_dir is None:
            return
        maps = visits.arrays()
        save_maps(self.run_dir, maps)
        for name, values in maps.items():
            self.log.picture(f"map/{name}", heat_map(shades(name, values)), self.steps)

    # Opening and closing

    def build(self) -> "Trainer":
        """Create environment, agent, collector and learner; the first step does it by itself."""
        if not self._built:
            self._stop_reason, self.interrupted = "", False
            check_callbacks(self.callbacks)
            hooks = ("on_rollout", "on_step", "on_episode")
            needs = Needs(*(bool(overridden(self.callbacks, hook)) for hook in hooks))
            with self.counted(), gpu_memory(self.settings):
                self._assemble(needs)
            self.settings = self.parts.settings
            self._built = True
        return self

    def _assemble(self, needs: Needs) -> None:
        """Create all parts of the run, and what runs, saves and evaluates them."""
        self._parts = build(self.source, self.settings, needs, self._notify)
        if needs.steps:
            collector: Any = self.collector
            collector.on_row = self._on_step
        self.checkpointing = Checkpointing(self._parts, self.counters)
        self._evaluator = Evaluator(self.source, self._parts)
        self.loop = Loop(self._parts, self.counters, self._on_episode, self._on_rollout)

    def _rebuild(self) -> None:
        """Build; a run that was trained and closed before continues from its newest checkpoint."""
        if self._restored and not self._built and self.run_dir is not None:
            if not self.settings.run.save_model:
                raise CheckpointError(
                    f"{self.run_dir} was trained with save_model false, so there is no checkpoint to continue from; "
                    "load a new trainer, or leave save_model true"
                )
            use_checkpoint(self.run_dir, lambda found: self.attach(found.folder.parent, found))
        self.build()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the seconds within towards `max_seconds`; where calls are nested, once."""
        began, before = time.perf_counter(), self._spent_here
        try:
            yield
        finally:
            self._spent_here = before + time.perf_counter() - began

    @_recorded
    def _open(self) -> Reporting:
        """Build what is missing, open the run folder and the loggers, and start."""
        if self._reporting is not None:
            return self._reporting
        new = self.run_dir is None and not self._restored
        try:
            with self.counted():
                self._rebuild()
                if self.run_dir is None:
                    self.run_dir = self._new_folder()
                self._acquire(self.run_dir)
                self.checkpointing.open(self.run_dir)
                resumed = self._purge_step, self._last_row_at
                self._reporting = Reporting(self.run_dir, self.settings, self.loggers, *resumed)
                while self._unlogged:
                    self._reporting.log.message(self._unlogged.pop(0))
                self._system = SystemMetrics(self.agent.updates)
                self._row, self._logged, self._result, self._inside_step = {}, None, None, False
                self._broken = self._save_asked = False
                self._hang_watch = HangWatch(
                    self.settings.run.env_timeout,
                    WeakMethod(self._environments),
                    WeakMethod(self._left),
                    self.owns_process,
                )
                if not self._restored:
                    self._begin()
                elif self._branched:
                    self.save()  # from now on the newest checkpoint belongs to this branch
                call(self.callbacks, "on_start", self)
        except BaseException as error:
            self._release()
            # A dataset that does not fit, a run to load from that is not there, a logger that does not start: nothing
            # was trained, so nothing is left of the new folder.
            if new and isinstance(error, WhorlError) and self.run_dir is not None:
                shutil.rmtree(self.run_dir, ignore_errors=True)
                self.run_dir, self._restored = None, False
            raise
        return self._reporting

    def _new_folder(self) -> Path:
        run = self.settings.run
        folder = new_run_folder(
            Path(run.runs), self.settings.algorithm, self.source.id, run.tag, run.name, run.seed
        )
        text = yaml.safe_dump(self.settings.saved(), sort_keys=False)
        files.write_atomic(folder / checkpoint.CONFIG, text.encode())
        return folder

    def _acquire(self, run_dir: Path) -> None:
        """From now on no other process may train in this folder."""
        if self._lock is None:
            self._lock = RunLock(run_dir)
            checkpoint.recover(run_dir)

    def _own_folder(self) -> RunLock:
        """The lock; raises if the folder was deleted, or belongs to another process now."""
        assert self._lock is not None
        self._lock.check()
        return self._lock

    def _begin(self) -> None:
        """The start of a run: environments reset, weights initialised, or with `load_model` another run continued."""
        run = self.settings.run
        if run.load_model:
            if not run.load_checkpoint_dir:
                raise ConfigError(
                    "load_model is true, but load_checkpoint_dir is empty; set it to a checkpoint"
                )
            for message in self.checkpointing.start_from(run.load_checkpoint_dir, run.load_strict):
                messages.warn(message)
        if run.dataset:
            fill_replay(self.experience, self.agent, run.dataset)
        self.parts.reset(0)
        self._restored = True

    def _environments(self) -> list[Any]:
        """Those that this process steps."""
        envs = (self.parts.acting.env, self._evaluator.env)
        return [env for env in envs if env is not None and not isinstance(env, WorkerPool)]

    def _left(self) -> str:
        """What there is to continue from when an environment can't be interrupted."""
        return what_is_saved(self, collecting=True, save=self.owns_process)

    def _release(self) -> None:
        """Stop processes, free the environments and close the loggers; write nothing."""
        self._spent_here = 0.0
        with ExitStack() as stack:
            if self._hang_watch is not None:
                stack.callback(self._hang_watch.close)
                self._hang_watch = None
            if self._lock is not None:
                stack.callback(self._lock.release)
                self._lock = None
            if self._built:
                self._built = False
                stack.callback(self.parts.close)
                stack.callback(self._evaluator.close)
                stack.callback(self.checkpointing.close)
            if self._reporting is not None:
                stack.callback(self._reporting.log.close)
                self._reporting = None

    # Saving and restoring

    @_recorded
    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint now; raises if weights or metrics are not finite, or a rollout or its updates failed.

        In `on_step`, `on_episode` and `on_rollout` of a callback it is written at the end of the iteration.

        Args:
            path: refused, since a checkpoint belongs into the folder of its run.
        """
        if path is not None:
            raise ConfigError(
                f"save takes no path ({str(path)!r}): a run is saved in its folder, "
                f"{self.run_dir or 'which name sets'}; whorl.restore(trainer.run_dir) gives the policy, and its "
                "export(path) a file without the run"
            )
        if self._reporting is None and self.run_dir is not None:
            raise CheckpointError(f"training is not under way; the run is saved in {self.run_dir}")
        if self._reporting is None:
            raise CheckpointError("there is no run to save yet; call step() or train() first")
        if self._iterating:  # environments are ahead of what was learned and counted
            self._save_asked = True
            return self.checkpointing.next_folder
        if self._broken:
            raise CheckpointError(self._failed())
        self._save_asked = False
        self._own_folder().beat()
        self._write_row()  # else a resumed run would not have it
        self.log.flush()
        folder = self.checkpointing.save(self._metadata())
        self._report_map()
        call(self.callbacks, "on_checkpoint", self, folder)
        return folder

    def save_after_failure(self, collecting: bool) -> Path:
        """Write a checkpoint of the last complete iteration; `collecting`: an environment failed in the next one."""
        self._own_folder()
        self._write_row()
        return self.checkpointing.save(self._metadata(), failed=collecting)

    def save_best(self, evaluation: Evaluation) -> None:
        """Write the policy into the run's folder `best`."""
        self.checkpointing.save_best({**self._metadata(), "mean_return": evaluation.mean_return})

    def _metadata(self) -> dict[str, Any]:
        assert self._reporting is not None
        return {
            "iterations": self.iteration,
            "steps": self.steps,
            "episodes": self.episodes,
            "earlier": self.counters.earlier,
            "mean_return": self.mean_return,
            "wall_time": self.wall_time,
            **self._reporting.offsets(),
            "provenance": provenance(self.settings.run.seed),
        }

    def state(self) -> dict[str, Any]:
        """Everything that changes the future, as tensors and plain containers.

        Environments without snapshots begin new episodes when it is loaded.
        """
        return self.checkpointing.state(restart=not self.checkpointing.exact)

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.build()
        if self.run_dir is not None:
            self.checkpointing.open(self.run_dir)
        self.checkpointing.load_state(state)
        self._restored = True

    def load_weights(self, run: str | Path, strict: bool = False) -> None:
        """Load weights, optimizer state and normalisation statistics of another run or checkpoint; counters stay.

        What has the same name and shape is taken, and a warning lists the rest; with `strict` that is an error.
        """
        found = find_checkpoint(resolve_run(run, Path(self.settings.run.runs)))
        message = load_weights(self.agent, found, strict)
        if message:
            self._notify(message)

    def attach_new(self, run_dir: Path) -> "Trainer":
        """Restart a run that ended before its first checkpoint, in its own folder."""
        self.run_dir = run_dir
        self._acquire(run_dir)
        cut_metrics(run_dir, 0)
        self._purge_step = 0
        return self

    @_recorded
    def attach(self, run_dir: Path, loaded: checkpoint.Loaded) -> "Trainer":
        """Continue an existing run from a checkpoint: its state and counters, and metric files truncated to it."""
        self.run_dir = run_dir
        try:
            self._acquire(run_dir)
            run = self.settings.run
            # Environments that were reset begin their episodes with products of the same precision as in training.
            options = configure_process(run.threads, run.tf32, learner_threads(self.settings))
            with self.counted(), options:
                self.build()
                checkpoint.bring_rows(loaded, run_dir)
                with checkpoint.reading(loaded.folder, checkpoint.STATE):
                    self.load_state(loaded.state)
            with checkpoint.reading(loaded.folder, checkpoint.METADATA):
                self.wall_time = float(loaded.metadata["wall_time"])
                offset = int(loaded.metadata["metrics_offset"])
                end = int(loaded.metadata.get("metrics_end", offset))
        except BaseException as error:
            self._release()
            if isinstance(error, DamagedError):
                raise DamagedError(f"{loaded.folder}: {error}") from None
            raise
        if not self.settings.run.eval:
            self.counters.evaluated_return = math.nan
        if why := loaded.metadata.get(RESTARTS):
            had = why if isinstance(why, str) else FAILED  # earlier versions have true there
            messages.warn(f"{loaded.folder.name} was saved when {had}; all of them start new episodes")
        # Continue after the highest number: neither a newer nor a damaged checkpoint is overwritten.
        newest = max(checkpoint.number(folder) for folder in checkpoint.checkpoints(run_dir))
        self.checkpointing.saved = newest
        self._branched = checkpoint.number(loaded.folder) != newest
        self._last_row_at = offset if self.finished else None
        cut_metrics(run_dir, end if self.finished else offset)
        self._purge_step = self.steps + 1
        return self
