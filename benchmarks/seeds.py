"""Updates per second of several seeds in one process on one GPU, beside one seed alone.

`python benchmarks/seeds.py ppo Quadrotor-v0 --seeds 8 --seconds 20` trains one seed, then all of them at the same time
(`whorl train --seeds 1..8 --parallel gpu`), and prints updates and steps per second of both and their ratio, from the
iteration after each run's first twenty, so that building, compiling and recording graphs count in neither. With
`--check`, the seeds' last weights are compared bit for bit with those of runs alone of as many iterations. On a CPU
(`--device cpu`) it shows only that it works.
"""

import argparse
import tempfile
import threading
import time
from typing import Any

import torch
import yaml

import whorl
from whorl.core.cuda_graphs import GATE
from whorl.run.callbacks import Callback
from whorl.run.reporting import Result
from whorl.run.resume import load_run
from whorl.run.together import train_together
from whorl.run.trainer import Trainer

WARM = 20
"""iterations before the clock starts"""


class Clock(Callback):
    """Counts updates and steps of all runs from when each of them is warm, for some seconds."""

    def __init__(self, runs: int, seconds: float) -> None:
        self.seconds, self.warm = seconds, threading.Barrier(runs, action=self._start)
        self.lock, self.began, self.ended = threading.Lock(), 0.0, 0.0
        self.first: dict[int, tuple[int, int]] = {}
        self.last: dict[int, tuple[int, int]] = {}

    def _start(self) -> None:
        self.began = time.perf_counter()

    def on_update(self, trainer: Any, metrics: dict[str, Any]) -> None:
        seed, counts = trainer.settings.run.seed, (trainer.agent.updates, trainer.steps)
        if trainer.iteration == WARM:
            if trainer.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            with GATE.paused():  # others may have graphs to record
                self.warm.wait()
            self.first[seed] = counts
        elif trainer.iteration > WARM and time.perf_counter() - self.began > self.seconds:
            if trainer.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            with self.lock:
                self.last[seed], self.ended = counts, max(self.ended, time.perf_counter())
            trainer.stop("the time is over")

    def rates(self) -> tuple[float, float]:
        """Updates and steps per second of all runs together."""
        spent = self.ended - self.began
        updates, steps = (sum(self.last[s][i] - self.first[s][i] for s in self.last) for i in (0, 1))
        return updates / spent, steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--check", type=int, default=0, help="iterations after which weights are compared; 0: not"
    )
    parser.add_argument("settings", nargs="*", help="key=value over the preset")
    args = parser.parse_intermixed_args()
    settings = {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in args.settings)}
    for number in range(args.rounds):
        alone = measured(args, settings, 1)
        every = measured(args, settings, args.seeds)
        print(
            f"round {number + 1}: 1 seed {alone[0]:,.1f} updates/s, {alone[1]:,.0f} steps/s; {args.seeds} seeds "
            f"{every[0]:,.1f} updates/s, {every[1]:,.0f} steps/s: {every[0] / alone[0]:.2f} times",
            flush=True,
        )
    if args.check:
        compare(args, settings)


def measured(args: argparse.Namespace, settings: dict[str, Any], seeds: int) -> tuple[float, float]:
    clock = Clock(seeds, args.seconds)
    with tempfile.TemporaryDirectory() as folder:
        runs = {seed: trainer(args, settings, seed, folder, [clock]) for seed in range(1, seeds + 1)}
        _whole(train_together(runs))
    return clock.rates()


def compare(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Print whether each seed ends with the weights that it has alone."""
    numbers = range(1, args.seeds + 1)
    settings = {**settings, "max_iterations": args.check, "total_timesteps": 0, "save_model": True}
    with tempfile.TemporaryDirectory() as folder:
        runs = {seed: trainer(args, settings, seed, f"{folder}/together") for seed in numbers}
        together = _whole(train_together(runs))
        for seed in numbers:
            alone = trainer(args, settings, seed, f"{folder}/alone").train()
            one, other = (weights(result) for result in (together[seed], alone))
            same = all(torch.equal(value, other[name]) for name, value in one.items())
            print(
                f"seed {seed}: {'equal' if same else 'DIFFERENT'} after {args.check} iterations", flush=True
            )


def weights(result: Result) -> dict[str, torch.Tensor]:
    """The tensors of a run's last checkpoint."""
    run: Any = load_run(result.run_dir, {})
    try:
        return {name: value.clone() for name, value in run.agent.state_dict().items()}
    finally:
        run.close()


def trainer(
    args: argparse.Namespace, settings: dict[str, Any], seed: int, folder: str, callbacks: Any = ()
) -> Trainer:
    quiet = {"quiet": True, "tensorboard": False, "save_model": False, "eval": False, "device": args.device}
    # Its preset may have a budget that ends before the clock does.
    own = {**quiet, "total_timesteps": 0, "runs": folder, "name": f"seed{seed}", "seed": seed, **settings}
    return whorl.load(args.env, args.algorithm, own, callbacks=callbacks)


def _whole(found: dict[int, Any]) -> dict[int, Result]:
    for outcome in found.values():
        if isinstance(outcome, BaseException):
            raise outcome
    return found


if __name__ == "__main__":
    main()
