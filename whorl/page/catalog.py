"""The runs below a folder: found, summed up for a table, and looked at again for what has changed.

A run is known by its path below the folder, and only what was found there is ever read: names that come from outside
are looked up, never joined to a path. Symbolic links that lead out of the folder are not followed.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from whorl.core.errors import WhorlError
from whorl.log.groups import EVALUATION, RETURN
from whorl.log.writers import ELAPSED
from whorl.page.series import Tail
from whorl.settings.presets import read_yaml
from whorl.settings.secrets import hidden
from whorl.state.runfolder import LIMITS, run_state

METRICS, CONFIG, POPULATION, LOCK = "metrics.jsonl", "config.yaml", "population.yaml", "run.lock"
DEPTH = 4
"""folders within folders that are searched: sweeps and populations hold the folders of their runs"""
SKIPPED = re.compile(r"\..*|checkpoint_\d+|best|replay|videos|wandb|__pycache__")
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")
_TOP = re.compile(r"^(?=[^\s#-])", re.MULTILINE)

Signature = tuple[tuple[int, int], ...]


@dataclass
class Entry:
    """A run, or a population of them, in its folder."""

    name: str
    folder: Path
    root: Path
    """nothing outside of it is read"""
    population: bool = False
    parent: str = ""
    """the population that the run belongs to"""
    checkpoint: int = 0
    """the newest one"""
    config: dict[str, Any] = field(default_factory=dict)
    """settings, without secrets; limits as they were when the newest checkpoint was saved"""
    row: dict[str, Any] = field(default_factory=dict)
    """what the table shows"""
    version: int = 0
    """of the catalog, when the row last changed"""
    signature: Signature = ()

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", self.folder.name))

    @property
    def env(self) -> str:
        return str(self.config.get("env", ""))

    @property
    def metrics(self) -> Path | None:
        """metrics.jsonl, if it is there."""
        return inside(self.folder / METRICS, self.root)


class Catalog:
    """All runs below a folder, or in the folders given."""

    def __init__(self, root: Path, folders: Sequence[Path] = ()) -> None:
        if not root.is_dir():
            raise WhorlError(f"there is no folder {root}; name the folder of your runs: whorl serve RUNS")
        self.root, self._folders = root.resolve(), folders
        self.version = 0
        self.names_version = 0
        """when a run came or went"""
        self.entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Look for new, changed and deleted runs."""
        with self._lock:
            found = {entry.name: entry for entry in self._search()}
            version, changed = self.version + 1, False
            for name, entry in found.items():
                known = self.entries.get(name)
                if known is None or known.folder != entry.folder or known.population != entry.population:
                    known = entry
                known.checkpoint = entry.checkpoint
                if _update(known):
                    known.version, changed = version, True
                found[name] = known
            if found.keys() != self.entries.keys():
                self.version = self.names_version = version
            elif changed:
                self.version = version
            self.entries = found

    def touch(self, entry: Entry) -> None:
        """Count a run as changed."""
        with self._lock:
            self.version += 1
            entry.version = self.version

    def get(self, name: str) -> Entry:
        """The run of this name."""
        found = self.entries.get(name)
        if found is None:
            raise WhorlError(f"there is no run {name!r} in {self.root}")
        return found

    def _search(self) -> Iterator[Entry]:
        if not self._folders:
            yield from self._below(self.root, self.root.name, DEPTH)
            return
        folders = [folder.resolve() for folder in self._folders]
        names = [folder.name for folder in folders]
        for folder in folders:
            name = folder.name if names.count(folder.name) == 1 else str(folder)
            yield from self._below(folder, name, DEPTH)

    def _below(self, folder: Path, name: str, depth: int, parent: str = "") -> Iterator[Entry]:
        try:
            with os.scandir(folder) as listing:
                inner = list(listing)
        except OSError:
            return
        names = {item.name for item in inner}
        population = POPULATION in names
        root = self.root if not self._folders else folder.parent
        if population or names & {CONFIG, METRICS}:
            numbers = [int(found[1]) for inside in names if (found := _CHECKPOINT.fullmatch(inside))]
            yield Entry(name, folder, root, population, parent, max(numbers, default=0))
            if not population:
                return
            parent = name
        if not depth:
            return
        for item in sorted(inner, key=lambda item: item.name):
            if item.is_dir(follow_symlinks=False) and not SKIPPED.fullmatch(item.name):
                path = item.name if folder == self.root and not population else f"{name}/{item.name}"
                yield from self._below(folder / item.name, path, depth - 1, parent)


def inside(path: Path, root: Path) -> Path | None:
    """The file at a path, if there is one and it lies below `root`, wherever links lead."""
    try:
        found = Path(os.path.realpath(path))
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, ValueError):
        return None


def _update(entry: Entry) -> bool:
    """Bring a row of the table up to date; whether it changed."""
    names = (POPULATION if entry.population else CONFIG, METRICS, LOCK, _saved(entry), "lineage.jsonl")
    signature = tuple(_stamp(entry.folder / name) for name in names)
    # An owner may die without touching a file.
    if signature == entry.signature and entry.row.get("state") != "running":
        return False
    if not entry.signature or {0, 3} & {i for i in range(4) if signature[i] != entry.signature[i]}:
        entry.config = _read_config(entry)
    entry.signature = signature
    before, entry.row = entry.row, _row(entry)
    return before != entry.row


def _saved(entry: Entry) -> str:
    """The settings in the newest checkpoint: a resumed run may have other limits."""
    return f"checkpoint_{entry.checkpoint}/{CONFIG}"


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _row(entry: Entry) -> dict[str, Any]:
    path, tail = entry.metrics, None
    with suppress(OSError):  # it was deleted meanwhile
        tail = Tail(path) if path is not None else None
    last = tail.newest((RETURN, EVALUATION)) if tail is not None else {}
    state = "stopped"
    with suppress(OSError, TypeError):
        state = run_state(entry.folder, entry.config, last)
    score, evaluated = _score(last)
    share, left = _progress(entry, last, tail if state == "running" else None)
    written = max((stamp[1] for stamp in entry.signature[1:2] or ()), default=0) or entry.signature[0][1]
    return {
        "name": entry.name,
        "population": entry.population,
        "parent": entry.parent,
        "algorithm": entry.algorithm,
        "env": entry.env,
        "seed": entry.config.get("seed"),
        "tag": str(entry.config.get("tag") or ""),
        "state": state,
        "steps": _number(last.get("steps")),
        "episodes": _number(last.get("episodes")),
        "return": score,
        "evaluated": evaluated,
        "elapsed": _number(last.get(ELAPSED)),
        "rate": _number(last.get("time/steps_per_second")),
        "share": 1.0 if state == "finished" else share,
        "left": left,
        "written": written / 1e9,
    }


def _score(last: dict[str, Any]) -> tuple[float | None, bool]:
    """The newest return, of the evaluation if there is one, and whether it is; the mean of several behaviours."""
    for ending in (EVALUATION, RETURN):
        values = [_number(value) for key, value in last.items() if key.endswith(ending)]
        known = [value for value in values if value is not None]
        if known:
            return fmean(known), ending == EVALUATION
    return None, False


def _progress(entry: Entry, last: dict[str, Any], tail: Tail | None) -> tuple[float, float | None]:
    """The share of the budget that is spent, and the seconds until it is; None: not known.

    Args:
        tail: the newest rows of an unfinished run.
    """
    share, left = 0.0, []
    for key, name in LIMITS.items():
        limit, done = _number(entry.config.get(name)), _number(last.get(key))
        if not limit or done is None:
            continue
        share = max(share, min(done / limit, 1.0))
        if tail is not None and (rate := 1.0 if key == ELAPSED else tail.rate(key)) > 0:
            left.append((limit - done) / rate)
    # Beyond a limit, it was raised: to where is known with the next checkpoint.
    return share, None if min(left, default=-1.0) < 0 else min(left)


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < float("inf") else None


def _read_config(entry: Entry) -> dict[str, Any]:
    found = _settings_in(POPULATION if entry.population else CONFIG, entry)
    if not entry.population:
        saved = _settings_in(_saved(entry), entry) if entry.checkpoint else {}
        return found | {name: saved[name] for name in LIMITS.values() if name in saved}
    # One setting is named as in a run, so that tables and filters read the same.
    learners = found.get("learners")
    return {**found, **(learners if isinstance(learners, dict) else {})}


def _settings_in(name: str, entry: Entry) -> dict[str, Any]:
    path = inside(entry.folder / name, entry.root)
    if path is None:
        return {}
    try:
        return read_settings(path.read_text("utf-8"))
    except (OSError, WhorlError, UnicodeDecodeError):
        return {}


def read_settings(text: str) -> dict[str, Any]:
    """Settings without secrets. Runs share most lines of their config.yaml, so each entry is parsed once for all."""
    if re.search(r"[:-] [&*]\w", text):  # anchors refer to other entries
        found = hidden(read_yaml(text, CONFIG))
        return found if isinstance(found, dict) else {}
    settings: dict[str, Any] = {}
    for part in _TOP.split(text):
        found = _entry(part)
        if isinstance(found, dict):
            settings |= found
    return settings


@lru_cache(maxsize=20_000)
def _entry(text: str) -> Any:
    return hidden(read_yaml(text, CONFIG))
