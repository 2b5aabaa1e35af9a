"""GPU physics: `python benchmarks/gpu_physics.py --env Humanoid-v5 --num-envs 2048,4096,8192 --until 5618`.

Prints what MuJoCo Warp compiled or loaded, steps per second of physics alone, of rollouts (physics and policy in one
CUDA graph), of training, and with `--until` the seconds that PPO took to that return, evaluations and warm-up apart.
Settings as key=value come over the preset.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import yaml
from wall_clock import iterate, measure

import whorl
from whorl.core.process import configure_process
from whorl.envs.make import find
from whorl.run.build import learner_threads

STEPS = 50
"""of all environments, per measurement"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Humanoid-v5")
    parser.add_argument("--num-envs", default="2048,4096,8192", help="for physics alone; empty: left out")
    parser.add_argument(
        "--iterations", type=int, default=0, help="Newton iterations per substep; 0: the default"
    )
    parser.add_argument(
        "--rollouts", type=int, default=10, help="iterations of training that are timed; 0: none"
    )
    parser.add_argument(
        "--until", type=float, default=0.0, help="train until an evaluation returns this; 0: not"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of training at most")
    parser.add_argument("--every", type=float, default=5, help="seconds between evaluations")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("settings", nargs="*", help="key=value over the preset")
    args = parser.parse_intermixed_args()
    settings = {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in args.settings)}
    warnings.filterwarnings("ignore", message=".*kernels were compiled.*")
    id = f"warp:{args.env}"
    options = {"iterations": args.iterations} if args.iterations else {}
    for num_envs in filter(None, args.num_envs.split(",")):
        show(physics(id, int(num_envs), options))
    if options:
        settings["env_options"] = {**settings.get("env_options", {}), **options}
    if args.rollouts:
        show(training(id, settings, args.rollouts))
    if args.until:
        args.stop = args.until
        show(measure(id, "ppo", settings, args))


def physics(id: str, num_envs: int, options: dict[str, Any]) -> dict[str, Any]:
    """Steps per second without a policy: of the simulation alone, and of whole steps with rewards and resets."""
    env: Any = find(id, options).vector(num_envs, "cuda")
    env.reset(0)
    action = torch.rand(num_envs, *env.spec.action.shape, device="cuda") * 2 - 1
    found = {
        "env": id,
        "num_envs": num_envs,
        "compile_seconds": round(env.physics.compile_seconds, 1),
        "recorded": env.capturable,
        "simulation_steps_per_second": round(num_envs * STEPS / seconds(env.physics.step)),
    }
    env.reset(0)
    found["steps_per_second"] = round(num_envs * STEPS / seconds(lambda: env.step(action)))
    found["overflow"] = env.physics.overflow()
    found["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    env.close()
    return found


def seconds(step: Callable[[], Any]) -> float:
    """What `STEPS` calls take, after three others."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def training(id: str, settings: dict[str, Any], iterations: int) -> dict[str, Any]:
    """Steps per second of PPO, and of its rollouts alone; the first iteration, which records graphs, is apart."""
    trainer = whorl.load(id, "ppo", settings)
    run = trainer.settings.run
    configure_process(run.threads, run.tf32, learner_threads(trainer.settings))
    began = time.perf_counter()
    trainer.build()
    trainer.collector.reset(trainer.streams.seed("env", "0"))
    iterate(trainer, 0.0)
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(iterations):
        iterate(trainer, 0.0)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    rows = run.num_envs * run.num_steps
    began = time.perf_counter()
    for _ in range(iterations):
        trainer.collector.start()
        trainer.collector.finish()
    torch.cuda.synchronize()
    alone = time.perf_counter() - began
    trainer.close()
    return {
        "env": id,
        "num_envs": run.num_envs,
        "num_steps": run.num_steps,
        "warm_up": round(warm_up, 1),
        "rollout_steps_per_second": round(iterations * rows / alone),
        "training_steps_per_second": round(iterations * rows / took),
        "milliseconds_per_iteration": round(1000 * took / iterations, 1),
    }


def show(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
