"""Where metrics go. A row is a dict: "steps" (env steps) and `group/name` keys with numbers or short strings.

`metrics.jsonl` is the truth: append-only, equal bits give equal text, and a resumed run cuts it back to the
byte offset in its checkpoint. `progress.csv` is derived from it; TensorBoard, W&B and the text log too.
"""

import csv
import errno
import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np

from whorl.core.errors import ConfigError, WhorlError, missing_extra

Row: TypeAlias = Mapping[str, float | int | str]

ELAPSED = "time/elapsed"
"""Seconds of training so far, pauses between resumes left out: the x-axis of plots over time."""


class Sink:
    """Somewhere metrics can go; a sink overrides what it has a use for."""

    required = False
    """whether training must stop when this sink fails"""

    def write(self, row: Row) -> None:
        """Record one row of metrics."""

    def message(self, text: str) -> None:
        """Record a sentence for the reader of the log."""

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        """Record a picture, uint8 [height, width, 1 or 3]."""

    def flush(self) -> None:
        """Make what was written durable."""

    def close(self) -> None:
        """Flush and let go; nothing may be written afterwards."""


class MetricFiles(Sink):
    """`metrics.jsonl` and `progress.csv` in a run folder. Opening a folder continues what is there."""

    required = True

    def __init__(self, folder: Path) -> None:
        self.jsonl = folder / "metrics.jsonl"
        self.csv = folder / "progress.csv"
        self._columns: list[str] = []
        with _disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a row is in the kernel's hands when write() returns, so a killed process loses none.
            self._lines = self.jsonl.open("ab", buffering=0)
            self._table = self.csv.open("ab", buffering=0)
        self.cut(self.jsonl.stat().st_size)

    def write(self, row: Row) -> None:
        if "steps" not in row:
            raise ValueError(f"a metric row needs 'steps'; this one has {sorted(row)}")
        row = {key: _plain(value) for key, value in row.items()}
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
        """Bytes of metrics.jsonl, all of them durable: what a checkpoint records for `cut`."""
        self.flush()
        return os.fstat(self._lines.fileno()).st_size

    def cut(self, offset: int) -> None:
        """Forget every row after `offset`, and a last line that was only half written."""
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
        """Write progress.csv anew: columns in the order in which they first appear."""
        self._table.close()
        self._columns = list(dict.fromkeys(key for row in read_rows(self.jsonl) for key in row))
        beside = self.csv.with_suffix(".csv.new")
        with beside.open("wb") as table:
            if self._columns:
                table.write(_cells({key: key for key in self._columns}, self._columns))
            for row in read_rows(self.jsonl):
                table.write(_cells(row, self._columns))
            table.flush()
            os.fsync(table.fileno())
        os.replace(beside, self.csv)
        self._table = self.csv.open("ab", buffering=0)


class TensorBoard(Sink):
    """Scalars for TensorBoard. On resume, `purge_step` is the first step of an earlier attempt to hide."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step)

    def write(self, row: Row) -> None:
        step = int(row["steps"])
        for key, value in row.items():
            if key != "steps" and not isinstance(value, str):
                self._writer.add_scalar(key, value, step)

    def message(self, text: str) -> None:
        self._writer.add_text("messages", text)

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        self._writer.add_image(name, pixels, steps, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Sink):
    """One Weights & Biases run per run folder; opening the folder again continues that run."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object],
        project: str = "whorl",
        entity: str | None = None,
        name: str | None = None,
        mode: str = "online",
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
                mode=mode,  # type: ignore[arg-type,unused-ignore]  # checked above; wandb may not be installed
                # Capturing the terminal would record every frame of the progress bar.
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.Error as error:
            raise WhorlError(
                f"W&B did not start ({error}); run 'wandb login' or choose mode offline"
            ) from error
        # W&B's own step may only grow, but a resumed run writes the rows after its checkpoint again. Over
        # an x-axis of our own the repeated points fall on top of each other.
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


class LogFile(Sink):
    """A plain text log, one line per row or message, each with the time of day."""

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
    """Every sink at once. An optional sink that fails is reported once and dropped; training goes on."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = list(sinks)

    def write(self, row: Row) -> None:
        self._each(lambda sink: sink.write(row))

    def message(self, text: str) -> None:
        self._each(lambda sink: sink.message(text))

    def picture(self, name: str, pixels: np.ndarray, steps: int) -> None:
        self._each(lambda sink: sink.picture(name, pixels, steps))

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        self._each(lambda sink: sink.close())
        self.sinks.clear()

    def _each(self, call: Callable[[Sink], None]) -> None:
        fatal: Exception | None = None
        for sink in list(self.sinks):
            try:
                call(sink)
            except (
                Exception
            ) as error:  # whatever a third-party writer may throw, hours of training outweigh it
                if sink.required:
                    fatal = fatal or error
                    continue
                self.sinks.remove(sink)
                warnings.warn(
                    f"{type(sink).__name__} failed and is switched off for the rest of this run: {error!r}",
                    RuntimeWarning,
                    stacklevel=3,
                )
        if fatal:
            raise fatal


def read_rows(path: Path) -> Iterator[dict[str, float | int | str]]:
    """The rows of a metrics.jsonl, up to a line that was not written whole."""
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
            except ValueError:  # a crashed machine can leave zeros where a line was about to be
                return
            yield len(line), row


def _plain(value: Any) -> float | int | str:
    """A value that JSON can carry everywhere: NaN and infinity have no JSON number, so they go as words."""
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
    # A raw write may stop short on a disk that is nearly full; the next one says why.
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
