"""What a run reports: rows of metrics to the loggers, system metrics, the console, and the result."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
import torch

from whorl.core.arguments import listed
from whorl.core.registry import resolve
from whorl.log import sinks as sinks  # registers its loggers
from whorl.log.console import DISPLAY, Console, summary
from whorl.log.media import Media
from whorl.log.writers import Log, LogFile, Logger, MetricFiles, Row, TensorBoard, WandB
from whorl.run.build import Parts, replay_device
from whorl.run.loop import Counters
from whorl.settings.elsewhere import RESULT, explaining
from whorl.settings.merge import Settings
from whorl.state import checkpoint

LoggerFactory = Callable[[Path, Settings], Logger]
"""makes a logger for a run folder and its settings; the class of a logger is one"""


@explaining(RESULT)
@dataclass(frozen=True)
class Result:
    """How a call of `train` ended."""

    run_dir: Path
    steps: int
    iterations: int
    episodes: int
    mean_return: float
    """of the last evaluation or, without one, of at least the last 100 training episodes"""
    wall_time: float
    """seconds of training, including those before a run was resumed"""
    reason: str
    interrupted: bool = False
    """whether Ctrl-C or SIGTERM ended it"""
    returns: Mapping[str, float] = field(default_factory=dict)
    """the mean return of each behaviour, where there are several"""
    code: str = ""
    """the entry of `trust` for the source files of your own that are saved with the run, if there are any"""
    make_video: ClassVar[Callable[..., Media]]
    """`whorl.video`, which belongs to a layer above this one and is set there"""

    def __fspath__(self) -> str:
        """The run folder, so that a result can be given wherever a run is asked for: `whorl.evaluate(result)`."""
        return str(self.run_dir)

    def plot(self, *metrics: str, output: str | Path | None = None) -> Media:
        """Learning curves of the run, which a notebook shows; by default the return, in plot.png of its folder."""
        from whorl.log.plot import RETURN, plot_runs

        path = self.run_dir / "plot.png" if output is None else Path(output)
        return Media(plot_runs([self.run_dir], path, metrics or (RETURN,)))

    def video(self, output: str | Path | None = None, **options: Any) -> Media:
        """An episode with the trained policy, which a notebook shows; see `whorl.video`."""
        return type(self).make_video(self.run_dir, output, **options)


def interrupted(result: Any, go_on: str) -> KeyboardInterrupt:
    """What `train` raises after Ctrl-C, when it has saved the run: with the `result`, and how to continue.

    Not of a class of its own: only a script that ends by `KeyboardInterrupt` itself is ended by the signal, so that a
    shell's loop over scripts ends, too.
    """
    stop = KeyboardInterrupt(f"training was interrupted; {go_on}")
    stop.result = result  # type: ignore[attr-defined]
    return stop


class Terminated(SystemExit):
    """SIGTERM ended `train`, which has saved the run. The process ends with status 143, as after any SIGTERM.

    A script that handles Ctrl-C to train the next seed must not do so here: the sender will soon use SIGKILL.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.result = result


class Reporting:
    """The loggers of one run folder.

    Args:
        loggers: names of registered loggers or factories, besides those that settings ask for.
        purge_step: on resume, the first step whose earlier TensorBoard points are hidden.
        last_row_at: offset in metrics.jsonl of a row that only the end of training made due; resuming overwrites it.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: Settings,
        loggers: Sequence[str | LoggerFactory] = (),
        purge_step: int | None = None,
        last_row_at: int | None = None,
    ) -> None:
        run, self._last_row_at = settings.run, last_row_at
        self.run_dir, self.settings = run_dir, settings
        self.metric_files = MetricFiles(run_dir)
        self.log = Log(self.metric_files)
        self.wandb: WandB | None = None
        try:
            if run.tensorboard:
                self.log.add(TensorBoard(run_dir, purge_step))
            if run.log_file:
                self.log.add(LogFile(run_dir / "log.txt"))
            if run.use_wandb:
                self.wandb = WandB(
                    run_dir,
                    settings.saved(),
                    run.wandb_project,
                    run.wandb_entity or None,
                    run_dir.name,
                    run.wandb_mode,
                    run.wandb_group or None,
                    run.wandb_tags,
                    run.wandb_job_type or None,
                )
                self.log.add(self.wandb)
            for named in (*getattr(run, "loggers", ()), *listed(loggers)):
                make = resolve("logger", named) if isinstance(named, str) else named
                self.log.add(make(run_dir, settings))
        except BaseException:
            self.log.close()
            raise

    def write_last(self, row: Row) -> None:
        """Write a row that only the end of training made due."""
        self._last_row_at = self.metric_files.offset()
        self.log.write(row)

    def offsets(self) -> dict[str, int]:
        """Offsets at which a resumed run truncates metrics.jsonl: if it continues, and if it had ended."""
        end = self.metric_files.offset()
        return {
            "metrics_offset": end if self._last_row_at is None else self._last_row_at,
            "metrics_end": end,
        }

    def console(self, parts: Parts, counters: Counters, spent: float) -> Console:
        """The progress display; `spent` seconds of `max_seconds` are over."""
        settings, run = self.settings, self.settings.run
        left = max(run.max_seconds - spent, 1e-3) if run.max_seconds else 0.0
        done, total, unit = counters.spent(run)
        title = f"{settings.algorithm} on {parts.acting.env.id}: {self.run_dir}"
        size = parts.agent.replay_bytes()
        if size:
            where = replay_device(settings, parts.device, parts.agent.goal_rewards)
            title += f" (replay: {size / 1e6:,.1f} MB on {where.type})"
        if parts.acting.dashboard:
            title += f" (Ray: {parts.acting.dashboard})"
        title += f"\n{summary(parts.settings, str(parts.device))}"
        return DISPLAY.get()(total, unit, title, run.quiet, done=done, seconds=left)

    def upload(self, saved: int, name: str) -> None:
        """Upload the policy of checkpoint number `saved` to W&B, where it is in use."""
        if self.wandb is not None and saved:
            self.wandb.artifact(self.run_dir / f"checkpoint_{saved}" / checkpoint.POLICY, name)


def cut_metrics(run_dir: Path, offset: int) -> None:
    """Remove the rows of metrics after `offset`."""
    metrics = MetricFiles(run_dir)
    metrics.truncate(offset)
    metrics.close()


class SystemMetrics:
    """Load of the learner and its machine between two rows of metrics; `updates` were made before the first."""

    def __init__(self, updates: int) -> None:
        self._process = psutil.Process()
        self._time, self._cpu, self._updates = time.perf_counter(), self._seconds(), updates

    def metrics(self, updates: int, waited: float) -> dict[str, float]:
        """`updates` so far, seconds `waited` for actors since the last call."""
        now, cpu = time.perf_counter(), self._seconds()
        span = max(now - self._time, 1e-9)
        found = {
            "learner/updates": float(updates),
            "learner/updates_per_second": (updates - self._updates) / span,
            "learner/waiting": min(waited / span, 1.0),
            "system/learner_cores": (cpu - self._cpu) / span,
            "system/learner_memory_mb": self._process.memory_info().rss / 1e6,
            "system/load": psutil.getloadavg()[0],
        }
        if torch.cuda.is_available():
            found["system/gpu_memory_mb"] = torch.cuda.memory_allocated() / 1e6
        self._time, self._cpu, self._updates = now, cpu, updates
        return found

    def _seconds(self) -> float:
        """Processor time of this process."""
        times = self._process.cpu_times()
        return times.user + times.system
