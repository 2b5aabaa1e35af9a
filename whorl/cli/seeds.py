"""One run per seed: one after the other, or several at the same time, each in a process of its own or all in this one.

A process gets its share of the cores, reports its progress through a pipe, and ends when its parent does. What it
prints is printed by the parent, above the bars, with the seed in front.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from whorl.cli.report import command, in_lines, show_evolved, show_result, show_seeds
from whorl.cli.status import INTERRUPTED, MISTAKE, TERMINATED
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.hardware import shares, usable_cores
from whorl.core.process import CTRL_C
from whorl.log.console import DISPLAY, LIVE_SECONDS, Console, Consoles, summary
from whorl.run.trust import trust_flag
from whorl.settings.aliases import canonical
from whorl.settings.merge import Settings
from whorl.settings.presets import read_files
from whorl.settings.run import RunConfig
from whorl.settings.schema import fields_of

if TYPE_CHECKING:
    from whorl.run.reporting import Result


@dataclass(frozen=True)
class Job:
    """What to train."""

    algorithm: str
    env: str
    settings: Mapping[str, Any]
    files: Sequence[str | Mapping[str, Any]] = ()

    def load(self) -> Any:
        """The trainer."""
        from whorl.api import load

        return load(self.env, self.algorithm, self.settings, files=self.files)

    def with_seed(self, seed: int) -> "Job":
        """The same with a seed, which the name of its run folder shows."""
        layers, hints = [*read_files(self.files), self.settings], fields_of(RunConfig)
        asked = {canonical(str(key), hints): value for layer in layers for key, value in layer.items()}
        named = {}
        if name := str(asked.get("name") or ""):
            shown = "{seed}" in name or "{tag}" in name
            named["name"] = name if shown else f"{name}_seed{seed}"
        tag = "_".join(filter(None, [str(asked.get("tag") or ""), f"seed{seed}"]))
        return Job(self.algorithm, self.env, {**self.settings, "seed": seed, "tag": tag, **named}, self.files)


def run_trainer(trainer: Any, env: str = "") -> int:
    """Train to the end or to a signal, show the result, and give the exit status.

    Args:
        env: the environment that a run is continued with, if it can't make its own.
    """
    trainer.owns_process = True
    try:
        _show(trainer.train(), trainer.settings, env)
    except (KeyboardInterrupt, SystemExit) as stop:
        return _show_interrupted(stop, trainer.settings, env)
    return 0


def _show(result: "Result", settings: Settings, env: str = "") -> None:
    from whorl.population.evolver import Evolved

    if isinstance(result, Evolved):
        show_evolved(result, settings)
    else:
        show_result(result, settings, env)


def train_seeds(job: Job, seeds: Sequence[int], parallel: int | Literal["gpu"]) -> int:
    """Train once per seed, `parallel` at the same time; a seed that fails is reported, and the others continue."""
    if twice := sorted({seed for seed in seeds if list(seeds).count(seed) > 1}):
        raise ConfigError(f"--seeds names {twice[0]} twice; name each seed once")
    group = "_".join([job.algorithm, job.env, datetime.now().strftime("%Y-%m-%d_%H-%M-%S")])
    # Before all files, so that a group of the user's own comes over it.
    job = replace(job, files=[{"wandb_group": group[:128]}, *job.files])
    jobs = {seed: job.with_seed(seed) for seed in seeds}
    trainers = {
        seed: one.load() for seed, one in jobs.items()
    }  # a mistake is reported now, not after other runs
    settings = trainers[seeds[0]].settings
    if parallel == "gpu":
        check_gpu(settings, len(seeds))
    if parallel != 1 and len(seeds) > 1:
        if parallel == "gpu":
            processes: _SeedProcesses = _SeedThreads(jobs, settings, len(seeds), trainers=trainers)
        else:
            processes = _SeedProcesses(jobs, settings, min(parallel, len(seeds)))
        status = processes.train()
        results = processes.results
    else:
        status, results = _one_after_the_other(trainers)
    if status in (INTERRUPTED, TERMINATED):
        return status
    show_seeds({seed: results.get(seed) for seed in seeds})
    return status


def check_gpu(settings: Settings, seeds: int) -> None:
    """A `ConfigError` if training does not run on a GPU."""
    from whorl.run.build import choose_device

    if choose_device(settings.run.device).type == "cuda":
        return
    why = "this machine has none" if settings.run.device == "auto" else f"device is {settings.run.device}"
    raise ConfigError(
        f"--parallel gpu trains all seeds on one GPU, but {why}; use --parallel {seeds} for processes"
    )


def _one_after_the_other(trainers: dict[int, Any]) -> tuple[int, dict[int, "Result"]]:
    status, results = 0, {}
    for seed in list(trainers):
        # A trainer keeps its networks and its replay buffer: those of all seeds may not fit into memory.
        trainer = trainers.pop(seed)
        try:
            results[seed] = trainer.train()
        except (KeyboardInterrupt, SystemExit) as stop:
            return _show_interrupted(stop, trainer.settings), results
        except Exception as error:  # also of an environment or a network: the other seeds continue
            print(f"whorl: seed {seed}: {_as_message(error)[1]}", file=sys.stderr)
            status = MISTAKE
        else:
            show_result(results[seed], trainer.settings)
    return status, results


def _show_interrupted(stop: KeyboardInterrupt | SystemExit, settings: Settings, env: str = "") -> int:
    """Show the result that came with an interrupt, if training had begun; the exit status."""
    result = getattr(stop, "result", None)
    if result is None:
        raise stop
    _show(result, settings, env)
    return TERMINATED if isinstance(stop, SystemExit) else INTERRUPTED


# The parent


@dataclass
class _SeedProcess:
    seed: int
    process: Any
    line: Any
    """commands to it, reports from it"""
    output: Any
    """what it prints"""
    slot: int
    """which share of the cores it has"""
    text: str = ""
    """an incomplete line of its output"""
    begun: bool = False
    """whether it trains"""
    ended: bool = False

    @property
    def name(self) -> str:
        return f"seed {self.seed}"


@dataclass
class _SeedProcesses:
    """The processes of all seeds, `parallel` at a time."""

    jobs: Mapping[int, Job]
    settings: Settings
    parallel: int
    results: dict[int, "Result"] = field(default_factory=dict)
    failed: bool = False
    interrupts: int = 0
    stopped: int = INTERRUPTED
    """exit status after a signal"""

    def train(self) -> int:
        """Train all seeds; the exit status."""
        self.queue = list(self.jobs)
        self.children: list[_SeedProcess] = []
        self.interrupted: list[Result] = []
        names = [f"seed {seed}" for seed in self.jobs]
        self.screen = Consoles(names, self._title(), self.settings.run.quiet)
        with self.screen, self._signals():
            try:
                self._attend()
            finally:
                for child in self.children:
                    child.process.kill()
        for result in self.interrupted:
            print(f"continue: {command('resume', result.run_dir, *trust_flag(self.settings))}")
        return self.stopped if self.interrupts else MISTAKE if self.failed else 0

    def _attend(self) -> None:
        while self.children or (self.queue and not self.interrupts):
            used = {child.slot for child in self.children}
            for slot in sorted(set(range(self.parallel)) - used)[: len(self.queue)]:
                if not self.interrupts:
                    self.children.append(self._start(self.queue.pop(0), slot))
            ends = [end for child in self.children for end in (child.line, child.output) if not end.closed]
            wait([*ends, *(child.process.sentinel for child in self.children)], 0.5)
            for child in list(self.children):
                over = child.process.exitcode is not None  # asked first, so that nothing it sent is missed
                self._listen(child)
                if over:
                    self._remove_child(child)

    def _start(self, seed: int, slot: int) -> _SeedProcess:
        line, theirs = multiprocessing.Pipe()
        output, printed = multiprocessing.Pipe(duplex=False)
        cores = shares(usable_cores(), self.parallel)[slot]
        arguments = (self.jobs[seed], theirs, printed, cores)
        process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments)
        # A Ctrl-C that arrives now waits, in the child too, until both can handle it.
        with _blocked_interrupts():
            process.start()
        theirs.close()
        printed.close()
        return _SeedProcess(seed, process, line, output, slot)

    def _listen(self, child: _SeedProcess) -> None:
        while not child.line.closed and child.line.poll():
            try:
                kind, *values = child.line.recv()
            except (EOFError, OSError):
                child.line.close()
                break
            getattr(self, f"_on_{kind}")(child, *values)
        while not child.output.closed and child.output.poll():
            data = os.read(child.output.fileno(), 1 << 16)
            if not data:
                child.output.close()
                break
            *lines, child.text = (child.text + data.decode("utf-8", "replace")).split("\n")
            for text in lines:
                self.screen.message(f"{child.name}: {text}")

    def _remove_child(self, child: _SeedProcess) -> None:
        self.children.remove(child)
        for end in (child.line, child.output):
            end.close()
        if not child.ended:
            code = child.process.exitcode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
            self._on_failed(child, f"its process {how}; if memory ran out, use a smaller --parallel")
        child.process.join()

    def _on_begin(self, child: _SeedProcess, total: float, unit: str, done: float, seconds: float) -> None:
        child.begun = True
        self.screen.begin(child.name, total, unit, done, seconds)

    def _on_progress(self, child: _SeedProcess, done: float, count: float, row: dict[str, Any]) -> None:
        self.screen.report(child.name, done, count, row)

    def _on_message(self, child: _SeedProcess, text: str) -> None:
        if not self.interrupts:  # that it finishes its iteration and saves, this process has said for all
            self.screen.message(f"{child.name}: {text}")

    def _on_result(self, child: _SeedProcess, result: "Result") -> None:
        child.ended = True
        self.results[child.seed] = result
        self.screen.end(child.name, f"finished, mean return {result.mean_return:.1f}")

    def _on_interrupted(self, child: _SeedProcess, result: "Result | None") -> None:
        child.ended = True
        if not self.interrupts:  # it got a signal of its own
            self.interrupts = 1
            self._interrupt_all()
        if result is not None:
            self.interrupted.append(result)
        self.screen.end(child.name, "stopped" if result is None else f"saved in {result.run_dir}")

    def _on_failed(self, child: _SeedProcess, sentence: str) -> None:
        child.ended = self.failed = True
        self.screen.end(child.name, "failed")
        print(f"whorl: {child.name}: {sentence}", file=sys.stderr)

    def _interrupt_all(self) -> None:
        for child in self.children:
            try:
                child.line.send("stop")
            except OSError:  # it has ended
                continue

    def _stop(self, number: int, frame: Any) -> None:
        self.interrupts += 1
        self.stopped = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        if self.interrupts > 2:
            raise KeyboardInterrupt
        self._interrupt_all()
        if self.interrupts == 2:
            for child in self.children:
                if not child.begun:  # it may not listen yet, and there is nothing to save
                    child.ended = True
                    child.process.kill()
        if self.interrupts == 1:
            self.screen.message("every seed finishes its iteration and saves; Ctrl-C again to stop now")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _title(self) -> str:
        from whorl.run.build import choose_device

        settings = self.settings
        each = len(shares(usable_cores(), self.parallel)[0])
        cores = f"{each} core{'s' if each > 1 else ''} each"
        head = f"{settings.algorithm} on {settings.env}: {len(self.jobs)} seeds, {self.parallel} at a time, {cores}"
        return f"{head}\n{summary(settings, str(choose_device(settings.run.device)))}"


@dataclass
class _SeedThreads(_SeedProcesses):
    """All seeds in this process, each in a thread of its own; see `whorl.run.together`."""

    trainers: Mapping[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from whorl.run.together import Together

        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.together = Together(self.trainers, self._ended, self._display)

    def _attend(self) -> None:
        members = {seed: _SeedProcess(seed, None, None, None, 0) for seed in self.trainers}
        self.together.start()
        while not all(member.ended for member in members.values()):
            with suppress(Empty):
                seed, kind, *values = self.inbox.get(timeout=0.5)
                getattr(self, f"_on_{kind}")(members[seed], *values)
        self.together.join()

    @contextmanager
    def _display(self, seed: int) -> Iterator[None]:
        """Progress of this thread goes to the main one."""
        before = DISPLAY.set(partial(_Report, _Post(self.inbox, seed)))
        try:
            yield
        finally:
            DISPLAY.reset(before)

    def _ended(self, seed: int, outcome: "Result | BaseException") -> None:
        self.inbox.put((seed, *_as_message(outcome)))

    def _interrupt_all(self) -> None:
        self.together.interrupt(CTRL_C if self.stopped == INTERRUPTED else signal.Signals.SIGTERM.name)

    def _stop(self, number: int, frame: Any) -> None:
        if self.interrupts:
            raise KeyboardInterrupt
        super()._stop(number, frame)

    def _title(self) -> str:
        from whorl.run.build import choose_device

        settings = self.settings
        head = f"{settings.algorithm} on {settings.env}: {len(self.jobs)} seeds in one process"
        return f"{head}\n{summary(settings, str(choose_device(settings.run.device)))}"


@dataclass(frozen=True)
class _Post:
    """What a thread reports, with its seed in front."""

    inbox: "SimpleQueue[Any]"
    seed: int

    def send(self, message: Sequence[Any]) -> None:
        self.inbox.put((self.seed, *message))


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


# The child


def _work(job: Job, line: Connection, output: Connection, cores: Sequence[int]) -> None:
    """Train one seed and report to the parent."""
    try:
        _settle(output, cores)
        threading.Thread(target=_interrupt_when_told, args=(line,), daemon=True).start()
        DISPLAY.set(partial(_Report, line))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parent has loaded the same settings, and told
            trainer = job.load()
        trainer.owns_process = True
        line.send(_as_message(trainer.train()))
    except BaseException as error:  # the parent prints it, and the other seeds continue
        line.send(_as_message(error))


def _as_message(outcome: "Result | BaseException") -> tuple[str, Any]:
    """How the end of a run is reported."""
    if not isinstance(outcome, BaseException):
        return "result", outcome
    if isinstance(outcome, (KeyboardInterrupt, SystemExit)):
        return "interrupted", getattr(outcome, "result", None)
    if isinstance(outcome, WhorlError):
        return "failed", in_lines(outcome)
    trace = "".join(traceback.format_exception(outcome))
    return "failed", f"{type(outcome).__name__}: {outcome}\n\n{trace}"


def _settle(output: Connection, cores: Sequence[int]) -> None:
    """Cores, output and signals of this process; Ctrl-C at the terminal reaches the parent alone."""
    if hasattr(os, "setsid"):
        os.setsid()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    if sys.platform != "win32":
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    warnings.showwarning = lambda message, *_: print(" ".join(str(message).split()), file=sys.stderr)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt_when_told(line: Connection) -> None:
    """Interrupt training when the parent says so, or is gone."""
    try:
        while line.recv() == "stop":
            os.kill(os.getpid(), signal.SIGINT)
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


class _Report(Console):
    """Sends progress to the parent instead of drawing it."""

    def __init__(
        self,
        pipe: "Connection | _Post",
        total: float,
        unit: str,
        title: str,
        quiet: bool,
        *,
        done: float,
        seconds: float,
    ) -> None:
        super().__init__(total, unit, quiet=quiet, done=done, seconds=seconds)
        self._pipe = pipe
        self._send("begin", total, unit, done, seconds)

    def __enter__(self) -> "_Report":
        return self

    def _period(self) -> float:
        return LIVE_SECONDS

    def _paint(self) -> None:
        self._send("progress", self._done, self._count, self._row)

    def _print(self, text: str) -> None:
        self._send("message", text)

    def _send(self, *message: Any) -> None:
        with self._surviving():
            self._pipe.send(message)
