"""Where a run comes from: command, code, versions, machine. Collected once per process, as plain data."""

import os
import platform
import shlex
import socket
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from whorl.core.version import __version__
from whorl.settings.secrets import hidden_words

PACKAGES = ("numpy", "gymnasium")
GIT_SECONDS = 5.0
"""after which git is not waited for, as on a slow network drive"""


def provenance(seed: int) -> dict[str, Any]:
    """The command line without secrets, commits of the current folder and of Whorl, versions, machine, seed."""
    return {**_of_process(str(Path.cwd())), "seed": seed}


@cache
def _of_process(folder: str) -> dict[str, Any]:
    versions = {
        "python": platform.python_version(),
        "whorl": __version__,
        "torch": str(
            torch.__version__
        ),  # with its build, +cu124 or +cpu, which a distribution's version may lack
        **{name: _version(name) for name in PACKAGES},
    }
    found: dict[str, Any] = {
        "command": shlex.join(hidden_words([Path(sys.executable).name, *sys.orig_argv[1:]])),
        "folder": folder,
        "commit": _commit(folder),
        "whorl_commit": _commit(str(Path(__file__).parent)),
        "versions": versions,
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu": _processor(),
        "cores": os.cpu_count() or 0,
    }
    if torch.cuda.is_available():
        found["gpu"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        found["cuda"] = str(torch.version.cuda)
    return found


def _commit(folder: str) -> dict[str, Any] | None:
    """Commit of the repository around a folder, and whether tracked files differ from it; None: no repository."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"id": head, "dirty": None if changes is None else bool(changes)}


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):  # there is no git, or it takes too long
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # used from a source tree
        return "unknown"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
