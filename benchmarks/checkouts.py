"""Two checkouts of this repository side by side, for scripts that compare an old version with a new one."""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Checkout:
    folder: Path
    name: str
    """a commit, or the folder where there is no git"""

    def environment(self, threads: int = 1, **more: str) -> dict[str, str]:
        """Environment variables under which Python imports whorl from this checkout."""
        pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        return {**os.environ, **pinned, "PYTHONPATH": str(self.folder), **more}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `two` reads."""
    parser.add_argument("base", nargs="?", help="commit to compare with, checked out in a temporary worktree")
    parser.add_argument("--old", type=Path, help="folder to compare with, in place of a commit")
    parser.add_argument("--new", type=Path, default=ROOT, help="folder to test; default: this checkout")


@contextmanager
def two(args: argparse.Namespace) -> Iterator[tuple[Checkout, Checkout]]:
    """The old and the new checkout; a worktree that had to be made is removed afterwards."""
    if (args.base is None) == (args.old is None):
        raise SystemExit("give a commit to compare with, or --old FOLDER")
    new = Checkout(_checked(args.new), _commit(args.new, "HEAD") or str(args.new))
    if args.old is not None:
        yield Checkout(_checked(args.old), _commit(args.old, "HEAD") or str(args.old)), new
        return
    commit = _commit(ROOT, args.base)
    if not commit:
        raise SystemExit(f"git knows no commit {args.base!r} in {ROOT}; without git give --old FOLDER")
    with tempfile.TemporaryDirectory(prefix="whorl-base-") as parent:
        folder = Path(parent) / "base"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(folder), commit],
            check=True,
        )
        try:
            yield Checkout(folder, commit), new
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(folder)], check=True)


def import_whorl() -> None:
    """Import whorl, and fail where it is not the one that PYTHONPATH names."""
    import whorl

    wanted, found = Path(os.environ["PYTHONPATH"]).resolve(), Path(whorl.__file__).resolve().parents[1]
    if found != wanted:
        raise SystemExit(f"whorl was imported from {found}, not from {wanted}")


def _checked(folder: Path) -> Path:
    if not (folder / "whorl" / "__init__.py").exists():
        raise SystemExit(f"{folder} is no checkout of this repository: it has no whorl/__init__.py")
    return folder.resolve()


def _commit(folder: Path, name: str) -> str:
    """The hash of a commit; empty where git or the repository is missing."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""
