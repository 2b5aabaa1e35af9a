"""Many trainings in processes of their own, each pinned to its share of the cores; results are lines of JSON.

Used by `defaults.py`, `presets.py` and `studies.py`. A job is one line of arguments of the script itself. Its record is
appended to the output as it finishes, so that a call that was stopped, or ran out of time, is continued by the same
command: finished jobs are skipped. A job that would not finish in the time that is left is not started; one that is
still running when the time is over is stopped and leaves no record.
"""

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

import whorl

ROOT = Path(__file__).resolve().parent.parent
Record = dict[str, Any]


@dataclass(frozen=True)
class CommandLine:
    """The arguments that scripts of many trainings share; each adds its own to `run` and `report`."""

    parser: argparse.ArgumentParser
    run: argparse.ArgumentParser
    report: argparse.ArgumentParser

    @staticmethod
    def of(description: str | None, limit: float) -> "CommandLine":
        formatter = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
        commands = parser.add_subparsers(dest="command", required=True)
        run = commands.add_parser("run", help="train what is not in the output yet")
        run.add_argument("--output", type=Path, required=True)
        run.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
        run.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores evenly")
        run.add_argument("--gpu", action="store_true", help="runs see the GPU")
        run.add_argument("--seconds", type=float, default=540, help="time of the whole call")
        run.add_argument("--limit", type=float, default=limit, help="seconds of training of one run")
        job = commands.add_parser("job", help="one training (used by run)")
        job.add_argument("job", type=json.loads)
        job.add_argument("--limit", type=float, default=math.inf)
        report = commands.add_parser("report", help="the table of what is in the output")
        report.add_argument("output", type=Path, nargs="+")
        report.add_argument("--commit", default="", help="of runs on a machine without git")
        return CommandLine(parser, run, report)


def read_all(args: argparse.Namespace) -> list[Record]:
    """The records that `report` was given."""
    records = [record for path in args.output for record in read(path)]
    return [{**record, "commit": record["commit"] or args.commit} for record in records]


def read(path: Path) -> list[Record]:
    """The records of a file, none where it is missing; a last line that was cut off is left out."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def run_with(
    args: argparse.Namespace,
    jobs: Sequence[Mapping[str, Any]],
    estimate: Callable[[Mapping[str, Any], list[Record]], float],
) -> None:
    """`run_jobs` with the arguments of `run`."""
    limit = ("--limit", str(args.limit))
    run_jobs(jobs, args.output, args.jobs, args.seconds, estimate, limit, args.gpu)


def run_jobs(
    jobs: Sequence[Mapping[str, Any]],
    output: Path,
    count: int,
    seconds: float,
    estimate: Callable[[Mapping[str, Any], list[Record]], float],
    arguments: Sequence[str] = (),
    gpu: bool = False,
) -> None:
    """Run `jobs` in their order, `count` at a time, for `seconds`: each as `SCRIPT job JSON`, which prints its record.

    Args:
        estimate: seconds that a job will take, given the records so far.
        arguments: further ones of each job, which do not tell jobs apart.
        gpu: jobs see the GPU.
    """
    began = time.monotonic()
    records = read(output)
    finished = {_key(record["job"]) for record in records}
    waiting = [dict(job) for job in jobs if _key(job) not in finished]
    print(f"{len(jobs)} jobs, {len(jobs) - len(waiting)} of them finished before", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()

    def take() -> dict[str, Any] | None:
        """The first job that can finish."""
        with lock:
            left = seconds - (time.monotonic() - began)
            for job in waiting:
                if estimate(job, records) < left:
                    waiting.remove(job)
                    return job
        return None

    def work(cores: set[int]) -> None:
        while (job := take()) is not None:
            found = _run(job, arguments, cores, seconds - (time.monotonic() - began), gpu)
            with lock:
                if found is not None:
                    records.append(found)
                    with output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
                print(f"{time.monotonic() - began:6.0f} s  {_line(job, found)}", flush=True)

    workers = [threading.Thread(target=work, args=(cores,)) for cores in shares(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{len(waiting)} jobs are left" if waiting else "all jobs were started", flush=True)


def shares(count: int) -> list[set[int]]:
    """The usable cores in `count` sets; with fewer cores than sets several share one."""
    usable = sorted(os.sched_getaffinity(0))
    if count >= len(usable):
        return [{usable[number % len(usable)]} for number in range(count)]
    return [set(usable[number::count]) for number in range(count)]


def _run(
    job: Mapping[str, Any], arguments: Sequence[str], cores: set[int], seconds: float, gpu: bool
) -> Record | None:
    """A job's record; None where it failed or was stopped."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, sys.argv[0], "job", json.dumps(job), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **threads, **hidden},
    )
    with suppress(ProcessLookupError):
        os.sched_setaffinity(process.pid, cores)
    try:
        output, errors = process.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.wait()
    if process.returncode:
        print(errors[-2000:], file=sys.stderr, flush=True)
        return None
    found = json.loads(output.strip().splitlines()[-1])
    spent = round(time.monotonic() - began, 1)
    return {"job": dict(job), **found, "total_time": spent, "cores": len(cores)}


def _key(job: Mapping[str, Any]) -> str:
    return json.dumps(job, sort_keys=True)


def _line(job: Mapping[str, Any], record: Record | None) -> str:
    words = " ".join(str(value) for value in job.values())
    if record is None:
        return f"{words}: no result"
    return f"{words}: {record['return']:.1f} after {record['steps']:,} steps, {record['wall_time']:.0f} s"


def known_seconds(
    records: Iterable[Record], job: Mapping[str, Any], same: Sequence[Sequence[str]], steps: int
) -> float | None:
    """Seconds for `steps` at the slowest rate of records like `job`: of those that agree in the first of `same`, or the
    next; None where there are none."""
    for names in same:
        rates = [
            record["steps"] / max(record["total_time"], 1e-3)
            for record in records
            if all(record["job"][name] == job[name] for name in names)
        ]
        if rates:
            return steps / min(rates)
    return None


@dataclass(frozen=True)
class Trained:
    """A run of ours that has ended."""

    record: Record
    """steps, wall_time and processor_time (s), return, and the mean of each measure of the episodes played"""
    rows: list[dict[str, Any]]
    """its metrics"""
    config: dict[str, Any]
    """its settings"""


def train(
    env: Any, algorithm: str, settings: Mapping[str, Any], episodes: int, limit: float = math.inf
) -> Trained:
    """Train, for `limit` seconds at most, then play deterministic episodes with the last policy."""
    played: list[Any] = []
    processor = [0.0, 0.0]  # when training began and ended, in processor time

    class Ending(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            processor[0] = time.process_time()

        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if metrics["time/elapsed"] > limit:
                trainer.stop(f"{limit:.0f} s are over")

        def on_end(self, trainer: Any, result: Any) -> None:
            processor[1] = time.process_time()
            played.append(trainer.evaluate(episodes))

    with tempfile.TemporaryDirectory() as folder:
        beside = {"save_model": False, "tensorboard": False, "quiet": True, "runs": folder}
        trainer = whorl.load(env, algorithm, {**beside, **settings}, callbacks=[Ending()])
        result = trainer.train()
        rows = read(result.run_dir / "metrics.jsonl")
    record = {
        "steps": result.steps,
        "wall_time": round(result.wall_time, 2),
        "processor_time": round(processor[1] - processor[0], 2),
        "return": played[0].mean_return,
    }
    if played[0].measures:
        record["measures"] = dict(played[0].measures)
    return Trained(record, rows, trainer.settings.plain())


def origin() -> Record:
    """Where and when a record was made."""
    return {"machine": machine(), "commit": commit(), "date": date.today().isoformat()}


def machine() -> str:
    """The machine of a record, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores, {processor()}"


def processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """The commit of this checkout; empty where there is no git."""
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.check_output(command, text=True, cwd=ROOT, stderr=subprocess.DEVNULL).strip()
    return ""
