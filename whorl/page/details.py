"""One run on a page: its settings, pictures and videos, maps, log, checkpoints and the process that trains it."""

import io
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any

import psutil
from PIL import Image

from whorl.core.errors import WhorlError
from whorl.log.groups import flat, shown
from whorl.log.maps import FILE as MAPS
from whorl.log.maps import heat_map, read_maps, shades
from whorl.page.catalog import METRICS, Entry, inside
from whorl.page.series import Tail
from whorl.settings.secrets import HIDDEN, hidden_text, values_in
from whorl.state.runlock import living_owner

MEDIA = {
    ".gif": "image/gif",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
SHOWN = 40
"""pictures and videos of a run that are shown, the newest first"""
LOGS = ("resume.log", "log.txt")
LOG_BYTES = 1 << 15
LOG_LINES = 200
ROWS = 15
"""rows of metrics that stand in for a log"""
GPU_SECONDS = 5.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def details(entry: Entry) -> dict[str, Any]:
    """All that the page shows of one run besides its curves."""
    name, lines = log_tail(entry)
    return {
        "row": entry.row,
        "folder": str(entry.folder),
        "settings": {key: shown(value) for key, value in flat(entry.config).items()},
        "media": media(entry),
        "maps": map_names(entry),
        "log": {"name": name, "lines": lines},
        "checkpoints": _checkpoints(entry),
        "process": _process(entry),
    }


def media(entry: Entry) -> list[dict[str, Any]]:
    """Pictures and videos in the folder of a run, the newest first."""
    found: list[dict[str, Any]] = []
    for path in _files(entry.folder, 3 if not entry.population else 1):
        kind = MEDIA.get(path.suffix.lower())
        if kind and inside(path, entry.root) is not None:
            with suppress(OSError):
                stat = path.stat()
                relative = path.relative_to(entry.folder).as_posix()
                found.append(
                    {"path": relative, "kind": kind, "bytes": stat.st_size, "written": stat.st_mtime}
                )
    return sorted(found, key=lambda item: (-item["written"], item["path"]))[:SHOWN]


def media_file(entry: Entry, path: str) -> tuple[Path, str]:
    """A picture or video of a run, and its type."""
    for item in media(entry):
        if item["path"] == path and (found := inside(entry.folder / path, entry.root)) is not None:
            return found, item["kind"]
    raise WhorlError(f"{entry.name} has no picture or video {path!r}")


def map_names(entry: Entry) -> list[str]:
    """The maps of a run: visits, and the mean of each intrinsic reward."""
    return list(_maps(entry))


def map_picture(entry: Entry, name: str) -> bytes:
    """A map as PNG."""
    maps = _maps(entry)
    if name not in maps:
        raise WhorlError(f"{entry.name} has no map {name!r}")
    buffer = io.BytesIO()
    Image.fromarray(heat_map(shades(name, maps[name]))).save(buffer, "PNG")
    return buffer.getvalue()


def _maps(entry: Entry) -> dict[str, Any]:
    if inside(entry.folder / MAPS, entry.root) is None:
        return {}
    try:
        found = read_maps(entry.folder)
    except (OSError, ValueError, WhorlError):
        return {}
    return {name: values for name, values in found.items() if values.ndim == 2 and values.size}


def log_tail(entry: Entry) -> tuple[str, list[str]]:
    """The name and the last lines of a run's newest log; its newest rows of metrics where there is none."""
    paths = [path for name in LOGS if (path := inside(entry.folder / name, entry.root)) is not None]
    with suppress(OSError, ValueError):  # there is none, or it was deleted meanwhile
        newest = max(paths, key=lambda path: path.stat().st_mtime)
        with newest.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
        lines = text.split("\n")[1 if size > LOG_BYTES else 0 :]
        # A progress bar overwrites its line: what stood there last is what is seen.
        seen = [_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in lines]
        return newest.name, [_without_secrets(line, entry) for line in seen if line][-LOG_LINES:]
    path, rows = entry.metrics, []
    with suppress(OSError):  # it was deleted meanwhile
        rows = Tail(path).rows(ROWS) if path is not None else []
    return METRICS, ["  ".join(f"{key}={_short(value)}" for key, value in row.items()) for row in rows]


def _without_secrets(line: str, entry: Entry) -> str:
    for value in values_in(entry.config):
        if value != HIDDEN:
            line = line.replace(value, HIDDEN)
    return hidden_text(line)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _checkpoints(entry: Entry) -> list[str]:
    numbered = [
        path.name
        for path in entry.folder.glob("checkpoint_*")
        if path.name.removeprefix("checkpoint_").isdigit()
    ]
    numbered.sort(key=lambda name: int(name.removeprefix("checkpoint_")))
    return numbered + (["best"] if (entry.folder / "best").is_dir() else [])


def _process(entry: Entry) -> dict[str, Any] | None:
    """The process that trains a run, with those that it started."""
    owner = None
    with suppress(OSError):
        owner = living_owner(entry.folder)
    if owner is None:
        return None
    found: dict[str, Any] = {"pid": owner.pid, "host": owner.host}
    with suppress(psutil.Error):
        process = psutil.Process(owner.pid)
        family = [process, *process.children(recursive=True)]
        found["started"] = process.create_time()
        found["processes"] = len(family)
        found["memory"] = sum(_memory(one) for one in family)
        found["cpu_seconds"] = sum(_seconds(one) for one in family)
    return found


def _memory(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def _seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as listing:
            inner = list(listing)
    except OSError:
        return
    for item in inner:
        if item.is_dir(follow_symlinks=False):
            if depth and not item.name.startswith(".") and item.name not in ("replay", "wandb"):
                yield from _files(folder / item.name, depth - 1)
        else:
            yield folder / item.name


class Machine:
    """Use of this machine: processor, memory and GPUs."""

    def __init__(self) -> None:
        self._smi = which("nvidia-smi")
        self._gpus: list[dict[str, float]] = []
        self._due = 0.0
        psutil.cpu_percent()

    def use(self) -> dict[str, Any]:
        """The use of processors since the last call, and of memory and GPUs now."""
        memory = psutil.virtual_memory()
        return {
            "cpu": psutil.cpu_percent() / 100,
            "cores": psutil.cpu_count() or 1,
            "memory": (memory.total - memory.available) / memory.total,
            "memory_bytes": memory.total,
            "gpus": self._gpu_use(),
        }

    def _gpu_use(self) -> list[dict[str, float]]:
        if self._smi is None or time.monotonic() < self._due:
            return self._gpus
        self._due = time.monotonic() + GPU_SECONDS
        query = "--query-gpu=utilization.gpu,memory.used,memory.total"
        self._gpus = []
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            text = subprocess.run(
                [self._smi, query, "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=GPU_SECONDS,
            ).stdout
            for line in text.splitlines():
                busy, used, total = map(float, line.split(","))
                self._gpus.append({"busy": busy / 100, "memory": used / total})
        return self._gpus
