"""Default settings beside those of Stable-Baselines3, on environments for which nothing is tuned.

    python benchmarks/defaults.py run --jobs 16 --seconds 540 --output defaults.jsonl
    python benchmarks/defaults.py report defaults.jsonl --write docs/defaults.md

Every run is a process of its own on one core with one torch thread; both libraries train in turns, for the same number
of environment steps (rounded up to whole rollouts of ours), and the return is that of 20 episodes with deterministic
actions afterwards. Neither evaluates, saves or draws anything while the clock runs. Ours are the algorithm's settings
without those tuned for an environment or its family; theirs are what `PPO("MlpPolicy", env)` gives, which has one
environment. MlpPolicy is theirs for images, too, because their convolutions do not fit images of 10 x 10 and 7 x 7;
MiniGrid's dictionary is flattened for them by `FlatObsWrapper`, as RL Zoo does it.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gymnasium
from jobs import CommandLine, Record, known_seconds, origin, read_all, run_with, train

import whorl

OURS, THEIRS = "whorl", "sb3"
EPISODES = 20
ON_POLICY = {
    "CartPole-v1": 100_000,
    "Acrobot-v1": 100_000,
    "LunarLander-v3": 200_000,
    "LunarLanderContinuous-v3": 200_000,
    "Pendulum-v1": 100_000,
    "BipedalWalker-v3": 200_000,
    "Hopper-v5": 200_000,
    "HalfCheetah-v5": 200_000,
    "MiniGrid-Empty-8x8-v0": 100_000,
    "MinAtar/Breakout-v1": 200_000,
}
DISCRETE = {
    "CartPole-v1": 50_000,
    "Acrobot-v1": 50_000,
    "LunarLander-v3": 100_000,
    "MiniGrid-Empty-8x8-v0": 50_000,
    "MinAtar/Breakout-v1": 100_000,
}
CONTINUOUS = {
    "Pendulum-v1": 10_000,
    "LunarLanderContinuous-v3": 20_000,
    "BipedalWalker-v3": 30_000,
    "Hopper-v5": 30_000,
    "HalfCheetah-v5": 30_000,
}
STEPS: dict[str, dict[str, int]] = {
    "ppo": ON_POLICY,
    "dqn": DISCRETE,
    "sac": CONTINUOUS,
    "td3": CONTINUOUS,
    "a2c": {env: min(steps, 100_000) for env, steps in ON_POLICY.items()},
    "qr_dqn": {env: min(steps, 50_000) for env, steps in DISCRETE.items()},
    "ddpg": {env: min(steps, 20_000) for env, steps in CONTINUOUS.items()},
    "tqc": {env: min(steps, 15_000) for env, steps in CONTINUOUS.items()},
}
"""environment steps by algorithm, the most used first, and environment"""
TIERS = (("ppo", "dqn", "sac", "td3"), ("a2c", "qr_dqn", "ddpg", "tqc"))
RATES = {
    OURS: {
        "ppo": 2000,
        "a2c": 2000,
        "dqn": 600,
        "qr_dqn": 400,
        "sac": 90,
        "td3": 120,
        "ddpg": 150,
        "tqc": 60,
    },
    THEIRS: {"ppo": 800, "a2c": 600, "dqn": 500, "qr_dqn": 300, "sac": 60, "td3": 90, "ddpg": 90, "tqc": 25},
}
"""steps/s on a slow core, for the order and the time of jobs before anything is measured"""


def all_jobs(
    algorithms: Sequence[str], envs: Sequence[str], seeds: Sequence[int], scale: float
) -> list[dict[str, Any]]:
    """One seed of every pair first; of those the main algorithms, of those the longest; the libraries alternate."""
    pairs = [(name, env) for name in STEPS for env in STEPS[name] if name in algorithms and env in envs]

    def order(pair: tuple[str, str]) -> tuple[bool, float]:
        name, env = pair
        return name in TIERS[1], -STEPS[name][env] / RATES[THEIRS][name]

    return [
        {
            "algorithm": name,
            "env": env,
            "seed": seed,
            "library": library,
            "steps": round(STEPS[name][env] * scale),
        }
        for seed in seeds
        for name, env in sorted(pairs, key=order)
        for library in (OURS, THEIRS)
    ]


class Untuned(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Changes nothing, but a wrapped environment gets no settings that are tuned for the one inside."""

    def __init__(self, env: gymnasium.Env) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)


def our_environment(id: str) -> gymnasium.Env:
    return Untuned(whorl.make(id).env)


def settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """What is not left to the defaults: the budget, the seed, one core, and nothing beside training."""
    return {
        "total_timesteps": job["steps"],
        "seed": job["seed"],
        "learner_threads": 1,
        "eval": False,
    }


def train_ours(job: Mapping[str, Any], limit: float) -> Record:
    world = partial(our_environment, job["env"])
    return train(world, job["algorithm"], settings(job), EPISODES, limit).record


def their_environment(id: str) -> gymnasium.Env:
    if id.startswith("MiniGrid"):
        import minigrid

        return minigrid.wrappers.FlatObsWrapper(gymnasium.make(id))
    return whorl.make(id).env


def train_theirs(job: Mapping[str, Any], limit: float) -> Record:
    import sb3_contrib
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    name = job["algorithm"].replace("_", "").upper()
    cls = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)

    class Limit(BaseCallback):
        def _on_step(self) -> bool:
            return time.perf_counter() - began < limit

    run = whorl.load(partial(our_environment, job["env"]), job["algorithm"], settings(job)).settings.run
    rollout = run.num_envs * run.num_steps
    model = cls("MlpPolicy", their_environment(job["env"]), seed=job["seed"], device="cpu")
    began, busy = time.perf_counter(), time.process_time()
    model.learn(math.ceil(job["steps"] / rollout) * rollout, callback=Limit())
    spent, busy = time.perf_counter() - began, time.process_time() - busy
    world = Monitor(their_environment(job["env"]))
    world.reset(seed=job["seed"] + 10_000)
    found, _ = evaluate_policy(model, world, EPISODES, deterministic=True)
    return {
        "steps": model.num_timesteps,
        "wall_time": round(spent, 2),
        "processor_time": round(busy, 2),
        "return": float(found),
    }


def one(job: Mapping[str, Any], limit: float) -> Record:
    found = train_ours(job, limit) if job["library"] == OURS else train_theirs(job, limit)
    return {**found, **origin()}


def estimate(job: Mapping[str, Any], records: list[Record], limit: float) -> float:
    """Seconds that a job takes with its start and its evaluation."""
    same = (("algorithm", "library", "env"), ("algorithm", "library"))
    known = known_seconds(records, job, same, job["steps"])
    if known is None:
        known = 20 + job["steps"] / RATES[job["library"]][job["algorithm"]]
    return min(known, limit + 30)


def cells(records: Iterable[Record]) -> dict[tuple[str, str], dict[str, list[Record]]]:
    """The records of each algorithm and environment by library, in the order of the table."""
    found: dict[tuple[str, str], dict[str, list[Record]]] = {
        (name, env): {OURS: [], THEIRS: []} for name in STEPS for env in STEPS[name]
    }
    for record in records:
        job = record["job"]
        found[job["algorithm"], job["env"]][job["library"]].append(record)
    return {pair: both for pair, both in found.items() if both[OURS] and both[THEIRS]}


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def lower(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether our mean is below theirs by more than the standard error of the difference."""
    error = math.sqrt(spread(ours) ** 2 / len(ours) + spread(theirs) ** 2 / len(theirs))
    return fmean(ours) < fmean(theirs) - error


def seconds(record: Record) -> float:
    """Processor time, which a busy machine does not change; older records have wall time on a core of their own."""
    return record.get("processor_time", record["wall_time"])


def rate(records: Sequence[Record]) -> float:
    return sum(record["steps"] for record in records) / sum(map(seconds, records))


def verdict(ours: Sequence[Record], theirs: Sequence[Record]) -> str:
    """In what we are below: return at equal steps, steps per second, both or nothing."""
    below = {
        "return": lower([r["return"] for r in ours], [r["return"] for r in theirs]),
        "speed": rate(ours) < rate(theirs),
    }
    return (
        "**both**" if all(below.values()) else " ".join(name for name, is_below in below.items() if is_below)
    )


def row(pair: tuple[str, str], both: Mapping[str, Sequence[Record]]) -> list[str]:
    ours, theirs = both[OURS], both[THEIRS]
    reached = {library: fmean(record["steps"] for record in both[library]) for library in both}
    cut = abs(reached[OURS] - reached[THEIRS]) > 0.05 * max(reached.values())

    def summary(records: Sequence[Record]) -> str:
        values = [record["return"] for record in records]
        return f"{number(fmean(values))} ± {number(spread(values))}" if len(values) > 1 else number(values[0])

    return [
        *pair,
        f"{reached[OURS]:,.0f} / {reached[THEIRS]:,.0f}" if cut else f"{reached[OURS]:,.0f}",
        str(len(ours)) if len(ours) == len(theirs) else f"{len(ours)} / {len(theirs)}",
        summary(ours),
        summary(theirs),
        f"{fmean(map(seconds, ours)):.0f}",
        f"{fmean(map(seconds, theirs)):.0f}",
        f"{rate(ours) / rate(theirs):.1f}x",
        verdict(ours, theirs),
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


HEADER = ("algorithm", "environment", "steps", "seeds", "return", "SB3", "s", "SB3 s", "steps/s", "below in")


def table(records: Iterable[Record]) -> str:
    found = [row(pair, both) for pair, both in cells(records).items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADER, ("---",) * len(HEADER), *found))


def page(records: Sequence[Record]) -> str:
    """The table with what it says and where it comes from."""
    both = [
        pair for pair, found in cells(records).items() if verdict(found[OURS], found[THEIRS]) == "**both**"
    ]
    where = sorted({record["machine"] for record in records})
    commits = sorted({record["commit"] for record in records if record["commit"]})
    named = ", ".join(f"{name} on {env}" for name, env in both) or "none"
    return f"""# Defaults on environments without a preset

Default settings, without anything tuned for the environment, compared with those of Stable-Baselines3 and sb3-contrib
(`benchmarks/defaults.py`): returns of {EPISODES} deterministic episodes after the same number of steps, mean and
standard deviation over seeds; seconds of training on one core (processor time where the machine was shared); our
steps per second divided by theirs. *Below in*: we are worse in return, by more than the standard error of the
difference, or in steps per second. Two numbers of steps: the slower library was stopped at the time limit of a run.

Below in both: {named}.

{table(records)}

Machine: {", ".join(where)}. Commit {", ".join(commits) or "unknown"}, {max(record["date"] for record in records)}.
"""


def main() -> None:
    line = CommandLine.of(__doc__, limit=270)
    line.run.add_argument("--scale", type=float, default=1.0, help="factor of all numbers of steps")
    line.run.add_argument("--algorithms", nargs="+", default=list(STEPS), choices=list(STEPS))
    line.run.add_argument("--envs", nargs="+", default=list(ON_POLICY), choices=list(ON_POLICY))
    line.report.add_argument("--write", type=Path, help="write a page with the table there, too")
    args = line.parser.parse_args()
    if args.command == "job":
        print(json.dumps(one(args.job, args.limit)))
    elif args.command == "run":
        found = all_jobs(args.algorithms, args.envs, args.seeds, args.scale)
        run_with(args, found, partial(estimate, limit=args.limit))
    else:
        records = read_all(args)
        print(table(records))
        if args.write:
            args.write.write_text(page(records), "utf-8")


if __name__ == "__main__":
    main()
