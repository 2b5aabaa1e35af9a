"""Contestants that take turns, each in a process of its own; used by the benchmarks that show ratios to peers."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any


def medians(names: Iterable[str], rounds: int) -> dict[str, float]:
    """The median rate of each: this script is run again with `--only NAME`, and prints a number last."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, rates in found.items():
            rates.append(answer([sys.executable, *sys.argv, "--only", name]))
    return {name: statistics.median(rates) for name, rates in found.items()}


class NoAnswerError(Exception):
    """Why a contestant gave no result, in a line."""


def answer(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    limit: float | None = None,
    watch: Callable[[int], None] | None = None,
) -> Any:
    """The JSON that a process prints last. It and its children are ended after `limit` seconds.

    Args:
        watch: called with the id of the process a few times a second.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, text=True, env=environment, start_new_session=True
        )
        began = time.monotonic()
        try:
            while process.poll() is None:
                if limit is not None and time.monotonic() - began > limit:
                    raise NoAnswerError(f"took more than {limit:.0f} s")
                if watch is not None:
                    watch(process.pid)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
            process.wait()
        output.seek(0)
        errors.seek(0)
        printed, said = output.read().strip().splitlines(), errors.read().strip().splitlines()
    if process.returncode or not printed:
        ending = f"ended with status {process.returncode}"
        raise NoAnswerError(next((line for line in reversed(said) if "Error" in line), ending).strip())
    return json.loads(printed[-1])


def show(rates: dict[str, float], peers: Iterable[str], what: str) -> None:
    """A line for each contestant, with its ratio to the fastest of `peers`."""
    best = max(rates[name] for name in peers)
    for name, rate in rates.items():
        print(f"  {name:20s} {rate:10,.0f} env-steps/s   {rate / best:5.2f}x {what}")


def turns(
    commands: Mapping[str, list[str]],
    threads: int,
    rounds: int,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, list[float]]:
    """Round by round the rates of contestants that stay alive between turns; those that answer nan drop out.

    Every second round goes through them in reverse, so that a drift of the machine's speed favours none. `environments`
    gives a contestant its own environment variables.
    """
    common = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    processes = {
        name: subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=common if environments is None else dict(environments[name]),
        )
        for name, command in commands.items()
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name in list(processes)[:: 1 if number % 2 else -1]:
            answer = _ask(processes[name])
            if number and answer == answer:  # the first one waits for all to be ready
                found[name].append(answer)
    for process in processes.values():
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()  # one with children of its own ends them when its input ends
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return {name: rates for name, rates in found.items() if rates}


def _ask(process: "subprocess.Popen[str]") -> float:
    """The rate of one turn; nan from a process that has ended."""
    assert process.stdin and process.stdout
    with suppress(BrokenPipeError):
        process.stdin.write("go\n")
        process.stdin.flush()
    return float(process.stdout.readline() or "nan")


def serve(
    run: Callable[[int], None] | None, count: int, warm_up: int = 0, processor_time: bool = False
) -> None:
    """A contestant's side: makes `count` updates for each line on its input, and says how many a second, or a second of
    the processor, which other work on the machine does not change as much."""
    clock = time.process_time if processor_time else time.perf_counter
    if run is not None:
        run(warm_up or count)
    for _ in sys.stdin:
        began = clock()
        if run is not None:
            run(count)
        print("nan" if run is None else count / (clock() - began), flush=True)
