"""Resolve the name of a trained policy: a run, a checkpoint, an agent in the box, or a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whorl.box.cards import FOLDER, Card, card_of, names
from whorl.core.errors import CheckpointError, nearest
from whorl.state import checkpoint
from whorl.state.runfolder import MOST_NAMES, RUNS, find_run, resolve_run, run_names, run_of

FILES = (".safetensors", ".pt")
"""suffixes of files that hold a policy with its settings"""
OTHERS = (".onnx", ".ts", ".pth", ".ckpt", ".zip")
"""suffixes of files that hold none"""
RunName = str | os.PathLike[str]
"""a run by its name, its folder, or the result of training"""


@dataclass(frozen=True)
class Named:
    """A policy that can be restored, evaluated, shown, recorded and exported."""

    name: str
    path: Path
    """folder of a run or checkpoint, or file"""
    card: Card | None = None
    """of an agent in the box"""

    @property
    def run(self) -> Path | None:
        """The folder of its run; None for an agent in the box and for a file."""
        return run_of(self.path) if self.path.is_dir() else None

    def output(self, name: str) -> Path:
        """Where a file about it is written by default: in its run's folder, else in this folder, after its name."""
        run = self.run
        return Path(f"{Path(self.name).stem}_{name}") if run is None else run / name

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.card is not None:
            return "an agent in the box"
        return "a run" if self.path.is_dir() else "a file"


def find_policy(name: RunName, runs: Path = RUNS, box: Path = FOLDER) -> Named:
    """Find `name`: a folder or file with this path, a run in `runs`, or an agent in the box.

    Runs come before agents of the same name, folders that are no runs after them.
    """
    name = _path(name)
    if not str(name):
        raise CheckpointError(
            "the name of the run is empty; name a run (whorl list --runs) or an agent (whorl list --agents)"
        )
    path, card = Path(name), card_of(str(name), box)
    folder = find_run(name, runs)
    if folder is not None and (card is None or _is_run(folder) or folder.parent == runs.resolve()):
        return Named(str(name), folder)
    if card is not None:
        return Named(str(name), box / f"{name}.pt", card)
    if path.suffix in FILES:
        if not path.is_file():
            raise CheckpointError(f"there is no file {path}")
        inside = path.name in (checkpoint.POLICY, checkpoint.STATE) and checkpoint.is_checkpoint(path.parent)
        return Named(str(name), path.parent.resolve() if inside else path)
    if path.suffix in OTHERS and path.is_file():
        raise CheckpointError(
            f"{path} holds no settings, so Whorl can't read it; name a run, a checkpoint, an agent in the box, or a "
            f"file of whorl export --format safetensors"
        )
    hint = nearest(path.name, {*run_names(runs), *names(box)}, MOST_NAMES)
    raise CheckpointError(f"no run {str(name)!r}, and no agent of that name; {hint}")


def find_folder(name: RunName, runs: Path = RUNS) -> Path:
    """The run or checkpoint folder that `name` stands for, where a policy alone is not enough."""
    name = _path(name)
    if str(name) and not (str(name) in names() or Path(name).is_file()):
        return resolve_run(name, runs)
    found = find_policy(name, runs)
    if not found.path.is_dir():
        raise CheckpointError(
            f"{str(name)!r} is {found.kind}, which has a policy and no metrics or checkpoints; name a run "
            "(whorl list --runs)"
        )
    return found.path


def _path(run: RunName) -> str:
    """A run as text, given by its name, its folder, or the result of training."""
    try:
        return str(os.fspath(run))
    except TypeError:
        raise CheckpointError(
            f"a {type(run).__name__} was given where a run is asked for; give its folder, such as result.run_dir, or "
            "its name"
        ) from None


def find_folders(names: Sequence[RunName]) -> list[Path]:
    """The folders that names stand for, without the files that `runs/*` in a shell names beside them."""
    return [
        find_folder(name) for name in [name for name in names if not Path(_path(name)).is_file()] or names
    ]


def find_runs(names: Sequence[RunName]) -> list[Path]:
    """The run folders that names stand for: of a benchmark, a sweep or another folder of runs, all that are in it."""
    return [run for folder in find_folders(names) for run in _runs_in(run_of(folder))]


def _runs_in(folder: Path) -> list[Path]:
    from whorl.page.catalog import Catalog  # training needs none

    catalog = Catalog(folder)
    catalog.refresh()
    return [entry.folder for entry in catalog.entries.values() if entry.metrics] or [folder]


def _is_run(folder: Path) -> bool:
    parts = (checkpoint.CONFIG, checkpoint.METADATA)
    return any((folder / name).is_file() for name in parts) or bool(checkpoint.checkpoints(folder))
