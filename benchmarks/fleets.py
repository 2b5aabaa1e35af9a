"""What actors bring: `python benchmarks/fleets.py sleep`, `discard CartPole-v1` or `train PongNoFrameskip-v4`.

sleep: env-steps/s of A2C and IMPALA on an environment whose steps sleep an exponential time of 1 ms on average.
discard: actors whose learner throws everything away, beside the same actors alone in as many processes.
train: end to end with the preset's net, per core, and the share of the cores that the emulator has.
Contestants run in processes of their own and take turns; the median of the rounds counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
from rounds import medians, show

NUM_ENVS = 8
SYNCHRONOUS = {
    "A2C, one process": {"workers": 0},
    "A2C, default workers": {},
    "A2C, a worker each": {"workers": NUM_ENVS},
}


class Sleeper(gymnasium.Env):
    """Steps that take an exponential time, 1 ms on average; nothing is learned here."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 200
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.np_random.exponential(1e-3))
        self.left -= 1
        return self._seen(), float(action), False, self.left == 0, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


def train_rate(env: Any, algorithm: str, settings: dict[str, Any], seconds: float) -> dict[str, float]:
    """Env-steps/s of training for some seconds once all is under way, and the fleet's own metrics."""
    import whorl

    class Clock(whorl.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[float, int, int]] = []
            self.told: dict[str, float] = {}

        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            self.seen.append((time.perf_counter(), trainer.steps, trainer.agent.updates))
            self.told.update({k: v for k, v in metrics.items() if k.startswith(("actor", "time/waited"))})
            began = next((at for at, steps, _ in self.seen if steps >= WARM_UP), None)
            if began is not None and time.perf_counter() - began > seconds:
                trainer.stop("measured")

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"eval": False, "save_model": False, "tensorboard": False, "quiet": True, "runs": folder}
        given = {"num_envs": NUM_ENVS, "total_timesteps": 10**8, "max_iterations": 10**8, **quiet, **settings}
        whorl.load(env, algorithm, given, callbacks=[clock]).train()
    warm = [row for row in clock.seen if row[1] >= WARM_UP]
    (began, first, updates), (ended, last, more) = warm[0], warm[-1]
    span = ended - began
    return {"rate": (last - first) / span, "updates": (more - updates) / span, **clock.told}


WARM_UP = 2_000


def roles(env: str, actors: int) -> Any:
    """The role of the actors of IMPALA's preset."""
    from whorl.distributed.actor import Role
    from whorl.envs.make import find
    from whorl.settings.merge import configure
    from whorl.state.policy import build_agent

    settings = configure("impala", env, {"num_envs": NUM_ENVS, "actors": actors})
    source = find(env)
    agent = build_agent(settings, source.spec(NUM_ENVS), 0)
    return Role(agent, source, NUM_ENVS // actors, settings.run.num_steps)


def discarded(env: str, actors: int, seconds: float) -> float:
    """A fleet whose trajectories are taken and thrown away; weights go out once for each batch of trajectories."""
    from whorl.distributed.fleet import Fleet

    role = roles(env, actors)
    fleet = Fleet(role, actors, lambda actor, life: (actor, actor))
    steps, began, taken, version = 0.0, 0.0, 0, 1
    try:
        fleet.publish(role.weights(role.agent), version, False)
        while not began or time.perf_counter() - began < seconds:
            for trajectory in fleet.poll(1.0):
                steps += trajectory.seen["steps"]
                taken += 1
                if taken % actors == 0:
                    version += 1
                    fleet.publish(role.weights(role.agent), version, False)
                fleet.release(trajectory)
            if not began and steps > WARM_UP and fleet.alive() == actors:
                began, steps = time.perf_counter(), 0.0
        return steps / (time.perf_counter() - began)
    finally:
        fleet.stop()


def alone(env: str, actors: int, seconds: float) -> float:
    """The same actors with nobody to hand their rollouts to, all at the same time."""
    command = [sys.executable, __file__, "discard", env, "--actors", str(actors), "--seconds", str(seconds)]
    processes = [
        subprocess.Popen([*command, "--number", str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(actors)
    ]
    return sum(float(process.communicate()[0].strip().splitlines()[-1]) for process in processes)


def one_alone(env: str, actors: int, number: int, seconds: float) -> float:
    from whorl.distributed.actor import ActorProcess

    body = ActorProcess(roles(env, actors), number, (number, number))
    steps, began = 0.0, 0.0
    while not began or time.perf_counter() - began < seconds:
        steps += body.roll(False)[0]["seen"]["steps"]
        if not began and steps > WARM_UP / actors:
            began, steps = time.perf_counter(), 0.0
    return steps / (time.perf_counter() - began)


def emulator_rate(env: str, seconds: float = 5.0) -> float:
    """Steps/s of one core that does nothing but step the environment, with random actions."""
    import torch

    from whorl.envs.make import find

    num_envs = find(env).vector(1)
    num_envs.reset(0)
    generator, steps = np.random.default_rng(0), 0
    choices = num_envs.spec.action.n  # type: ignore[union-attr]
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        num_envs.step(torch.from_numpy(generator.integers(choices, size=1)))
        steps += 1
    return steps / (time.perf_counter() - began)


def contestant(args: argparse.Namespace) -> float:
    if args.what == "sleep":
        rows = {"num_steps": args.rows} if args.rows else {}
        if args.only in SYNCHRONOUS:
            return train_rate(Sleeper, "a2c", {**rows, **SYNCHRONOUS[args.only]}, args.seconds)["rate"]
        return train_rate(Sleeper, "impala", {**rows, "actors": args.actors or NUM_ENVS}, args.seconds)[
            "rate"
        ]
    run = {"fleet": discarded, "actors alone": alone}[args.only]
    return run(args.env, args.actors or 2, args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sleep", "discard", "train"))
    parser.add_argument("env", nargs="?", default="CartPole-v1")
    parser.add_argument("--algorithm", default="impala")
    parser.add_argument("--actors", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=0, help="of a train run, over all actors")
    parser.add_argument("--rows", type=int, default=0, help="of a rollout; 0: as the preset has it")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--actors-on-gpu", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--number", type=int, default=-1)
    args = parser.parse_args()
    if args.number >= 0:
        print(one_alone(args.env, args.actors, args.number, args.seconds))
    elif args.only:
        print(json.dumps(contestant(args)))
    elif args.what == "sleep":
        rates = medians([*SYNCHRONOUS, "IMPALA, actors"], args.rounds)
        show(rates, SYNCHRONOUS, "the fastest A2C")
    elif args.what == "discard":
        show(medians(("fleet", "actors alone"), args.rounds), ("actors alone",), "the actors alone")
    else:
        train(args)


def train(args: argparse.Namespace) -> None:
    cores = len(os.sched_getaffinity(0))
    actors = args.actors or cores
    bare = emulator_rate(args.env)
    settings = {
        "actors": actors,
        "num_envs": args.num_envs or NUM_ENVS * actors,
        "device": args.device,
        "actors_on_gpu": args.actors_on_gpu,
        "log_freq": 10,
        **({"num_steps": args.rows} if args.rows else {}),
    }
    found = train_rate(args.env, args.algorithm, settings, args.seconds)
    rate = found["rate"]
    print(
        f"  {args.algorithm} on {args.env}, {actors} actors, {settings['num_envs']} environments, {cores} cores"
    )
    print(f"  {rate:,.0f} agent steps/s, {rate / cores:,.0f} a core; {found['updates']:,.1f} updates/s")
    print(
        f"  bare emulator {bare:,.0f} steps/s on one core: {rate / (bare * cores):.0%} of the cores' time is its own"
    )
    for name, value in sorted(found.items()):
        print(f"    {name} {value:,.2f}")


if __name__ == "__main__":
    main()
