"""Return against seconds of training: `python benchmarks/wall_clock.py Quadrotor-v0 --seconds 60 key=value ...`.

Evaluations with the mean action are not part of the clock. On a GPU, building, compiling and capturing are reported
apart as warm-up; on a CPU they are part of the clock. Schedules run over the seconds given.
"""

import argparse
import json
import time
from typing import Any

import torch
import yaml

import whorl
from whorl.core.process import configure_process
from whorl.run.build import learner_threads
from whorl.run.trainer import Trainer

SHOWN = (
    "episode/return",
    "policy/kl",
    "policy/entropy",
    "policy/learning_rate",
    "time/collect",
    "time/update",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="seconds between evaluations")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument(
        "--stop", type=float, default=float("inf"), help="end once an evaluation reaches this"
    )
    parser.add_argument("settings", nargs="*", help="key=value over the preset")
    args = parser.parse_intermixed_args()
    settings = {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in args.settings)}
    print(json.dumps(measure(args.env, args.algorithm, settings, args)), flush=True)


def measure(env: str, algorithm: str, settings: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    trainer = whorl.load(env, algorithm, settings)
    run = trainer.settings.run
    configure_process(run.threads, run.tf32, learner_threads(trainer.settings))
    trainer.build()
    trainer.collector.reset(trainer.streams.seed("env", "0"))
    on_gpu = trainer.device.type == "cuda"
    clock, due, curve = 0.0, args.every, []
    if on_gpu:
        for _ in range(
            1 + trainer.experience.overlaps
        ):  # where collection and updates overlap, the first has no update
            iterate(trainer, 0.0)
        # With replay the first updates come later, and those of critics alone are a graph of their own.
        both = 2 * getattr(trainer.settings.algo, "policy_delay", 1)
        while trainer.agent.off_policy and trainer.agent.updates < both:
            iterate(trainer, 0.0)
        torch.cuda.synchronize()
    warm_up = time.perf_counter() - began
    clock = 0.0 if on_gpu else warm_up
    while clock < args.seconds:
        start = time.perf_counter()
        row = iterate(trainer, clock / args.seconds)
        if on_gpu:
            torch.cuda.synchronize()
        clock += time.perf_counter() - start
        if clock >= due or clock >= args.seconds:
            due += args.every
            found = trainer.evaluate(args.episodes)
            curve.append((round(clock, 1), trainer.steps, round(found.mean_return, 1)))
            numbers = " ".join(f"{key.split('/')[1]} {row[key]:.4g}" for key in SHOWN if key in row)
            print(
                f"{clock:6.1f} s {trainer.steps / 1e6:7.2f} M  {found.mean_return:7.1f}  {numbers}",
                flush=True,
            )
            if found.mean_return >= args.stop:
                break
    trainer.close()
    return {
        "env": env,
        "algorithm": algorithm,
        "settings": settings,
        "warm_up": round(warm_up, 1),
        "steps_per_second": round(trainer.steps / clock),
        "curve": curve,
    }


def iterate(trainer: Trainer, progress: float) -> dict[str, Any]:
    """One iteration, with schedules that follow the clock instead of the budget."""
    row = trainer.loop.iterate(progress)
    if trainer.loop.reset_due:
        trainer.reset_environments()
    return row


if __name__ == "__main__":
    main()
