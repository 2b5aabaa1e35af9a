"""Updates per second with and without hindsight, alternating: `python benchmarks/her.py --device cuda`.

Two trainers of each case, one with `her: none`, fill their replay buffers with random steps and take turns, `--updates`
updates each; the median of the rounds counts. An update is: draw a batch, learn, settle. On a CPU processor time
counts, so that other work on the machine matters little. The aim is a cost of at most 15 %.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch

import whorl
from whorl.run.trainer import Trainer

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sac": ("PointPush-v0", "sac", {}),
    "sac, 3 steps, prioritized": ("PointPush-v0", "sac", {"n_step": 3, "prioritized": True}),
    "dqn": ("BitFlip-v0", "dqn", {}),
    "sac, compute_reward in numpy": ("FetchReach-v4", "sac", {"workers": 0}),
}


def trainer(case: str, her: str, device: str, folder: str) -> Trainer:
    """A trainer whose replay buffer has 10,000 random steps, and which has made no update."""
    env, algorithm, own = CASES[case]
    given = {
        "her": her,
        "device": device,
        "env_device": "cpu",
        "num_envs": 16,
        "num_steps": 25,
        "total_timesteps": 10_000,
        "random_steps": 10_000,
        "learning_starts": 10_000,
        "runs": folder,
        **dict.fromkeys(("eval", "tensorboard", "save_model"), False),
    }
    made = whorl.load(env, algorithm, {**given, **own, "quiet": True})
    made.train()
    return made


def rate(made: Trainer, updates: int) -> float:
    """Updates per second."""
    experience, learner = made.parts.experience, made.parts.learner
    experience.drawn -= updates  # type: ignore[attr-defined]
    on_gpu = made.parts.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    start = clock()
    for phase, batch in experience.due():
        experience.settle(batch, learner.update(phase, batch))
    if on_gpu:
        torch.cuda.synchronize()
    return updates / (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--updates", type=int, default=500, help="updates of each turn")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for case in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            made = {her: trainer(case, her, args.device, folder) for her in ("none", "future")}
            for one in made.values():
                rate(one, 50)  # captures graphs
            rates: dict[str, list[float]] = {her: [] for her in made}
            for _ in range(args.rounds):
                for her, one in made.items():
                    rates[her].append(rate(one, args.updates))
            plain, hindsight = (statistics.median(rates[her]) for her in ("none", "future"))
            cost = 100 * (1 - hindsight / plain)
            print(
                f"{case:30} {plain:8.0f} updates/s without, {hindsight:8.0f} with her: costs {cost:.1f} %",
                flush=True,
            )
            for one in made.values():
                one.close()


if __name__ == "__main__":
    main()
