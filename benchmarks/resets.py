"""What waiting for the slowest worker costs, because resets take longer than steps: `python benchmarks/resets.py ENV`.

One environment is stepped with random actions, and the processor time of every step and every reset is noted (a reset
takes the place of a step, as in training). Rollouts of a pool of workers are then put together from random stretches of
these times, and the share of the workers' time that is spent waiting follows: where all wait for the slowest worker
after every row (`acting: central`, one group), after every row in two groups that are stepped in turns, and after every
rollout (workers that act for themselves, actors). Steps count as their median, so that resets alone are seen; with
`--as-measured` as they were, which on a shared machine is mostly the noise of its other work.
"""

import argparse
import json
import time

import numpy as np

from whorl.envs.make import make


def costs(id: str, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Processor seconds of consecutive rows of one environment, and which of them are resets."""
    env = make(id).env
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(256)]
    found, resets, ended, end = [], [], False, time.process_time() + seconds
    while time.process_time() < end:
        began = time.process_time()
        if ended:
            env.reset()
        else:
            _, _, terminated, truncated, _ = env.step(actions[len(found) % 256])
        found.append(time.process_time() - began)
        resets.append(ended)
        ended = not ended and (terminated or truncated)
    return np.array(found), np.array(resets)


def waiting(each: np.ndarray, workers: int, envs: int, rows: int, seed: int = 0) -> dict[str, float]:
    """Shares of the workers' time, for `envs` environments in each worker and rollouts of `rows` rows."""
    rng = np.random.default_rng(seed)
    shares: dict[str, list[float]] = {"every row": [], "every row, two groups": [], "every rollout": []}
    for _ in range(200):
        start = rng.integers(0, len(each), (workers, envs, 1))
        cost = each[(start + np.arange(rows)) % len(each)]  # [workers, envs, rows]
        whole = cost.sum(1)  # [workers, rows]
        halves = [half.sum(1) for half in np.array_split(cost, 2, 1)] if envs > 1 else [whole]
        work = whole.sum() / workers
        shares["every row"].append(1 - work / whole.max(0).sum())
        shares["every row, two groups"].append(1 - work / in_turns(np.stack(halves, 1)))
        shares["every rollout"].append(1 - work / whole.sum(1).max())
    return {name: round(float(np.mean(found)), 3) for name, found in shares.items()}


def in_turns(cost: np.ndarray) -> float:
    """Seconds of a rollout with these costs [workers, groups, rows]: a worker steps its part of each group in turns,
    and a group's next row begins when all workers have finished its last one."""
    workers, groups, rows = cost.shape
    free, ready = np.zeros(workers), np.zeros(groups)
    for row in range(rows):
        for group in range(groups):
            free = np.maximum(free, ready[group]) + cost[:, group, row]
            ready[group] = free.max()
    return float(ready.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", default=["CartPole-v1", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"])
    parser.add_argument("--seconds", type=float, default=4.0, help="processor time for each")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--num-envs", type=int, default=8, help="environments of a worker")
    parser.add_argument("--num-steps", type=int, default=128, help="rows of a rollout")
    parser.add_argument("--as-measured", action="store_true", help="steps as they were, not as their median")
    args = parser.parse_args()
    for id in args.envs:
        each, resets = costs(id, args.seconds)
        counted = each if args.as_measured else np.where(resets, each, np.median(each[~resets]))
        print(
            json.dumps(
                {
                    "env": id,
                    "step, us": round(1e6 * float(np.median(each[~resets])), 1),
                    "reset, us": round(1e6 * float(np.median(each[resets])), 1) if resets.any() else None,
                    "rows that are resets": round(float(resets.mean()), 4),
                    "time in resets": round(float(each[resets].sum() / each.sum()), 3),
                    **waiting(counted, args.workers, args.num_envs, args.num_steps),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
