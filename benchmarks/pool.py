"""Steps per second of the worker pool with pre-drawn actions, beside raw processes and other libraries' vector envs.

`python benchmarks/pool.py HalfCheetah-v5 --num-envs 8 --workers 2 --seconds 4 --rounds 3`: contestants alternate, the
median of the rounds is printed as a rate and as a ratio. Every contestant steps the same number of environments with
next-step autoreset and float actions drawn beforehand.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
import torch

from whorl.distributed.pool import WorkerPool
from whorl.envs.adapter import factory_from_id
from whorl.envs.stepping import Buffers, EnvStepper

RAW = """
import sys, time, gymnasium, numpy as np
id, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
env = gymnasium.make(id, disable_env_checker=True)
env.action_space.seed(seed)
actions = [env.action_space.sample() for _ in range(512)]
env.reset(seed=seed)
print("ready", flush=True); sys.stdin.readline()
count, end = 0, time.perf_counter() + seconds
while time.perf_counter() < end:
    for action in actions[:64]:
        _, _, a, b, _ = env.step(action)
        if a or b: env.reset()
    count += 64
print(count / seconds)
"""


def raw(id: str, workers: int, seconds: float) -> float:
    """Independent processes that step one environment each and talk to nobody: the roof."""
    command = [sys.executable, "-c", RAW, id, str(seconds)]
    pipe = subprocess.PIPE
    found = [
        subprocess.Popen([*command, str(n)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        for n in range(workers)
    ]
    for process in found:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in found:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in found)


def drawn(id: str, num_envs: int) -> torch.Tensor:
    space = gymnasium.make(id).action_space
    generator = torch.Generator().manual_seed(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return torch.randint(int(space.n), (256, num_envs), generator=generator)
    return torch.rand(256, num_envs, int(np.prod(space.shape)), generator=generator) * 2 - 1


def ours(id: str, num_envs: int, workers: int, seconds: float, grouped: bool) -> float:
    pool = WorkerPool(factory_from_id(id), num_envs, id, workers)
    actions = drawn(id, num_envs)
    pool.reset(0)
    parts = [[row[pool.env_slice(g)] for g in range(pool.groups)] for row in actions]

    def rounds(count: int) -> None:
        if not grouped or pool.groups == 1:
            for t in range(count):
                pool.step(actions[t % 256])
            return
        for g in range(pool.groups):
            pool.send(g, parts[0][g])
        for t in range(1, count):
            for g in range(pool.groups):
                pool.receive(g)
                pool.send(g, parts[t % 256][g])
        for g in range(pool.groups):
            pool.receive(g)

    try:
        return timed(rounds, num_envs, seconds)
    finally:
        pool.close()


BLOCK = 64


def rollouts(id: str, num_envs: int, workers: int, seconds: float) -> float:
    """How training uses the pool: workers step a block of rows by themselves and write it to shared memory."""
    actions = drawn(id, num_envs)[:BLOCK].numpy()
    size = factory_from_id(id)().observation_space.shape
    arrays = {
        "action": (actions.shape, str(actions.dtype)),
        "obs": ((BLOCK, num_envs, *size), "float32"),
        "reward": ((BLOCK, num_envs), "float32"),
    }
    pool = WorkerPool(factory_from_id(id), num_envs, id, workers, arrays=arrays)
    pool.arrays["action"][:] = actions
    pool.reset(0)
    pool.attach(Player, [()] * workers)

    def rounds(count: int) -> None:
        for _ in range(max(count // BLOCK, 1)):
            pool.start("play", [()] * workers)
            pool.collect("play")

    try:
        return timed(rounds, num_envs, seconds, BLOCK)
    finally:
        pool.close()


class Player:
    """Lives in a worker: steps its environments through the block."""

    def __init__(self, stepper: EnvStepper, arrays: dict[str, np.ndarray]) -> None:
        self.stepper, self.arrays = stepper, arrays
        self.buffers = Buffers.empty(stepper.layout, len(stepper))
        self.actions = [np.ascontiguousarray(row[stepper.numbers]) for row in arrays["action"]]

    def play(self) -> None:
        mine, out = self.stepper.numbers, self.buffers
        for t, action in enumerate(self.actions):
            self.stepper.step([action], out)
            self.arrays["obs"][t, mine] = out.obs[0]
            self.arrays["reward"][t, mine] = out.reward


def timed(rounds: Callable[[int], None], num_envs: int, seconds: float, block: int = 32) -> float:
    rounds(block)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        rounds(block)
        count += block
    return count * num_envs / (time.perf_counter() - began)


def asynchronous(id: str, num_envs: int, seconds: float) -> float:
    env = gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="async")
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(256)]

    def rounds(count: int) -> None:
        for t in range(count):
            env.step(actions[t % 256])

    try:
        return timed(rounds, num_envs, seconds)
    finally:
        env.close()


def subprocesses(id: str, num_envs: int, seconds: float) -> float:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env = make_vec_env(id, n_envs=num_envs, vec_env_cls=SubprocVecEnv)
    env.reset()
    space = env.action_space
    actions = [np.array([space.sample() for _ in range(num_envs)]) for _ in range(256)]

    def rounds(count: int) -> None:
        for t in range(count):
            env.step(actions[t % 256])

    try:
        return timed(rounds, num_envs, seconds)
    finally:
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    id, num_envs, workers, seconds = args.env, args.num_envs, args.workers, args.seconds
    contestants: dict[str, Callable[[], float]] = {
        "raw processes": partial(raw, id, workers, seconds),
        "whorl pool, rollouts": partial(rollouts, id, num_envs, workers, seconds),
        "whorl pool, two groups": partial(ours, id, num_envs, workers, seconds, True),
        "whorl pool, step": partial(ours, id, num_envs, workers, seconds, False),
    }
    if args.peers:
        contestants["Gymnasium AsyncVectorEnv"] = partial(asynchronous, id, num_envs, seconds)
        contestants["SB3 SubprocVecEnv"] = partial(subprocesses, id, num_envs, seconds)
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(args.rounds):
        for name, contestant in contestants.items():
            found[name].append(contestant())
    best = max(statistics.median(found[name]) for name in found if name.startswith("whorl"))
    print(f"{id}, {num_envs} environments, {workers} workers")
    for name, rates in found.items():
        rate = statistics.median(rates)
        print(f"  {name:26s} {rate:12,.0f} steps/s   whorl pool / this: {best / rate:5.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
