"""Run folders: `runs/PPO_Quadrotor-v0_2026-11-15_03-10-22`, one per training run, never reused."""

import re
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, nearest
from whorl.state.runlock import living_owner

RUNS = Path("runs")
"""where run folders are created and searched by default"""
LIMITS = {
    "steps": "total_timesteps",
    "episodes": "total_episodes",
    "iteration": "max_iterations",
    "time/elapsed": "max_seconds",
}
"""what a row of metrics counts, and the setting that limits it"""
MOST_NAMES = 8
"""of runs that an error lists"""
_LONGEST = 80  # characters of an environment id or tag in the name; file systems allow 255 in all


def new_run_folder(
    runs: Path, algorithm: str, env_id: str, tag: str = "", name: str = "", seed: int = 0
) -> Path:
    """Create `runs/ALGO_ENV_date_time[_tag]`, or what `name` says, and `runs` when it is missing.

    Args:
        name: a template with {time}, {env}, {algo}, {seed}, {host} and {tag}.
    """
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    parts = [_safe(algorithm).upper(), _safe(env_id), now, _safe(tag)]
    found = "_".join(part for part in parts if part)
    if name:
        words = {
            "time": now,
            "env": env_id,
            "algo": algorithm,
            "seed": seed,
            "host": socket.gethostname(),
            "tag": tag,
        }
        found = _safe(name.format_map(words)) or found
    if run_of(Path(found)) != Path(found):
        raise ConfigError(f"name is {name!r}, a name that only checkpoints have; choose another")
    runs = files.expanded(runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        return _create(runs / found)
    except OSError as error:
        raise CheckpointError(f"can't create a run folder in {runs}: {files.reason(error)}") from error


def find_run(path_or_name: Path | str, runs: Path = RUNS) -> Path | None:
    """The folder with this path, or with this name in `runs`; None if there is neither."""
    places = (files.expanded(place) for place in (Path(path_or_name), runs / path_or_name))
    folder = next((place for place in places if place.is_dir()), None)
    return None if folder is None else folder.resolve()


def resolve_run(path_or_name: Path | str, runs: Path = RUNS, new: Path | None = None) -> Path:
    """The run or checkpoint folder with this path, or with this name in `runs`.

    Args:
        new: the folder of a run that begins, which errors do not name.
    """
    folder = find_run(path_or_name, runs)
    if folder is not None:
        return folder
    path = Path(path_or_name)
    run = find_run(path.parent, runs) if run_of(path) != path and path.parent.name else None
    if run is not None:
        there = sorted(entry.name for entry in run.iterdir() if entry.is_dir() and run_of(entry) != entry)
        raise CheckpointError(f"{run} has no {path.name}; it has {', '.join(there) or 'no checkpoint yet'}")
    known = [name for name in run_names(runs) if new is None or name != new.name]
    hint = nearest(path.name, known, MOST_NAMES) if known else f"there are no runs in {runs} yet"
    raise CheckpointError(f"no run {str(path_or_name)!r}; {hint}")


def run_names(runs: Path = RUNS) -> list[str]:
    """The names of the folders in `runs`."""
    runs = files.expanded(runs)
    return [entry.name for entry in runs.iterdir() if entry.is_dir()] if runs.is_dir() else []


def run_of(folder: Path) -> Path:
    """The run folder of a run or checkpoint folder."""
    return folder.parent if folder.name == "best" or folder.name.startswith("checkpoint_") else folder


def run_state(run: Path, config: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Whether a run is running, finished (one of its limits is reached) or stopped.

    Args:
        last: the newest value of each metric.
    """
    if living_owner(run) is not None:
        return "running"
    # Rows of metrics come before the end, so a limit of time is never reached in them.
    counted = {key: name for key, name in LIMITS.items() if name != "max_seconds"}
    spent = any(config.get(name) and last.get(key, 0) >= config[name] for key, name in counted.items())
    return "finished" if spent else "stopped"


def _create(path: Path) -> Path:
    for candidate in files.free_names(path):
        try:
            candidate.mkdir()
        except FileExistsError:
            continue  # another process was faster
        files.fsync_dir(candidate.parent)
        return candidate
    raise AssertionError("unreachable: free_names is infinite")


def _safe(text: str) -> str:
    """Letters, digits, '.', '_', '-' only; no dot at the end (Windows drops it) or start (Unix hides the folder)."""
    return re.sub(r"[^\w.-]+", "-", text)[:_LONGEST].strip(".-")
