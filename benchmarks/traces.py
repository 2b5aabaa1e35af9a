"""Train every update rule briefly in two checkouts and compare the runs bit for bit: `make traces BASE=COMMIT`.

Compared are the agent's tensors (weights, targets, normalisers, optimizer state), every metrics column that does not
measure time or load, the counters, and the actions of the trained policy in an episode with a fixed seed. Both
checkouts run on this machine, because floating-point results depend on the processor and the version of torch.

Names may differ between the two checkouts. Tensors are matched by content; metrics columns by name, then by the new
name in `RENAMED`, then by content. Tensors and columns that only the new checkout has are listed but are not
differences. The replay buffer is not compared, because its columns may change their format; what is sampled from it
shows in the metrics and the weights.

The old checkout's results are cached in the git directory and reused while its commit, `trace_cases.py`, torch and the
processor stay the same; `--fresh` trains it again.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import platform
import re
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any

from checkouts import ROOT, Checkout, add_arguments, two

RENAMED: dict[str, str] = {"epoch": "iteration"}
"""columns of metrics and counters that have a new name"""
RENAMED_SETTINGS = {
    "lanes": "num_envs",
    "rollout_steps": "num_steps",
    "total_steps": "total_timesteps",
    "capacity": "buffer_size",
    "learn_after": "learning_starts",
    "ratio": "updates_per_step",
    "lam": "gae_lambda",
    "entropy_coef": "ent_coef",
    "clip": "clip_range",
    "epsilon_share": "exploration_fraction",
}
"""settings that have a new name, for the case that compares presets"""
NOT_COMPARED = re.compile(
    r"time/|system/|.*per_second$|learner/waiting$|actors/(queue|bytes_in|bytes_out|replaced)$|(shards|learners)/"
)
"""columns of metrics that depend on the clock, the load, or the format of messages"""
CASES = Path(__file__).with_name("trace_cases.py")
TIMEOUT = 300.0
SHOWN = 4
"""names in a list before the rest is counted"""

Record = Mapping[str, Any]


@dataclass
class Compared:
    """What two records of one case do not have in common."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """changes of name, and what is new"""


def compare(old: Record, new: Record) -> Compared:
    """Everything that the old record has must be in the new one."""
    found = Compared()
    errors = [
        f"{side} failed: {one['error']}" for side, one in (("old", old), ("new", new)) if "error" in one
    ]
    if errors:
        found.differences += errors
        return found
    if "settings" in old:
        compare_settings(old["settings"], new["settings"], found)
        return found
    compare_counters(old["counters"], new["counters"], found)
    compare_metrics(old["metrics"], new["metrics"], found)
    compare_tensors(old["tensors"], new["tensors"], found)
    row = first_difference(old["actions"], new["actions"])
    if row is not None:
        found.differences.append(f"the trained policy's actions from number {row} on")
    return found


def compare_tensors(old: Mapping[str, str], new: Mapping[str, str], found: Compared) -> None:
    """Hashes by name: as multisets, since names may change."""
    missing = Counter(old.values()) - Counter(new.values())
    added = Counter(new.values()) - Counter(old.values())
    changed, gone = [], []
    # Of several names with the same content blame those that have something else now.
    for name, value in sorted(old.items(), key=lambda item: new.get(item[0]) == item[1]):
        if missing[value]:
            missing[value] -= 1
            (changed if name in new else gone).append(name)
    if changed:
        found.differences.append(f"{len(changed)} of {len(old)} tensors differ: {listed(changed)}")
    if gone:
        found.differences.append(f"{len(gone)} of {len(old)} tensors are missing: {listed(gone)}")
    new_names = [name for name, value in new.items() if added[value] and name not in old]
    if new_names:
        found.notes.append(f"new tensors: {listed(new_names)}")
    if not changed and not gone:
        renamed = [name for name in old if name not in new]
        found.notes += [f"renamed tensors: {listed(renamed)}"] if renamed else []


def compare_metrics(old: Mapping[str, list[Any]], new: Mapping[str, list[Any]], found: Compared) -> None:
    """Columns by name, else by content."""
    free = [name for name in new if name not in old and name not in RENAMED.values()]
    differ = {}
    for name, values in old.items():
        if NOT_COMPARED.match(name):
            continue
        known = name if name in new else RENAMED.get(name, "")
        if known not in new:
            same = [other for other in free if new[other] == values]
            if not same:
                found.differences.append(f"metric {name} is missing")
                continue
            known = same[0]
            free.remove(known)
            found.notes.append(f"metric {name} is called {known}")
        row = first_difference(values, new[known])
        if row is not None:
            pair = [repr(column[row]) if row < len(column) else "no row" for column in (values, new[known])]
            differ[name] = (row, f"{name} from row {row} on: {pair[0]}, now {pair[1]}")
    if differ:
        found.differences.append(f"{len(differ)} of {len(old)} metrics differ: {min(differ.values())[1]}")
    added = [name for name in free if not NOT_COMPARED.match(name)]
    if added:
        found.notes.append(f"new metrics: {listed(added)}")


def compare_counters(old: Mapping[str, Any], new: Mapping[str, Any], found: Compared) -> None:
    """Steps, epochs and episodes at the end."""
    for name, value in old.items():
        now = new.get(RENAMED.get(name, name), new.get(name))
        if now != value:
            found.differences.append(f"{name}: {value}, now {now}")


def compare_settings(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]], found: Compared
) -> None:
    """Settings by preset and environment: under its old name or its new one, each has the same value."""
    missing: dict[str, int] = {}
    for preset, settings in old.items():
        if preset not in new:
            found.differences.append(f"preset {preset} is missing")
            continue
        for name, value in settings.items():
            known = name if name in new[preset] else RENAMED_SETTINGS.get(name, name)
            if known not in new[preset]:
                missing[name] = missing.get(name, 0) + 1
            elif new[preset][known] != value:
                found.differences.append(f"preset {preset}, {name}: {value!r}, now {new[preset][known]!r}")
    found.differences += [
        f"setting {name} is missing in {count} presets; add its new name to RENAMED_SETTINGS"
        for name, count in missing.items()
    ]


def first_difference(old: Sequence[Any], new: Sequence[Any]) -> int | None:
    """The first place at which two sequences are not the same; None where they are."""
    for row, (before, after) in enumerate(zip(old, new)):
        if before != after:
            return row
    return None if len(old) == len(new) else min(len(old), len(new))


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class Runner:
    """A process that trains one case after the other in a checkout."""

    def __init__(self, checkout: Checkout, log: Path) -> None:
        self.checkout, self.log = checkout, log
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> dict[str, Any]:
        """The record of a case; a process that dies or hangs is an error, and the next case gets a new one."""
        if self.process is None:
            self._start()
        process = self.process
        assert process and process.stdin and process.stdout
        process.stdin.write(name + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            answered = selector.select(TIMEOUT)
        line = process.stdout.readline() if answered else ""
        if line:
            return dict(json.loads(line))
        self.close()
        reason = f"the process ended, see {self.log}" if answered else f"no answer after {TIMEOUT:.0f} s"
        return {"error": reason}

    def _start(self) -> None:
        # MKL picks its kernels by how arrays are aligned unless it is told not to.
        environment = self.checkout.environment(
            MKL_CBWR="COMPATIBLE", PYTHONHASHSEED="0", CUDA_VISIBLE_DEVICES="", PYTHONDONTWRITEBYTECODE="1"
        )
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(CASES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.log.parent,
                env=environment,
            )

    def close(self) -> None:
        """End the process: by the end of its input, so that its own children end too, or by force."""
        if self.process is None:
            return
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()
        self.process = None


class Kept:
    """Records of a commit on this machine, in git's folder; without a commit nothing is kept."""

    def __init__(self, checkout: Checkout, fresh: bool) -> None:
        self.folder: Path | None = None
        self.fresh = fresh
        if not re.fullmatch("[0-9a-f]{40}", checkout.name) or _changed(checkout):
            return
        import torch

        about = "\n".join((_processor(), torch.__version__, CASES.read_text()))
        key = f"{checkout.name[:12]}-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
        git = _git(ROOT, "rev-parse", "--path-format=absolute", "--git-common-dir")
        self.folder = Path(git) / "traces" / key

    def get(self, name: str) -> dict[str, Any] | None:
        path = self._path(name)
        if path is None or self.fresh or not path.exists():
            return None
        return dict(json.loads(path.read_text()))

    def put(self, name: str, record: Record) -> None:
        path = self._path(name)
        if path is None or "error" in record:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(record))
        beside.replace(path)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{re.sub('[^a-zA-Z0-9]+', '_', name)}.json"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True).stdout.strip()


def _changed(checkout: Checkout) -> bool:
    """Whether the package there is not what its commit has."""
    return bool(_git(checkout.folder, "status", "--porcelain", "--", "whorl"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line for line in lines if line.startswith("model name")]
    return f"{platform.node()} {names[0] if names else platform.processor()}"


def run_all(names: Sequence[str], old: Checkout, new: Checkout, args: argparse.Namespace, logs: Path) -> int:
    """Train and compare; prints a line for each case and returns how many are not equal."""
    kept, own, runners = Kept(old, args.fresh), local(), []
    began, failed = time.perf_counter(), 0

    def runner(side: str, checkout: Checkout) -> Runner:
        if not hasattr(own, side):
            setattr(own, side, Runner(checkout, logs / f"{side}_{len(runners)}.log"))
            runners.append(getattr(own, side))
        return getattr(own, side)

    def both(name: str) -> tuple[Compared, float]:
        started = time.perf_counter()
        before = kept.get(name)
        if before is None:
            before = runner("old", old).run(name)
            kept.put(name, before)
        after = runner("new", new).run(name)
        return compare(before, after), time.perf_counter() - started

    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            futures = {pool.submit(both, name): name for name in names}
            for future in as_completed(futures):
                found, seconds = future.result()
                failed += bool(found.differences)
                _print(futures[future], found, seconds)
    finally:
        for one in runners:
            one.close()
    print(f"{len(names) - failed} of {len(names)} cases equal, {time.perf_counter() - began:.0f} s")
    return failed


def _print(name: str, found: Compared, seconds: float) -> None:
    print(f"{name:40s} {'DIFFERS' if found.differences else 'equal':8s} {seconds:5.1f} s", flush=True)
    for text in found.differences[:6]:
        print(f"    {text}")
    if len(found.differences) > 6:
        print(f"    and {len(found.differences) - 6} more differences")
    for text in found.notes:
        print(f"    ({text})")


def main() -> int:
    import tempfile

    from trace_cases import cases

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--only", default="*", help="cases whose name has this in it, or matches this pattern"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--fresh", action="store_true", help="train the old checkout again, too")
    args = parser.parse_args()
    wanted = [case for case in cases() if args.only in case.name or fnmatch.fnmatchcase(case.name, args.only)]
    if args.list:
        print("\n".join(f"{case.name:40s} {case.algorithm}" for case in wanted))
        return 0
    for case in wanted:
        if case.skipped:
            print(f"{case.name:40s} skipped, {case.needs} is not installed")
    names = [case.name for case in wanted if not case.skipped]
    if not names:
        raise SystemExit(f"no case matches {args.only!r}; --list prints their names")
    logs = Path(tempfile.mkdtemp(prefix="whorl-traces-"))
    with two(args) as (old, new):
        print(f"old {old.name}\nnew {new.name}\nlogs {logs}")
        failed = run_all(names, old, new, args, logs)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
