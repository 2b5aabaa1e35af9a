"""Microseconds of a prioritized draw and of settling its priorities, beside a binary sum tree in vectorised numpy.

`python benchmarks/prioritized.py --batch 256 --repeats 200`: one thread, rows are not gathered, contestants alternate,
medians over the repeats. Bytes per row are those of the sampler; the priorities themselves are 4 of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from whorl.core import tree
from whorl.data.samplers import Priorities, Prioritized, Uniform

SIZES = (10**4, 10**5, 10**6, 10**7)
CPU = torch.device("cpu")


class BinaryTree:
    """The usual sum tree, every level at once for the whole batch."""

    def __init__(self, size: int) -> None:
        self.depth = (size - 1).bit_length()
        self.nodes = np.zeros(2 << self.depth)
        self.random = np.random.default_rng(0)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        point = (np.arange(count) + self.random.random(count)) * (self.nodes[1] / count)
        node = np.ones(count, dtype=np.int64)
        for _ in range(self.depth):
            node *= 2
            left = self.nodes[node]
            right = point >= left
            point -= left * right
            node += right
        mass = self.nodes[node]
        return node - (1 << self.depth), (mass.min() / mass) ** 0.4

    def settle(self, index: np.ndarray, priority: np.ndarray) -> None:
        node = index + (1 << self.depth)
        self.nodes[node] = (np.abs(priority) + 1e-6) ** 0.6
        for _ in range(self.depth):
            node = node >> 1
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]


def ours(size: int, batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    sampler, generator = Prioritized(size, CPU, Priorities()), torch.Generator().manual_seed(0)
    start, mask, error = torch.arange(size), torch.ones(1, batch), torch.rand(1, batch)
    sampler.admit(start, torch.ones(size, dtype=torch.bool))
    sampler.settle(start, torch.ones(1, size), torch.rand(1, size))
    drawn = [sampler.draw(batch, generator)[0]]

    def draw() -> None:
        drawn[0] = sampler.draw(batch, generator)[0]

    return draw, lambda: sampler.settle(drawn[0], mask, error)


def binary(size: int, batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    sums, error = BinaryTree(size), np.random.default_rng(1).random(batch)
    sums.settle(np.arange(size), np.random.default_rng(2).random(size))
    drawn = [sums.draw(batch)[0]]

    def draw() -> None:
        drawn[0] = sums.draw(batch)[0]

    return draw, lambda: sums.settle(drawn[0], error)


def measure(draw: Callable[[], None], settle: Callable[[], None], calls: int) -> tuple[float, float]:
    """Microseconds of each, as they follow one another."""
    spent = [0.0, 0.0]
    for _ in range(calls):
        t0 = time.perf_counter()
        draw()
        t1 = time.perf_counter()
        settle()
        spent[0] += t1 - t0
        spent[1] += time.perf_counter() - t1
    return spent[0] / calls * 1e6, spent[1] / calls * 1e6


def bytes_per_row(size: int) -> tuple[float, float]:
    states = Prioritized(size, CPU, Priorities()).state_dict(), Uniform(size, CPU).state_dict()
    prioritized, uniform = (
        sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(state)) / size for state in states
    )
    return prioritized, uniform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10, help="draws and settlements per repeat")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"{'rows':>10}  {'':8} {'draw':>7} {'settle':>7} {'both':>7}  bytes per row (uniform)")
    both: dict[tuple[str, int], float] = {}
    for size in SIZES:
        contestants = {"whorl": ours(size, args.batch), "binary": binary(size, args.batch)}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(args.repeats):
            for name, steps in contestants.items():
                found[name].append(measure(*steps, args.calls))
        for name, times in found.items():
            draw, settle = (statistics.median(column) for column in zip(*times))
            both[name, size] = statistics.median(sum(pair) for pair in times)
            extra = "  {:.2f} ({:.2f})".format(*bytes_per_row(size)) if name == "whorl" else ""
            print(
                f"{size:>10,}  {name:8} {draw:7.1f} {settle:7.1f} {both[name, size]:7.1f}{extra}", flush=True
            )
    for name in ("whorl", "binary"):
        print(f"{name}: 10^7 rows cost {both[name, SIZES[-1]] / both[name, SIZES[0]]:.2f} x what 10^4 do")


if __name__ == "__main__":
    main()
