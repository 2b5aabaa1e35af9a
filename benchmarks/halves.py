"""What acting for two halves of an actor's environments costs, beside acting for all at once, in processor time.

    python benchmarks/halves.py

One core can't step one half while it acts for the other, so halves could pay only where acting happens elsewhere.
"""

import argparse
import statistics
import sys
import time

import torch

import whorl
from whorl.collect.collector import LocalCollector
from whorl.core import tree
from whorl.envs.make import find
from whorl.state.policy import build_agent

CASES = (
    ("dqn", "CartPole-v1"),
    ("ppo", "HalfCheetah-v5"),
    ("impala", "ALE/Pong-v5"),
    ("r2d2", "CartPole-v1"),
)


def collectors(algorithm: str, env: str, num_envs: int, rows: int, parts: int) -> list[LocalCollector]:
    """Collectors that share the environments evenly."""
    given = {"num_envs": num_envs, "num_steps": rows, "workers": 0, "quiet": True}
    settings, source, share = whorl.load(env, algorithm, given).settings, find(env), num_envs // parts
    found = []
    for part in range(parts):
        agent = build_agent(settings, source.spec(share), 0)
        generator = torch.Generator().manual_seed(part)
        found.append(LocalCollector(source.vector(share), agent, rows, generator))
        found[-1].reset(part)
    return found


def collect(parts: list[LocalCollector]) -> float:
    began = time.process_time()
    for collector in parts:
        collector.collect()
    return time.process_time() - began


def stepping(collector: LocalCollector) -> float:
    """The environments alone, with the actions of the last rollout."""
    actions, began = collector.storage.tensors["action"], time.process_time()
    for row in range(collector.steps):
        collector.env.step(tree.index(actions, row))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for algorithm, env in CASES:
        whole, halves = (collectors(algorithm, env, args.num_envs, args.rows, parts) for parts in (1, 2))
        collect(whole), collect(halves)
        rounds = [(collect(whole), collect(halves), stepping(whole[0])) for _ in range(args.rounds)]
        unit = 1e6 / (args.num_envs * args.rows)
        one, two, alone = (statistics.median(values) * unit for values in zip(*rounds))
        sys.stdout.write(
            f"{algorithm} on {env}: {one:.0f} us a step, in halves {two:.0f} ({two / one:.2f}x), stepping {alone:.0f}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
