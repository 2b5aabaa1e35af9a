"""Off-policy updates per second, beside Stable-Baselines3 where it is installed: `python benchmarks/updates.py`.

Same shapes, nets (256x256), batch and ring contents; the contestants take turns, each in a process of its own, and the
median of the rounds counts. An update is: draw a batch, learn, move the targets. The share of the machine's matrix
products says how far the rest is from free: products of the shapes that the update needs, nothing else, measured beside
it. Agents that value choices (`dqn`, `rainbow`, ...) learn from Atari's four frames of 84x84, with batches of 32, or
with `--vectors` from vectors, with the same nets of 64x64 and batches of 32 as Stable-Baselines3's DQN.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from rounds import serve, turns

from whorl.agents.families import ValueConfig
from whorl.core.process import keep_freed_memory
from whorl.core.spec import Array, Continuous, Discrete, Spec
from whorl.data.batch import Batch
from whorl.ops.products import onednn_pays, product
from whorl.run.learner import Learner
from whorl.settings.merge import configure
from whorl.settings.presets import algorithm_class
from whorl.state.policy import build_agent
from whorl.state.streams import Streams

ROWS = 10_000
SMALL = {
    "batch_size": 32,
    "hidden_sizes": [64, 64],
    "n_step": 1,
    "double": False,
    "learning_rate": 1e-4,
    "target_update_interval": 2500,
    "max_grad_norm": 10.0,
}
"""of agents that value choices and learn from vectors: as Stable-Baselines3's DQN, which moves its targets every 10,000
steps and learns in every fourth"""


def ours(
    algorithm: str, args: argparse.Namespace, compile: bool = False, capture: bool = True
) -> Callable[[int], None]:
    """A function that makes some updates."""
    device = torch.device(args.device)
    choices = issubclass(algorithm_class(algorithm)[1].Config, ValueConfig)  # type: ignore[attr-defined]
    pixels = choices and not args.vectors
    bounds = (1.0,) * args.actions
    spec = Spec(Array((args.obs,)), Continuous((args.actions,), tuple(-b for b in bounds), bounds), 1)
    given = {
        "num_envs": 1,
        "buffer_size": 2 * ROWS,
        "learning_starts": 0,
        "batch_size": args.batch,
        **args.settings,
    }
    if pixels:
        spec = Spec(Array((4, 84, 84), "uint8", 0, 255, 4), Discrete(args.actions), 1)
        given = {**given, "batch_size": 32, **args.settings}
    elif choices:
        spec = Spec(Array((args.obs,)), Discrete(args.actions), 1)
        given = {**given, **SMALL, **args.settings}
    settings = configure(algorithm, "ALE/Pong-v5" if pixels else "benchmark", given)
    streams = Streams(0, (device,))
    agent = build_agent(settings, spec).prepare(
        device, lambda name: streams.generator("learner", device, name)
    )
    learner = Learner(agent, capture and device.type == "cuda", compile)
    replay = agent.experience(streams.generator("replay", device))
    if compile:
        replay.compile()
    ones = torch.ones(ROWS, 1)
    period = (
        args.episode + 1 if args.episode else ROWS + 2
    )  # its last row is a final observation, no transition
    place = torch.arange(ROWS + 1).unsqueeze(1) % period
    # Of a stack only the newest frame is kept: one picture stands for all rows.
    frames = torch.randint(0, 256, (1, 1, 4, 84, 84), dtype=torch.uint8).expand(ROWS + 1, 1, 4, 84, 84)
    replay.add(
        Batch(
            obs=frames if pixels else torch.randn(ROWS + 1, 1, args.obs),
            reset=place == 0,
            action=torch.randint(args.actions, (ROWS, 1))
            if choices
            else torch.rand(ROWS, 1, args.actions) * 2 - 1,
            reward=torch.randn(ROWS, 1),
            continues=place[:-1] < period - 1,
            keep=ones.masked_fill(place[:-1] == period - 2, 0.0),
            mask=ones.masked_fill(place[:-1] == period - 1, 0.0),
        )
    )

    def run(count: int) -> None:
        for _ in range(count):
            batch = replay.sample()
            replay.settle(batch, learner.update("update", batch))
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


class Still(gymnasium.Env):
    """Spaces only."""

    def __init__(self, obs: int, actions: int, choices: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (obs,), np.float32)
        box = gymnasium.spaces.Box(-1, 1, (actions,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions) if choices else box

    def reset(self, **_: Any) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


def theirs(algorithm: str, args: argparse.Namespace) -> Callable[[int], None] | None:
    """The same by Stable-Baselines3 or its contributions; None where it is not installed or has no such algorithm."""
    try:
        import sb3_contrib
        import stable_baselines3
    except ImportError:
        return None
    classes = {
        "sac": stable_baselines3.SAC,
        "td3": stable_baselines3.TD3,
        "ddpg": stable_baselines3.DDPG,
        "tqc": sb3_contrib.TQC,
        **({"dqn": stable_baselines3.DQN, "qr_dqn": sb3_contrib.QRDQN} if args.vectors else {}),
    }
    if algorithm not in classes:
        return None
    choices = algorithm in ("dqn", "qr_dqn")
    extra: dict[str, Any] = {"net_arch": [64, 64] if choices else [256, 256]}
    batch = SMALL["batch_size"] if choices else args.batch
    if algorithm == "tqc":
        extra |= {"n_critics": 5, "n_quantiles": 25}
    model = classes[algorithm](
        "MlpPolicy",
        Still(args.obs, args.actions, choices),
        buffer_size=2 * ROWS,
        batch_size=batch,
        device=args.device,
        policy_kwargs=extra,
        learning_rate=SMALL["learning_rate"] if choices else 3e-4,
    )
    model._setup_learn(1, None)
    rng = np.random.default_rng(0)
    for _ in range(ROWS):
        rows = rng.standard_normal((2, 1, args.obs), np.float32)
        action = rng.uniform(-1, 1, (1, args.actions)).astype(np.float32)
        if choices:
            action = rng.integers(args.actions, size=1)
        model.replay_buffer.add(rows[0], rows[1], action, rng.standard_normal(1), np.zeros(1), [{}])

    def run(count: int) -> None:
        model.train(gradient_steps=count, batch_size=batch)
        if args.device == "cuda":
            torch.cuda.synchronize()

    return run


def products(algorithm: str, args: argparse.Namespace) -> Callable[[int], None]:
    """Only the matrix products of one update: forward, and twice as much going back where weights are trained."""
    device, batch, wide = args.device, args.batch, 256
    critics = CRITICS[algorithm]
    last = 25 if algorithm == "tqc" else 1
    heads = args.actions * (2 if algorithm in ("sac", "tqc") else 1)
    critic = [(args.obs + args.actions, wide), (wide, wide), (wide, last)]
    actor = [(args.obs, wide), (wide, wide), (wide, heads)]
    share = 0.5 if algorithm == "td3" else 1.0  # the actor learns every second time

    def size(layers: list[tuple[int, int]]) -> float:
        return sum(a * b for a, b in layers) * batch * 2

    first = (args.obs + args.actions) * wide * batch * 2  # no gradient of the input is needed there
    learned = (
        critics * (3 * size(critic) - first) + 3 * size(actor) * share - args.obs * wide * batch * 2 * share
    )
    climbed = 2 * size(critic) * (critics if algorithm in ("sac", "tqc") else 1) * share
    total = learned + climbed + critics * size(critic) + size(actor)
    a, b = (torch.randn(wide, wide, device=device) for _ in range(2))
    repeats = total / (2 * wide**3)
    multiply = product if onednn_pays(a, wide**3) else torch.mm

    def run(count: int) -> None:
        for _ in range(round(count * repeats)):
            multiply(a, b)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


CRITICS = {"sac": 2, "td3": 2, "ddpg": 1, "tqc": 5}
CONTESTANTS = {
    "whorl": ours,
    "sb3": theirs,
    "whorl, compiled": partial(ours, compile=True),
    "whorl, eager": partial(ours, capture=False),
    "products alone": products,
}


def contestant(name: str, algorithm: str, args: argparse.Namespace) -> None:
    """A process of its own: makes `args.count` updates for each line on its input, and says how many a second."""
    torch.set_num_threads(args.threads[0])
    torch.backends.cuda.matmul.allow_tf32 = True  # as a run does by default
    if name.startswith("whorl"):
        keep_freed_memory()
    run = CONTESTANTS[name](algorithm, args)  # type: ignore[operator]
    serve(run, args.count, max(20, args.count // 4), args.processor_time)


def measure(algorithm: str, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds, all contestants taking turns."""
    names = [
        name for name in CONTESTANTS if args.device == "cuda" or name in ("whorl", "sb3", "products alone")
    ]
    if algorithm not in CRITICS:
        names.remove("products alone")
    rest = [word for word in sys.argv[1:] if word not in args.algorithms]
    commands = {
        name: [sys.executable, __file__, algorithm, *rest, "--threads", str(threads), "--contestant", name]
        for name in names
    }
    rates = turns(commands, threads, args.rounds)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    row = {
        "algorithm": algorithm,
        "threads": threads,
        **{name: round(rate, 1) for name, rate in middle.items()},
    }
    if "sb3" in middle:
        row["ratio"] = round(statistics.median(a / b for a, b in zip(rates["whorl"], rates["sb3"])), 2)
    if "products alone" in middle:
        row["share of products"] = round(middle["whorl"] / middle["products alone"], 2)
    if "whorl, eager" in middle:
        row["captured / eager"] = round(middle["whorl"] / middle["whorl, eager"], 2)
        row["compiled / eager"] = round(middle["whorl, compiled"] / middle["whorl, eager"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", default=["sac", "td3", "tqc"])
    parser.add_argument("--obs", type=int, default=17)
    parser.add_argument("--actions", type=int, default=6)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--episode", type=int, default=0, help="steps of an episode; 0: it never ends")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=100, help="updates in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vectors", action="store_true", help="agents that value choices learn from vectors")
    parser.add_argument("--processor-time", action="store_true", help="for one thread on a shared machine")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--out", default="")
    parser.add_argument("--contestant", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        contestant(args.contestant, args.algorithms[0], args)
        return
    found = []
    for algorithm in args.algorithms:
        for threads in args.threads if args.device == "cpu" else [1]:
            found.append(measure(algorithm, threads, args))
            print(json.dumps(found[-1]), flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
