"""Plant one mistake at a time in a copy of the package and see whether a test notices: `make mutants`.

The mistakes are in `mutations.py`. Each is planted in a temporary copy of the repository, the working tree is never
touched, and its test files run until the first failure. A mutation is *killed* if a test fails or runs out of time,
else it has *survived*: with `--thorough` the whole gate has a look at it then. A survivor is a missing test.

Results are in `results/mutants.jsonl`, one line per mutation with the commit. A mutation is not tried again while its
file and the test that killed it stay as they are, so a run that was stopped goes on where it was; `--fresh` tries all.
Those without a result come first, and of those that were killed before the test that did it runs before the others.
"""

import argparse
import ast
import fnmatch
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkouts import ROOT
from mutations import MUTATIONS, Mutation

RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
WARM = Path(__file__).with_name("warm_tests.py")
GATE = ("-m", "not full and not gpu")
TIMEOUT = 600.0
"""seconds for the tests of one mutation; one that makes a test hang is noticed, too"""
WHOLE_GATE_TIMEOUT = 3600.0
KILLED, SURVIVED = "killed", "survived"
OUT_OF_TIME = "no end within"

Record = dict[str, Any]


@dataclass(frozen=True)
class Tested:
    """How the tests of one mutation ended."""

    outcome: str
    by: str
    """the test that failed, or what else happened"""


class Copy:
    """A copy of the repository in which files are changed and restored, and a process that runs tests there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log, self._seconds = folder / "copy", folder / "log", folder / "seconds.json"
        for name in tracked():
            into = self.folder / name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into)
        self._changes = 0
        # The tests and their children import this copy; the editable install names another folder.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        where = [sys.executable, "-c", "import whorl; print(whorl.__file__)"]
        options: dict[str, Any] = {"cwd": self.folder, "env": environment, "text": True}
        found = subprocess.run(where, check=True, capture_output=True, **options).stdout.strip()
        if not Path(found).is_relative_to(self.folder):
            raise SystemExit(f"Python imports whorl from {found}, not from the copy in {self.folder}")
        command = [sys.executable, str(WARM)]
        self._tests = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)

    def close(self) -> None:
        """End the process."""
        self._tests.communicate()

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """The copy with one mistake in it."""
        path = self.folder / mutation.file
        text, times = path.read_text(), path.stat()
        path.write_text(mutation.apply(text))
        # Python takes a file of the same size and second for one that it has compiled already.
        self._changes += 1
        os.utime(path, (times.st_atime, int(times.st_mtime) + 10 * self._changes))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def test(self, files: Sequence[str], timeout: float, may_be_gone: bool = False) -> Tested:
        """Run tests until the first failure; with `may_be_gone` tests that do not exist notice nothing."""
        arguments = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *GATE, *files]
        job = {
            "folder": str(self.folder),
            "arguments": arguments,
            "log": str(self._log),
            "seconds": str(self._seconds),
            "timeout": timeout,
        }
        assert self._tests.stdin is not None and self._tests.stdout is not None
        self._tests.stdin.write(f"{json.dumps(job)}\n")
        self._tests.stdin.flush()
        status = self._tests.stdout.readline().strip()
        output = self._log.read_text(errors="replace")
        if status == "0" or (may_be_gone and status in ("4", "5")):  # 4: not found, 5: not in the gate
            return Tested(SURVIVED, "")
        if status == "timeout":
            return Tested(KILLED, f"{OUT_OF_TIME} {timeout:g} s")
        if status in ("1", "2"):  # a test has failed, or could not be imported
            return Tested(KILLED, _failed(output))
        if status.startswith("-"):
            return Tested(KILLED, f"signal {status[1:]}")
        raise SystemExit(f"pytest {' '.join(files)} can't run:\n{output}")


def _failed(output: str) -> str:
    """The test that failed, as pytest's summary names it."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else "pytest ended without a summary"


def tracked() -> list[str]:
    """The files of the working tree that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def commit() -> str:
    """The commit of the working tree, with a mark if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def fingerprint(mutation: Mutation, by: str, root: Path = ROOT) -> str:
    """Changes with the mutation, the file that it is planted in, and the test that killed it; all its tests if none."""
    found = hashlib.sha256(repr((mutation.old, mutation.new)).encode())
    found.update((root / mutation.file).read_bytes())
    for test in (by,) if "::" in by else sorted(mutation.tests):
        file, _, name = test.partition("::")
        text = (root / file).read_text() if (root / file).is_file() else ""
        found.update(_function(text, name.partition("[")[0]).encode())
    return found.hexdigest()[:16]


def _function(text: str, name: str) -> str:
    """The source of the test called `name`, empty if it is gone; the whole text without a name."""
    if not name or f"def {name}(" not in text:
        return "" if name else text
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.get_source_segment(text, nodes[0]) or "" if nodes else text


def load(path: Path = RESULTS) -> dict[str, Record]:
    """The recorded results by the name of their mutation."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {record["name"]: record for record in map(json.loads, lines)}


def write(records: dict[str, Record], path: Path = RESULTS) -> None:
    """The results in the order of the table; those of mutations that are gone are dropped."""
    lines = [json.dumps(records[m.name]) + "\n" for m in MUTATIONS if m.name in records]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(lines))
    temporary.replace(path)


def summary(records: dict[str, Record]) -> str:
    """How many were killed, and the survivors with what is known about them."""
    tried = [(mutation, records[mutation.name]) for mutation in MUTATIONS if mutation.name in records]
    killed = sum(record["outcome"] == KILLED for _, record in tried)
    folders: dict[str, list[int]] = {}
    for mutation, record in tried:
        count = folders.setdefault("/".join(mutation.file.split("/")[1:-1]), [0, 0])
        count[0] += record["outcome"] == KILLED
        count[1] += 1
    lines = [f"{name:14}{alive:4} of {count}" for name, (alive, count) in sorted(folders.items())]
    lines += [
        f"survived: {mutation.name}{f' ({mutation.survives})' if mutation.survives else ''}"
        for mutation, record in tried
        if record["outcome"] == SURVIVED
    ]
    lines += [f"{record['by']}: {m.name}" for m, record in tried if record["by"].startswith(OUT_OF_TIME)]
    share = 100 * killed / max(len(tried), 1)
    return "\n".join([*lines, f"{killed} of {len(tried)} killed: {share:.1f} %"])


def chosen(patterns: Sequence[str]) -> list[Mutation]:
    """The mutations whose name contains one of the patterns; all without patterns."""
    wanted = [f"*{pattern}*" for pattern in patterns]
    found = [
        m for m in MUTATIONS if not wanted or any(fnmatch.fnmatchcase(m.name, pattern) for pattern in wanted)
    ]
    if not found:
        raise SystemExit(f"no mutation is called {' or '.join(patterns)}; --list prints their names")
    return found


def attempt(
    mutation: Mutation, copies: "queue.Queue[Copy]", thorough: bool, killer: str | None = None
) -> Record:
    """Plant one mutation in a free copy and run its tests, first the `killer`, the test that noticed it before."""
    copy, began = copies.get(), time.monotonic()
    try:
        with copy.mutated(mutation):
            tested = Tested(SURVIVED, "")
            if killer is not None:
                tested = copy.test([killer], TIMEOUT, may_be_gone=True)
            if tested.outcome == SURVIVED:
                tested = copy.test(mutation.tests, TIMEOUT)
            if tested.outcome == SURVIVED and thorough:
                tested = copy.test(["tests"], WHOLE_GATE_TIMEOUT)
        mark = fingerprint(
            mutation, tested.by, copy.folder
        )  # the working tree may have changed since the copy
    finally:
        copies.put(copy)
    return {
        "name": mutation.name,
        "outcome": tested.outcome,
        "by": tested.by,
        "seconds": round(time.monotonic() - began, 1),
        "thorough": thorough,
        "commit": commit(),
        "fingerprint": mark,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="names that contain one")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time; each takes one core")
    parser.add_argument("--thorough", action="store_true", help="show survivors to the whole gate")
    parser.add_argument("--fresh", action="store_true", help="try those again whose result is recorded")
    parser.add_argument(
        "--unchecked", action="store_true", help="do not run the tests on the unchanged copy first"
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    args = parser.parse_args()
    mutations, records = chosen(args.only), load()
    if args.list:
        print("\n".join(mutation.name for mutation in mutations))
        return
    for mutation in mutations:
        ast.parse(mutation.apply((ROOT / mutation.file).read_text()))  # raises if it does not apply
    due = [m for m in mutations if args.fresh or not known(m, records, args.thorough)]
    due.sort(key=lambda mutation: mutation.name in records)
    with tempfile.TemporaryDirectory(prefix="whorl-mutants-") as parent:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(min(args.jobs, len(due))):
            copies.put(Copy(Path(parent) / str(number)))
        if due and not args.unchecked:
            _check_unchanged(copies.queue[0], due)
        with ThreadPoolExecutor(max(args.jobs, 1)) as pool:
            running = [
                pool.submit(attempt, mutation, copies, args.thorough, killer(mutation, records))
                for mutation in due
            ]
            try:
                for future in as_completed(running):
                    record = future.result()
                    records[record["name"]] = record
                    write(records)
                    found = f"{record['outcome']:9}{record['seconds']:6.1f} s  {record['name']}"
                    print(f"{found}  {record['by']}", flush=True)
            finally:
                pool.shutdown(cancel_futures=True)  # after Ctrl-C, the one under way is the last
        for copy in copies.queue:
            copy.close()
    print(summary({m.name: records[m.name] for m in mutations}))
    unexplained = [m for m in mutations if records[m.name]["outcome"] == SURVIVED and not m.survives]
    if unexplained:
        raise SystemExit(1)


def known(mutation: Mutation, records: dict[str, Record], thorough: bool) -> bool:
    """Whether a mutation need not be tried again."""
    record = records.get(mutation.name)
    if record is None or record["fingerprint"] != fingerprint(mutation, record["by"]):
        return False
    return record["outcome"] == KILLED or record["thorough"] or not thorough


def killer(mutation: Mutation, records: dict[str, Record]) -> str | None:
    """The test that noticed a mutation the last time, if it is one of the files that are meant to."""
    by = records[mutation.name]["by"] if mutation.name in records else ""
    file = by.partition("::")[0]
    return by if "::" in by and any(test.partition("::")[0] == file for test in mutation.tests) else None


def _check_unchanged(copy: Copy, mutations: Sequence[Mutation]) -> None:
    """Raise if a test fails without a mutation: it would kill all of them."""
    files = sorted({test for mutation in mutations for test in mutation.tests})
    tested = copy.test(files, WHOLE_GATE_TIMEOUT)
    if tested.outcome == KILLED:
        raise SystemExit(f"{tested.by} fails without a mutation, so it can't tell anything; mend it first")


if __name__ == "__main__":
    main()
