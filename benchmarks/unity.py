"""Decisions per second of the Unity adapter with the stand-in player of the tests, and the share that is ours.

`python benchmarks/unity.py --task ball --agents 16 --players 1 --seconds 5 --rounds 3`: actions of 0. The player is a
process of its own; the processor time of this one gives the decisions per second that one core of ours can serve.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from whorl.core.spec import empty_action
from whorl.envs.make import find

PLAYER = Path(__file__).resolve().parents[1] / "tests" / "unity" / "player.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="ball", choices=("ball", "gather"))
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--players", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    words = f"--task {args.task} --agents {args.agents}"
    source = find(f"unity:{PLAYER}", {"args": words, "players": args.players})
    num_envs = args.agents * args.players
    env = source.vector(num_envs)
    action = empty_action(env.spec.action, (num_envs,))
    env.reset(0)
    walls, cores, rows = [], [], []
    for _ in range(args.rounds):
        decisions = steps = 0
        began, spent = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < args.seconds:
            step = env.step(action)
            steps += num_envs
            decisions += int((~(step.waits | step.reset)).sum())  # type: ignore[operator]
        walls.append(decisions / (time.perf_counter() - began))
        cores.append(decisions / (time.process_time() - spent))
        rows.append(decisions / steps)
    env.close()
    print(
        f"{args.task}, {args.players} x {args.agents} agents: {statistics.median(walls):,.0f} decisions/s with the "
        f"player, {statistics.median(cores):,.0f} per core of ours; {statistics.median(rows):.0%} of rows are decisions"
    )


if __name__ == "__main__":
    main()
