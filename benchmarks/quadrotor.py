"""Return on Quadrotor-v0 against seconds of training: `python benchmarks/quadrotor.py --seconds 60 key=value ...`.

Evaluations (100 episodes, mean action) are not part of the clock; building, compiling and capturing are reported apart
as warm-up on a GPU, and are part of it on a CPU.
"""

import argparse
import json
import time

import torch
import yaml

import whorl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--stop", type=float, default=1e9)
    parser.add_argument("--label", default="")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.settings)
    config = {key: yaml.safe_load(value) for key, value in settings.items()}
    gpu = torch.cuda.is_available() and config.get("learner_device") != "cpu"
    if gpu:
        config = {"learner_device": "cuda", "worker_device": "cuda", **config}
    began = time.perf_counter()
    trainer = whorl.load("Quadrotor-v0", "ppo", config).build()
    trainer.collector.reset(trainer.streams.seed("env", "0"))
    budget = args.seconds
    if gpu:
        trainer._epoch()
        torch.cuda.synchronize()
        began, warm_up = time.perf_counter(), time.perf_counter() - began
    else:
        warm_up = 0.0
    clock = 0.0 if gpu else time.perf_counter() - began
    due = args.every
    rows = []
    while clock < budget:
        start = time.perf_counter()
        trainer.agent.progress.fill_(min(clock / budget, 1.0))
        row = epoch(trainer, clock / budget)
        if gpu:
            torch.cuda.synchronize()
        clock += time.perf_counter() - start
        if clock >= due or clock >= budget:
            due += args.every
            found = trainer.evaluate(args.episodes)
            rows.append((round(clock, 2), trainer.steps, round(found.mean_return, 1)))
            extra = {k: round(row[k], 4) for k in ("policy/kl", "policy/entropy", "policy/learning_rate", "value/explained_variance", "gradient/actor", "time/collect", "time/update") if k in row}
            print(f"{clock:7.1f} s {trainer.steps / 1e6:8.2f} M steps  return {found.mean_return:6.1f}  {extra}", flush=True)
            if found.mean_return >= args.stop:
                break
    rate = trainer.steps / clock
    print(json.dumps({"label": args.label, "warm_up": round(warm_up, 1), "steps_per_second": round(rate), "curve": rows, "settings": settings}), flush=True)
    trainer.close()


def epoch(trainer: object, progress: float) -> dict:
    """One epoch with the schedule's progress measured in time."""
    trainer._progress = lambda: progress  # type: ignore[attr-defined]
    return trainer._epoch()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
