"""Bytes per frame and CPU time of a replay buffer with and without `compress`, on frames of Atari games.

`python benchmarks/compressed_frames.py` plays each game with random actions, adds the same rollouts to a plain and a
compressed buffer, one after the other, and samples batches from both in turns. Times are CPU time of this process, on
one thread; what is printed for each is the median over rounds. Both buffers' batches are compared bit for bit.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

import torch

import whorl
from whorl.core import tree
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.data.views import Transitions

GAMES = ("Pong", "Breakout", "Seaquest", "MontezumaRevenge")
KINDS = {"plain": False, "compressed": True}
BATCH, ROUNDS, PER_ROUND = 32, 20, 5


class Fill(whorl.Callback):
    """Adds each rollout to both buffers, and counts the CPU time of each."""

    def __init__(self, size: int) -> None:
        self.size, self.seconds = size, dict.fromkeys(KINDS, 0.0)
        self.buffers: dict[str, Replay] = {}

    def on_rollout(self, trainer: Any, rollout: Batch) -> None:
        if not self.buffers:
            spec = trainer.agent.spec
            self.buffers = {name: replay(spec, self.size, compress) for name, compress in KINDS.items()}
        for name, buffer in self.buffers.items():
            began = time.process_time()
            buffer.add(rollout)
            self.seconds[name] += time.process_time() - began


def replay(spec: Any, size: int, compress: bool) -> Replay:
    generator = torch.Generator().manual_seed(0)
    view, sizes = Transitions(1), {"buffer_size": size, "batch_size": BATCH}
    return Replay(spec, "cpu", generator, view=view, gamma=0.99, compress=compress, **sizes)


def measure(game: str, frames: int) -> dict[str, Any]:
    fill = Fill(frames)
    settings = {
        "num_envs": 8,
        "num_steps": 32,
        "total_timesteps": frames,
        "workers": 0,
        "random_steps": frames,
    }
    quiet = {
        "learning_starts": 10**9,
        "buffer_size": 1024,
        "quiet": True,
        "eval": False,
        "tensorboard": False,
    }
    whorl.train(
        f"{game}NoFrameskip-v4", "dqn", {**settings, **quiet}, save_model=False, callbacks=[fill], runs="/tmp"
    )
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(ROUNDS):
        batches = {}
        for name, buffer in fill.buffers.items():
            began = time.process_time()
            batches[name] = [buffer.sample() for _ in range(PER_ROUND)]
            seconds[name].append((time.process_time() - began) / PER_ROUND)
        for one, other in zip(*batches.values()):
            assert all(torch.equal(*pair) for pair in zip(tree.leaves(one.obs), tree.leaves(other.obs)))
    rows = sum(buffer.ring.rows for buffer in fill.buffers.values()) // 2 * 8
    column = tree.leaves(fill.buffers["compressed"].ring.columns["obs"])[0]
    return {
        "game": game,
        "frames": rows,
        "bytes": {"plain": 84 * 84, "compressed": round(column.bytes / rows)},
        "add_us": {name: round(1e6 * spent / rows, 1) for name, spent in fill.seconds.items()},
        "batch_ms": {name: round(1e3 * median(spent), 2) for name, spent in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--frames", type=int, default=2048, help="frames that each game is played for")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for game in options.games:
        print(json.dumps(measure(game, options.frames)), flush=True)


if __name__ == "__main__":
    main()
