"""Loggers. A row of metrics is a dict: "steps" (environment steps) and `group/name` keys with numbers or short strings.

`metrics.jsonl` is the primary record: append-only, and a resumed run truncates it to the byte offset in its checkpoint.
`progress.csv` is derived from it. Loggers that send rows elsewhere are in `whorl.log.sinks`; register those of your own
with `whorl.register("logger", name, cls)`.
"""

import csv
import errno
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np

from whorl.core import messages
from whorl.core.errors import ConfigError, WhorlError, missing_extra

Row: TypeAlias = Mapping[str, float | int | str]

ELAPSED = "time/elapsed"
"""Seconds of training so far, without the time between a stop and a resume: the x-axis of plots over time."""


class Logger:
    """Base of all loggers: every method does nothing. Registered ones are created with (run_dir, settings)."""

    required = False
    """whether an error in this logger ends training; otherwise the logger is switched off with a warning"""

    def write(self, row: Row) -> None:
        """Record one row of metrics."""

    def message(self, text: str) -> None:
        """Record a message."""

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        """Record an image, uint8 [height, width, 1 or 3]."""

    def flush(self) -> None:
        """Write buffered data to disk."""

    def close(self) -> None:
        """Flush and close; nothing may be written afterwards."""


class MetricFiles(Logger):
    """`metrics.jsonl` and `progress.csv` in a run folder; existing files are continued."""

    required = True

    def __init__(self, folder: Path) -> None:
        self.jsonl = folder / "metrics.jsonl"
        self.csv = folder / "progress.csv"
        self._columns: list[str] = []
        with _disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: the kernel has the row when write() returns, so a killed process loses none.
            self._lines = self.jsonl.open("ab", buffering=0)
            self._table = self.csv.open("ab", buffering=0)
        self.truncate(self.jsonl.stat().st_size)

    def write(self, row: Row) -> None:
        if "steps" not in row:
            raise ValueError(f"a metric row needs 'steps'; this one has {sorted(row)}")
        row = plain_row(row)
        with _disk(self.jsonl):
            _write_all(self._lines, (json.dumps(row, ensure_ascii=False) + "\n").encode())
            if row.keys() <= set(self._columns):
                _write_all(self._table, _cells(row, self._columns))
            else:
                self._tabulate()

    def flush(self) -> None:
        with _disk(self.jsonl):
            os.fsync(self._lines.fileno())
            os.fsync(self._table.fileno())

    def offset(self) -> int:
        """Flushed size of metrics.jsonl in bytes; checkpoints store it for `truncate`."""
        self.flush()
        return os.fstat(self._lines.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Remove every row after `offset`, and an incomplete last line."""
        with _disk(self.jsonl):
            whole = sum(length for length, _ in _whole_rows(self.jsonl, offset))
            os.truncate(self.jsonl, whole)
            self._tabulate()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._lines.close()
            self._table.close()

    def _tabulate(self) -> None:
        """Rewrite progress.csv, with columns in the order in which they first appear; where that fails, it stays open
        as it was."""
        columns = list(dict.fromkeys(key for row in read_rows(self.jsonl) for key in row))
        beside = self.csv.with_suffix(".csv.new")
        with beside.open("wb") as table:
            if columns:
                table.write(_cells({key: key for key in columns}, columns))
            for row in read_rows(self.jsonl):
                table.write(_cells(row, columns))
            table.flush()
            os.fsync(table.fileno())
        os.replace(beside, self.csv)
        replaced, self._table = self._table, self.csv.open("ab", buffering=0)
        replaced.close()
        self._columns = columns


LEARNED = ("loss", "gradient", "q", "value", "policy")
"""groups of metrics that updates compute"""


class TensorBoard(Logger):
    """Scalars for TensorBoard over environment steps; those that updates compute also over updates, in `learner/`.

    On resume, points written earlier at or after `purge_step` are hidden.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step)
        self._updates: Any = None

    def write(self, row: Row) -> None:
        step, updates = int(row["steps"]), row.get("updates")
        for key, value in row.items():
            if key in ("steps", "updates") or isinstance(value, str):
                continue
            self._writer.add_scalar(key, value, step)
            if updates is not None and key.partition("/")[0] in LEARNED:
                self._learner().add_scalar(key, value, int(updates))

    def message(self, text: str) -> None:
        self._writer.add_text("messages", text)

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        self._writer.add_image(name, pixels, steps, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()
        if self._updates is not None:
            self._updates.flush()

    def close(self) -> None:
        if self._folder.is_dir():  # else its thread would print a traceback
            self._writer.close()
            if self._updates is not None:
                self._updates.close()

    def _learner(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # Files of its own: points are hidden by their step, which counts updates here. A resumed run repeats them.
        if self._updates is None:
            self._updates = SummaryWriter(str(self._folder / "learner"))
        return self._updates


class WandB(Logger):
    """One Weights & Biases run per run folder; resuming the folder continues that run."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object],
        project: str = "whorl",
        entity: str | None = None,
        name: str | None = None,
        mode: str = "online",
        group: str | None = None,
        tags: Sequence[str] = (),
        job_type: str | None = None,
    ) -> None:
        if mode not in ("online", "offline", "disabled"):
            raise ConfigError(f"W&B mode {mode!r} is unknown; choose one of: online, offline, disabled")
        try:
            import wandb
        except ImportError:
            raise missing_extra("wandb", "wandb") from None
        self._wandb: Any = wandb
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run: Any = wandb.init(
                id=_kept_id(folder / "wandb_id"),
                resume="allow",
                dir=str(folder),
                config=dict(config),
                project=project,
                entity=entity,
                name=name,
                group=group,
                tags=list(tags),
                job_type=job_type,
                mode=mode,  # type: ignore[arg-type,unused-ignore]  # checked above; wandb may not be installed
                # Capturing the terminal would record every frame of the progress bar.
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.Error as error:
            raise WhorlError(
                f"W&B did not start ({error}); run 'wandb login' or set wandb_mode to offline"
            ) from error
        # W&B's own step may only increase, but a resumed run repeats the rows after its checkpoint. With "steps"
        # as the x-axis repeated points coincide.
        self._run.define_metric("*", step_metric="steps")

    def write(self, row: Row) -> None:
        self._run.log(dict(row))

    def artifact(self, path: Path, name: str, kind: str = "model") -> None:
        """Upload a file, for instance the final policy."""
        artifact = self._wandb.Artifact(re.sub(r"[^\w.-]", "-", name), type=kind)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


class LogFile(Logger):
    """A text log: one line per row or message, each with the time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, row: Row) -> None:
        self.message("  ".join(f"{key}={_short(value)}" for key, value in row.items()))

    def message(self, text: str) -> None:
        self._file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Log:
    """All loggers of a run. One that fails and is not `required` is reported once and removed; training continues."""

    def __init__(self, *loggers: Logger) -> None:
        self.loggers = list(loggers)

    def add(self, logger: Logger) -> None:
        self.loggers.append(logger)

    def write(self, row: Row) -> None:
        self._each(lambda logger: logger.write(row))

    def message(self, text: str) -> None:
        self._each(lambda logger: logger.message(text))

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        self._each(lambda logger: logger.picture(name, pixels, steps))

    def flush(self) -> None:
        self._each(lambda logger: logger.flush())

    def close(self) -> None:
        self._each(lambda logger: logger.close())
        self.loggers.clear()

    def _each(self, call: Callable[[Logger], None]) -> None:
        fatal: Exception | None = None
        for logger in list(self.loggers):
            if logger not in self.loggers:  # it failed when it was told that another one had
                continue
            try:
                call(logger)
            except Exception as error:  # a third-party logger may raise anything; training matters more
                if logger.required:
                    fatal = fatal or error
                    continue
                self.loggers.remove(logger)
                messages.warn(
                    f"{type(logger).__name__} failed and is switched off for the rest of this run: {error!r}",
                    RuntimeWarning,
                )
        if fatal:
            raise fatal


def read_rows(path: Path) -> Iterator[dict[str, float | int | str]]:
    """The rows of a metrics.jsonl, up to the first incomplete line."""
    return (row for _, row in _whole_rows(path, path.stat().st_size))


def _whole_rows(path: Path, end: int) -> Iterator[tuple[int, dict[str, float | int | str]]]:
    """Length in bytes and content of each complete line before `end`."""
    with path.open("rb") as lines:
        for line in lines:
            end -= len(line)
            if end < 0 or not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError:  # after a crash there may be zeros in place of a line
                return
            yield len(line), row


def plain_row(row: Row) -> dict[str, float | int | str]:
    """A row of values that JSON can represent."""
    return {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> float | int | str:
    """A value that JSON can represent; NaN and infinity become strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _cells(row: Row, columns: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([row.get(key, "") for key in columns])
    return line.getvalue().encode()


def _short(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write_all(file: io.FileIO, data: bytes) -> None:
    # A raw write may be partial on a nearly full disk; the next one then raises the error.
    while data:
        data = data[file.write(data) :]


def _kept_id(path: Path) -> str:
    if not path.exists():
        path.write_text(uuid4().hex[:12])
    return path.read_text().strip()


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free some space, then resume the run" if error.errno == errno.ENOSPC else "check the folder"
        raise WhorlError(f"can't write metrics to {path} ({error.strerror or error}); {remedy}") from error
