"""Run folders: `runs/PPO_Quadrotor-v0_2026-11-15_03-10-22`, one per training run, never reused."""

import re
import socket
from datetime import datetime
from pathlib import Path

from whorl.core import files
from whorl.core.errors import CheckpointError, nearest

RUNS = Path("runs")
"""where run folders are created and searched by default"""
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
        found = _safe(name.format_map(words))
    try:
        runs.mkdir(parents=True, exist_ok=True)
        return _create(runs / found)
    except OSError as error:
        raise CheckpointError(f"can't create a run folder in {runs}: {files.reason(error)}") from error


def resolve_run(path_or_name: Path | str, runs: Path = RUNS) -> Path:
    """The run or checkpoint folder with this path, or with this name in `runs`."""
    for candidate in (Path(path_or_name), runs / path_or_name):
        if candidate.is_dir():
            return candidate.resolve()
    known = [entry.name for entry in runs.iterdir() if entry.is_dir()] if runs.is_dir() else []
    hint = nearest(Path(path_or_name).name, known) if known else f"there are no runs in {runs} yet"
    raise CheckpointError(f"no run {str(path_or_name)!r}; {hint}")


def run_of(folder: Path) -> Path:
    """The run folder of a run or checkpoint folder."""
    return folder.parent if folder.name == "best" or folder.name.startswith("checkpoint_") else folder


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
