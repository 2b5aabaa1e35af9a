"""Time to a return of PPO, FastTD3 and FlashSAC on one environment, in turns: `python benchmarks/large_batch.py ENV`.

`python benchmarks/large_batch.py Quadrotor-v0 --to 682 --seconds 120 --rounds 3` trains each contestant once per round,
with the round's number as seed, each in a process of its own (`wall_clock.py`), every second round in reverse order. It
prints the median seconds until an evaluation reached the return, the best return, steps per second and the warm-up,
which is not part of the seconds on a GPU. `key=value` settings apply to all contestants, `ppo.key=value` to one.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTESTANTS = ("ppo", "fast_td3", "flash_sac")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--to", type=float, required=True, help="the return whose time is wanted")
    parser.add_argument("--algorithms", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--seconds", type=float, default=120, help="seconds of training of each")
    parser.add_argument("--every", type=float, default=2, help="seconds between evaluations")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("settings", nargs="*", help="key=value over the presets, or algorithm.key=value")
    args = parser.parse_intermixed_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in args.algorithms}
    for number in range(args.rounds):
        for name in args.algorithms[:: -1 if number % 2 else 1]:
            found[name].append(trained(name, number + 1, args))
            print(f"round {number + 1}: {line(name, [found[name][-1]], args.to)}", flush=True)
    print(
        f"\n| {args.env} | s to {args.to:g} | best return | steps/s | warm-up s |\n| --- | --- | --- | --- | --- |"
    )
    for name, results in found.items():
        print(f"| {line(name, results, args.to)} |")


def trained(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """What `wall_clock.py` measures in a process of its own."""
    heads = {f"{other}." for other in args.algorithms}
    own = [item.removeprefix(f"{name}.") for item in args.settings if _is_for(item, name, heads)]
    script = Path(__file__).with_name("wall_clock.py")
    options = {"--seconds": args.seconds, "--every": args.every, "--episodes": args.episodes}
    flags = [str(word) for pair in options.items() for word in pair]
    quiet = ["quiet=true", "tensorboard=false", "save_model=false", f"seed={seed}"]
    command = [sys.executable, str(script), args.env, "--algorithm", name, *flags, *quiet, *own]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


def _is_for(item: str, name: str, heads: set[str]) -> bool:
    return item.startswith(f"{name}.") or not any(item.startswith(head) for head in heads)


def line(name: str, results: list[dict[str, Any]], wanted: float) -> str:
    """Medians over rounds; a round that did not reach the return counts as endless."""
    times = [next((s for s, _, r in one["curve"] if r >= wanted), float("inf")) for one in results]
    best = statistics.median(max((r for _, _, r in one["curve"]), default=float("nan")) for one in results)
    rate = statistics.median(one["steps_per_second"] for one in results)
    warm = statistics.median(one["warm_up"] for one in results)
    return f"{name} | {statistics.median(times):.1f} | {best:.1f} | {rate:,.0f} | {warm:.1f}"


if __name__ == "__main__":
    main()
