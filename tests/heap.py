"""Trainings one after another in one process, to find memory that is written beyond its end or freed twice.

    LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 python tests/heap.py --threads 1 --no-onednn

glibc's checks abort the process at the first damaged block; the last line printed says how far it came.
"""

import argparse
import gc
import sys
import tempfile
import time

import torch

import whorl

SHORT = {"quiet": True, "tensorboard": False, "n_eval_episodes": 2, "device": "cpu"}
SEQUENCE = [
    ("c51", "CartPole-v1", {"total_timesteps": 4_000}),
    ("a2c", "CartPole-v1", {"total_timesteps": 20_000}),
    ("apex_dqn", "CartPole-v1", {"total_timesteps": 4_000, "actors": 2}),
    ("drqn", "TMaze-v0", {"total_timesteps": 4_000}),
    ("ppo", "CartPole-v1", {"total_timesteps": 40_000}),
    ("rsac", "PendulumV-v0", {"total_timesteps": 60_000}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--threads", type=int, default=0, help="of the learner; 0 is the default of the settings"
    )
    parser.add_argument("--no-onednn", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="the last training ends after so many")
    options = parser.parse_args()
    torch.backends.mkldnn.enabled = not options.no_onednn
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as runs:
        for algorithm, env, settings in SEQUENCE:
            threads = {"threads": options.threads} if options.threads else {}
            given = {**SHORT, **settings, **threads, "seed": options.seed, "runs": runs}
            trainer = whorl.load(env, algorithm, given)
            for _ in trainer:
                if time.monotonic() - began > options.seconds:
                    trainer.stop("time is over")
            trainer.close()
            sys.stdout.write(f"{algorithm}: {trainer.steps} steps, {trainer.agent.updates} updates" + "\n")
            sys.stdout.flush()
            del trainer
            gc.collect()
    sys.stdout.write(f"clean after {time.monotonic() - began:.0f} s" + "\n")


if __name__ == "__main__":
    main()
