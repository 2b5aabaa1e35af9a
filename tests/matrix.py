"""Quick tests with several versions of Python, torch and Gymnasium, each in a virtual environment of its own.

`make test-matrix` runs all rows, `python tests/matrix.py 3.10-oldest` one. *Oldest* is every package at the lower bound
of pyproject.toml, *newest* what pip chooses without bounds, *pinned* the torch of constraints.txt. A row whose Python
or packages can't be had on this machine is named and left out. From PyPI torch comes with CUDA, about 6 GB for a
row, so an environment is deleted after its tests unless `--keep` is given, which also takes one that was kept before;
`MATRIX_PIP="--extra-index-url https://download.pytorch.org/whl/cpu"` takes builds for CPUs.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "matrix"
TESTS = (
    *(
        "tests/ops",
        "tests/data",
        "tests/explore",
        "tests/agents",
        "tests/settings",
        "tests/state",
        "tests/fuzz",
    ),
    *("tests/envs/test_gymnasium.py", "tests/envs/test_checker.py", "tests/envs/test_mistakes.py"),
    *("tests/envs/test_batches.py", "tests/envs/test_snapshot.py", "tests/envs/test_native.py"),
    *("tests/run/test_trainer.py", "tests/run/test_failures.py", "tests/distributed/test_pool.py"),
    "tests/multi",
)
"""maths, replay, settings, checkpoints, environments, a worker pool, trainings, several behaviours;
without extras such as MuJoCo"""
SHOWN = (
    "import platform, torch, gymnasium, numpy\n"
    "print(platform.python_version(), torch.__version__, gymnasium.__version__, numpy.__version__)"
)


@dataclass(frozen=True)
class Row:
    """One combination; `gymnasium` and the rest of the packages are oldest or newest."""

    python: str
    packages: str

    @property
    def name(self) -> str:
        return f"{self.python}-{self.packages}"

    def constraints(self) -> list[str]:
        if self.packages == "oldest":
            return [f"{name}=={version}" for name, version in lower_bounds().items()]
        if self.packages == "oldest-gymnasium":
            return [*pinned_torch(), f"gymnasium=={lower_bounds()['gymnasium']}"]
        return pinned_torch() if self.packages == "pinned" else []


ROWS = (
    Row("3.10", "oldest"),
    Row("3.11", "oldest-gymnasium"),
    Row("3.11", "newest"),
    Row("3.12", "newest"),
    Row("3.13", "newest"),
)


def lower_bounds() -> dict[str, str]:
    """The oldest version of each dependency that pyproject.toml allows."""
    text = (ROOT / "pyproject.toml").read_text()
    listed = text.partition("\ndependencies = [")[2].partition("]")[0]
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed))


def pinned_torch() -> list[str]:
    return re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [shutil.which(f"python{version}"), *map(str, found), sys.executable]
    for candidate in filter(None, candidates):
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return candidate
    return None


def install(row: Row, folder: Path, own: str) -> str:
    """Fill a new virtual environment; why that failed, or nothing."""
    python = interpreter(row.python)
    if python is None:
        return f"not run: there is no Python {row.python} on this machine"
    constraints = FOLDER / f"{row.name}.txt"
    constraints.parent.mkdir(parents=True, exist_ok=True)
    constraints.write_text("\n".join(row.constraints()) + "\n")
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    command = [own, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    command += ["-c", str(constraints), *shlex.split(os.environ.get("MATRIX_PIP", ""))]
    done = subprocess.run(
        [*command, "-e", str(ROOT), "pytest", "pytest-xdist"], capture_output=True, text=True
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return f"not run: pip can't install it: {(errors or [done.stderr[-300:]])[0]}"
    (folder / "installed").touch()
    return ""


def run(row: Row, tests: list[str], keep: bool, processes: int) -> str:
    """Passed, failed, or why it could not be run."""
    folder = FOLDER / row.name
    own = str(folder / "bin" / "python")
    try:
        if not (keep and (folder / "installed").exists()) and (reason := install(row, folder, own)):
            return reason
        versions = subprocess.run([own, "-c", SHOWN], capture_output=True, text=True, cwd=ROOT)
        if versions.returncode:
            return f"not run: torch can't be imported: {versions.stderr.strip().splitlines()[-1]}"
        names = zip(("Python", "torch", "Gymnasium", "numpy"), versions.stdout.split())
        sys.stdout.write(f"{row.name}: {', '.join(map(' '.join, names))}\n")
        sys.stdout.flush()
        command = [own, "-m", "pytest", "-n", str(processes), "-q", "-m", "not full and not gpu", *tests]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        )
        return "passed" if done.returncode == 0 else "FAILED"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names such as 3.10-oldest")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--keep", action="store_true", help="leave the virtual environments in build/matrix")
    parser.add_argument("--processes", type=int, default=2, help="of pytest; 0: none besides its own")
    args = parser.parse_args()
    if unknown := set(args.rows) - {row.name for row in ROWS}:
        parser.error(f"no row is called {min(unknown)}; choose from {', '.join(row.name for row in ROWS)}")
    rows = [row for row in ROWS if not args.rows or row.name in args.rows]
    ends = {row.name: run(row, args.tests, args.keep, args.processes) for row in rows}
    sys.stdout.write("".join(f"{name}: {end}\n" for name, end in ends.items()))
    return int("FAILED" in ends.values())


if __name__ == "__main__":
    raise SystemExit(main())
