"""Seconds that a checkpoint of replay takes after 50,000 new Atari-sized rows, and what training loses in between.

`python benchmarks/replay_checkpoint.py --num-envs 8 --rate 5000 --folder .` adds rows of 84x84 bytes (353 MB between
two checkpoints) at that many rows a second (0: as fast as memory takes them) and saves as a run does: segments, state,
the oldest checkpoint deleted with the segments that it alone needed. The rate of the disk is measured beside it. The
last checkpoint is loaded into a second ring and compared bit for bit.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

from whorl.core import tree
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.data.segments import Segments
from whorl.data.views import Transitions
from whorl.state import checkpoint

FRAME = (84, 84)
ROWS = 50_000
STEPS = 16
"""rows of each environment in a rollout"""


def replay(num_envs: int, buffer_size: int) -> Replay:
    spec = Spec(Array(FRAME, "uint8"), Discrete(18), num_envs)
    return Replay(
        spec,
        "cpu",
        torch.Generator(),
        view=Transitions(3),
        buffer_size=buffer_size,
        batch_size=32,
        gamma=0.99,
        updates_per_step=0.25,
    )


def rollout(num_envs: int) -> Batch:
    shape = (STEPS, num_envs)
    return Batch(
        obs=torch.randint(256, (STEPS + 1, num_envs, *FRAME), dtype=torch.uint8),
        reset=torch.zeros(STEPS + 1, num_envs, dtype=torch.bool),
        action=torch.randint(18, shape),
        reward=torch.randn(shape),
        continues=torch.ones(shape, dtype=torch.bool),
        keep=torch.ones(shape),
        mask=torch.ones(shape),
    )


def disk(folder: Path) -> float:
    """MB/s of writing 353 MB in one file and syncing it."""
    block = os.urandom(1 << 20)
    path = folder / "disk"
    began = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(353):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return 353 * (1 << 20) / 1e6 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--buffer-size", type=int, default=200_000)
    parser.add_argument("--checkpoints", type=int, default=8)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--rate", type=float, default=5000, help="rows a second; 0: as many as possible")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as run:
        measure(Path(run), args)


def measure(run: Path, args: argparse.Namespace) -> None:
    store = replay(args.num_envs, args.buffer_size)
    store.store = kept = Segments(run / checkpoint.ROWS, store.ring)
    given = [rollout(args.num_envs) for _ in range(16)]
    rows = STEPS * args.num_envs
    print(
        f"{store.bytes / 1e6:,.0f} MB of replay; {ROWS} rows between checkpoints; {args.num_envs} environments"
    )
    print(
        f"{'checkpoint':>10}{'save s':>9}{'stalled s':>11}{'longest s':>11}{'add s':>8}{'files':>7}{'disk MB/s':>11}"
    )
    for k in range(1, args.checkpoints + 1):
        rate = disk(run)
        stalled, adding = [0.0], 0.0
        began = time.perf_counter()
        for n in range(-(-ROWS // rows)):
            if args.rate:
                time.sleep(max(0.0, began + n * rows / args.rate - time.perf_counter()))
            before = time.perf_counter()
            kept.advance(STEPS)
            stalled.append(time.perf_counter() - before)
            store.add(given[n % len(given)])
            adding += time.perf_counter() - before
        before = time.perf_counter()
        state = {"experience": store.state_dict()}
        checkpoint.save(run, k, state, {}, {}, {"segments": kept.names()}, None)
        if checkpoint.retain(run, args.keep):
            kept.sweep(checkpoint.segments(run))
        seconds = time.perf_counter() - before
        files = len(list((run / checkpoint.ROWS).iterdir()))
        print(
            f"{k:>10}{seconds:>9.3f}{sum(stalled):>11.4f}{max(stalled):>11.4f}{adding:>8.2f}{files:>7}{rate:>11,.0f}",
            flush=True,
        )
    kept.close()
    other = replay(args.num_envs, args.buffer_size)
    other.store = Segments(run / checkpoint.ROWS, other.ring)
    before = time.perf_counter()
    other.load_state_dict(checkpoint.use_newest(run, print, lambda loaded: loaded).state["experience"])
    print(f"loaded in {time.perf_counter() - before:.2f} s (from the page cache, where there is room)")
    pairs = zip(tree.leaves(store.ring.columns), tree.leaves(other.ring.columns))
    assert all(torch.equal(one, two) for one, two in pairs), "what was loaded differs"


if __name__ == "__main__":
    main()
