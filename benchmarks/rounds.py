"""Contestants that take turns, each in a process of its own; used by the benchmarks that show ratios to peers."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable


def medians(names: Iterable[str], rounds: int) -> dict[str, float]:
    """The median rate of each: this script is run again with `--only NAME`, and prints a number last."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, rates in found.items():
            command = [sys.executable, *sys.argv, "--only", name]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rates.append(json.loads(output.strip().splitlines()[-1]))
    return {name: statistics.median(rates) for name, rates in found.items()}


def show(rates: dict[str, float], peers: Iterable[str], what: str) -> None:
    """A line for each contestant, with its ratio to the fastest of `peers`."""
    best = max(rates[name] for name in peers)
    for name, rate in rates.items():
        print(f"  {name:20s} {rate:10,.0f} env-steps/s   {rate / best:5.2f}x {what}")
