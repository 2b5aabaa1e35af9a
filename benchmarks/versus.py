"""Speed of an old checkout and a new one, side by side: `make versus BASE=COMMIT`, or `--old FOLDER` without git.

For each row both checkouts train the same run, each in a process of its own, and take turns of some seconds while the
other one waits; the row shows the median rates and the median over rounds of the ratio new / old. Threads are pinned.
Updates per second are measured in runs with so many updates per environment step that stepping hardly counts. The last
rows are bytes of replay per row. Only the public API is used, with the setting names of commit 4a0ae69.

`--device cuda` measures captured updates, and rollouts on the GPU, instead of the rows for a CPU.
"""

import argparse
import fnmatch
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TextIO

import gymnasium
import numpy as np
from checkouts import add_arguments, import_whorl, two
from gymnasium import spaces
from rounds import turns


class Still(gymnasium.Env):
    """An environment that costs nothing: random observations drawn beforehand, episodes of 200 steps."""

    def __init__(self, observation: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = observation, action
        observation.seed(0)
        self.drawn = [observation.sample() for _ in range(16)]
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.drawn[0], {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.drawn[self.time % 16], float(self.time % 3), False, self.time >= 200, {}


def vectors(size: int, actions: int) -> gymnasium.Env:
    """The shapes of a control task: HalfCheetah's are 17 and 6, Humanoid's 348 and 17."""
    return Still(spaces.Box(-10, 10, (size,), np.float32), spaces.Box(-1, 1, (actions,), np.float32))


def frames() -> gymnasium.Env:
    """The shapes of an Atari game, one frame at a time: `FRAMES` stacks four of them."""
    return Still(spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(6))


HALF_CHEETAH = partial(vectors, 17, 6)
HUMANOID = partial(vectors, 348, 17)
RUN = {
    "seed": 1,
    "threads": 1,
    "eval": False,
    "save_model": False,
    "tensorboard": False,
    "quiet": True,
    "max_epochs": 1_000_000,
    "total_steps": 0,
    "log_freq": 1,
}
MLP = {"actor_hidden": [64, 64], "critic_hidden": [64, 64], "activation": "tanh", "lr_schedule": "constant"}
PPO = {**MLP, "lanes": 8, "rollout_steps": 256, "batch_size": 256, "epochs": 4}
POOL = {**MLP, "lanes": 8, "rollout_steps": 256, "batch_size": 2048, "epochs": 1, "workers": 2}
UPDATES = {"lanes": 1, "workers": 0, "capacity": 20_000, "learn_after": 200, "random_steps": 200}
SAC = {**UPDATES, "rollout_steps": 4, "batch_size": 256, "ratio": 16}
DQN = {**UPDATES, "rollout_steps": 4, "hidden": [512], "batch_size": 32, "ratio": 16, "random_steps": 0}
RSAC = {**UPDATES, "rollout_steps": 20, "batch_size": 16, "ratio": 1, "memory_size": 128, "learn_after": 400}
CUDA = {"learner_device": "cuda"}
MANY = {"ratio": 64, "rollout_steps": 5}
QUADROTOR = {"lanes": 4096, "rollout_steps": 64, "batch_size": 65_536, "epochs": 4, "compile": True}


@dataclass(frozen=True)
class Row:
    """A run whose rate is measured, or whose replay is weighed; `needs` is a package it can't do without."""

    name: str
    env: Any
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unit: Literal["steps/s", "updates/s", "bytes/row"] = "steps/s"
    needs: str = ""
    stack: int = 1


ROWS = {
    "cpu": [
        Row("PPO CartPole-v1", "CartPole-v1", "ppo", {**PPO, "workers": 0}),
        Row("PPO HalfCheetah-v5", "HalfCheetah-v5", "ppo", {**PPO, "workers": 0}, needs="mujoco"),
        Row("SAC, HalfCheetah's shapes", HALF_CHEETAH, "sac", SAC, "updates/s"),
        Row(
            "DQN, CartPole",
            "CartPole-v1",
            "dqn",
            {**DQN, "hidden": [128, 128], "batch_size": 64},
            "updates/s",
        ),
        Row("DQN, four frames of 84x84", frames, "dqn", {**DQN, "ratio": 4}, "updates/s", stack=4),
        Row("rsac, HalfCheetah's shapes", HALF_CHEETAH, "rsac", RSAC, "updates/s"),
        Row("pool, acting in workers, CartPole-v1", "CartPole-v1", "ppo", POOL),
        Row("pool, acting here, CartPole-v1", "CartPole-v1", "ppo", {**POOL, "acting": "central"}),
        Row("pool, acting in workers, HalfCheetah-v5", "HalfCheetah-v5", "ppo", POOL, needs="mujoco"),
    ],
    "cuda": [
        Row("SAC captured, Humanoid's shapes", HUMANOID, "sac", {**SAC, **MANY, **CUDA}, "updates/s"),
        Row(
            "DQN captured, four frames of 84x84", frames, "dqn", {**DQN, **MANY, **CUDA}, "updates/s", stack=4
        ),
        Row(
            "rsac captured, HalfCheetah's shapes",
            HALF_CHEETAH,
            "rsac",
            {**RSAC, "ratio": 8, **CUDA},
            "updates/s",
        ),
        Row("PPO Quadrotor-v0", "Quadrotor-v0", "ppo", {**QUADROTOR, **CUDA, "worker_device": "cuda"}),
        Row("PPO Humanoid-v5", "Humanoid-v5", "ppo", {**CUDA, "workers": 16}, needs="mujoco"),
    ],
}
REPLAYS = [
    Row("replay of SAC, HalfCheetah's shapes", HALF_CHEETAH, "sac", {"capacity": 100_000}, "bytes/row"),
    Row("replay of SAC, Humanoid's shapes", HUMANOID, "sac", {"capacity": 100_000}, "bytes/row"),
    Row("replay of DQN, four frames of 84x84", frames, "dqn", {"capacity": 100_000}, "bytes/row", stack=4),
    Row("replay of rsac, HalfCheetah's shapes", HALF_CHEETAH, "rsac", {"capacity": 100_000}, "bytes/row"),
]


def load(row: Row, folder: str, callbacks: Any = ()) -> Any:
    """A trainer of the row's run."""
    import whorl

    env = row.env if isinstance(row.env, str) else whorl.make(row.env, **_stacked(row))
    return whorl.load(env, row.algorithm, {**RUN, **row.settings, "runs": folder}, callbacks=callbacks)


def _stacked(row: Row) -> dict[str, int]:
    return {"frame_stack": row.stack} if row.stack > 1 else {}


def weigh(row: Row) -> float:
    """Bytes that one row of replay takes."""
    with tempfile.TemporaryDirectory() as folder:
        size = load(row, folder).replay_bytes
    return float(size() if callable(size) else size) / row.settings["capacity"]


def train(row: Row, seconds: float, warm_up: float, answers: TextIO) -> None:
    """Train without end; after a warm-up, each line on standard input asks for a rate over so many seconds."""
    import whorl

    class Clock(whorl.Callback):
        """Answers in the pause between two epochs, which is not counted."""

        def __init__(self) -> None:
            self.ready = time.perf_counter() + warm_up
            self.began: tuple[float, int] | None = None

        def on_update(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
            now, steps = time.perf_counter(), int(metrics["steps"])
            if self.began is None:
                due = now >= self.ready and steps > 2 * row.settings.get("learn_after", 0)
            else:
                due = now - self.began[0] >= seconds
                if due:
                    rate = (steps - self.began[1]) / (now - self.began[0])
                    print(
                        rate * (row.settings["ratio"] if row.unit == "updates/s" else 1),
                        file=answers,
                        flush=True,
                    )
            if due:
                if sys.stdin.readline():
                    self.began = time.perf_counter(), steps
                else:
                    trainer.stop("all is measured")

    with tempfile.TemporaryDirectory() as folder:
        load(row, folder, [Clock()]).train()


def contestant(row: Row, args: argparse.Namespace) -> None:
    """The part that runs inside a checkout; what can't be measured there is nan."""
    import_whorl()
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else prints must not come between the answers
    try:
        if row.unit != "bytes/row":
            train(row, args.seconds, args.warm_up, answers)
            return
        found = weigh(row)
    except (
        Exception
    ):  # of an older or newer version anything may be missing; the other rows are still worth having
        traceback.print_exc()
        found = math.nan
    for _ in sys.stdin:
        print(found, file=answers, flush=True)


def measure(row: Row, args: argparse.Namespace, checkouts: Mapping[str, Any]) -> dict[str, Any]:
    """Both checkouts in turns."""
    rest = ["--device", args.device, "--seconds", str(args.seconds), "--warm-up", str(args.warm_up)]
    command = [sys.executable, __file__, "--contestant", row.name, *rest]
    rates = turns(
        dict.fromkeys(checkouts, command),
        args.threads,
        1 if row.unit == "bytes/row" else args.rounds,
        {name: checkout.environment(args.threads) for name, checkout in checkouts.items()},
    )
    found: dict[str, Any] = {"row": row.name, "unit": row.unit}
    found |= {name: statistics.median(rates[name]) if name in rates else None for name in checkouts}
    if len(rates) == len(checkouts):
        ratios = [new / old for old, new in zip(rates["old"], rates["new"])]
        found |= {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return found


def show(found: Mapping[str, Any]) -> None:
    """One line of the table."""
    rates = [
        f"{found[name]:12,.1f}" if found[name] is not None else f"{'failed':>12s}" for name in ("old", "new")
    ]
    ratio = (
        f"{found['ratio']:6.3f} ({found['lowest']:.3f} to {found['highest']:.3f})"
        if "ratio" in found
        else "-"
    )
    print(f"{found['row']:42s} {rates[0]} {rates[1]} {found['unit']:10s} {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="*", help="rows whose name has this in it, or matches this pattern")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4, help="of a turn")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds of training before the first turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="", help="also write the figures to this file, as JSON")
    parser.add_argument("--contestant", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rows = [*ROWS[args.device], *REPLAYS]
    if args.contestant:
        contestant(next(row for row in rows if row.name == args.contestant), args)
        return
    found = []
    with two(args) as (old, new):
        print(f"old {old.name}\nnew {new.name}\n{'':42s} {'old':>12s} {'new':>12s} {'':10s} new / old")
        for row in rows:
            if args.only not in row.name and not fnmatch.fnmatchcase(row.name, args.only):
                continue
            if row.needs and importlib.util.find_spec(row.needs) is None:
                print(f"{row.name:42s} skipped, {row.needs} is not installed")
                continue
            found.append(measure(row, args, {"old": old, "new": new}))
            show(found[-1])
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"old": old.name, "new": new.name, "rows": found}, file, indent=1)


if __name__ == "__main__":
    main()
