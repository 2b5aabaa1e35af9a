"""Swing-ups of QuadInvPendulum-v0 by optimal control: find one, and record a dataset of demonstrations along one.

    python benchmarks/swing_up.py find --seed 5 --to swing_up.csv
    python benchmarks/swing_up.py record --episodes 500 --output swing_ups

`find` writes a table such as the one along which the environment's `curriculum` starts: iterative LQR (Li and Todorov
2004; bounds on the action by projection, Tassa et al. 2014) from hanging at rest, with
random smooth actions at first and a quadratic cost of the last state that grows to that of a linear-quadratic regulator
at upright. Then actions are made more expensive, which makes the swing-up smoother and much more robust, and the
regulator holds the chain for some steps. A linear-quadratic regulator along the result says how robust it is: the share
of 200 episodes that it swings up with noise on its actions. Takes minutes; about half of the seeds find nothing. The
environment's table comes from an earlier, faster implementation of the same method, so no seed repeats it exactly.

`record` plays the regulator along the environment's own table, then the one at upright, and writes the episodes that
end upright as a dataset. A share of the actions is disturbed, so that the dataset shows how to come back.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch

from whorl.datasets.minari import Episode, Writer, dataset_name
from whorl.envs.native import chain
from whorl.envs.native.quad_pendulum import PERIOD, PUSH, QuadInvPendulum, swing_up

HANGING = np.array([0, *[math.pi] * 4, *[0.0] * 5])
WEIGHTS = np.array([5.0, *[20.0] * 4, *[0.5] * 5])
"""of the last state's squared distance to upright, at first"""
STEPS, MORE, HOLD = 100, 10, 40
"""steps to upright, more of them once it is reached, and steps of the regulator"""
SIZE = 1e-6
"""of central differences"""


@dataclass
class Cost:
    last: np.ndarray
    """[10, 10] quadratic cost of the last state"""
    action: float = 0.1
    rail: float = 0.6
    wall: float = 200.0
    """of the squared distance beyond `rail`, and of that of velocities beyond 14 rad/s, with a factor"""

    def __call__(self, states: np.ndarray, actions: np.ndarray) -> float:
        beyond = _beyond(states, self.rail)
        running = self.action * (actions**2).sum() + (self.weights() * beyond**2).sum()
        slow = 1e-4 * (states[:, 6:] ** 2).sum()
        return float(running + slow + 0.5 * states[-1] @ self.last @ states[-1])

    def weights(self) -> np.ndarray:
        return np.array([self.wall, *[0.0] * 5, *[0.05] * 4])

    def derivatives(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and diagonal second derivatives [T, 10] of the running cost by the states."""
        beyond, slow = _beyond(states, self.rail), np.array([*[0.0] * 6, *[1e-4] * 4])
        return 2 * (self.weights() * beyond + slow * states), 2 * (self.weights() * (beyond != 0) + slow)


def _beyond(states: np.ndarray, rail: float) -> np.ndarray:
    limits = np.array([rail, *[np.inf] * 5, *[14.0] * 4])
    return np.sign(states) * np.maximum(0, np.abs(states) - limits)


def step(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The next states [N, 10]."""
    swing = chain.swing(len(states), torch.device("cpu"), torch.float64, friction=True, compile=False)
    place, angles, speed, speeds = torch.from_numpy(states.T.copy()).split((1, 4, 1, 4))
    push = PUSH * torch.from_numpy(actions)
    angles, speeds = swing(angles, speeds, push)
    place = place + PERIOD * speed + (PERIOD**2 / 2) * push
    return torch.cat([place, angles, speed + PERIOD * push, speeds]).numpy().T


def linearised(states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of the next states by states [N, 10, 10] and actions [N, 10]."""
    inputs = np.concatenate([states, actions[:, None]], 1)[:, None]  # [N, 1, 11]
    moved = np.concatenate([inputs + SIZE * np.eye(11), inputs - SIZE * np.eye(11)], 1).reshape(-1, 11)
    after = step(moved[:, :10], moved[:, 10]).reshape(len(states), 2, 11, 10)
    slopes = ((after[:, 0] - after[:, 1]) / (2 * SIZE)).transpose(0, 2, 1)  # [N, 10, 11]
    return slopes[:, :, :10], slopes[:, :, 10]


def regulator(steps: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Gain [10] and value [10, 10] of the linear-quadratic regulator at upright."""
    (a,), (b,) = linearised(np.zeros((1, 10)), np.zeros(1))
    cost = value = np.diag([1.0] * 5 + [0.1] * 5)
    for _ in range(steps):
        gain = b @ value @ a / (10 + b @ value @ b)
        value = cost + a.T @ value @ (a - np.outer(b, gain))
    return gain, value


def follow(
    actions: np.ndarray, reference: np.ndarray, change: np.ndarray, gains: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States [T + 1, 10] and actions [T] from hanging, with feedback around `reference`."""
    states, taken = [HANGING], []
    for t, action in enumerate(actions):
        taken.append(float(np.clip(action + change[t] + gains[t] @ (states[-1] - reference[t]), -1, 1)))
        states.append(step(states[-1][None], np.array(taken[-1:]))[0])
    return np.array(states), np.array(taken)


def backward(
    states: np.ndarray, actions: np.ndarray, cost: Cost, damping: float
) -> tuple[np.ndarray, np.ndarray]:
    """Changes [T] of the actions and gains [T, 10] that minimise the quadratic model of the cost."""
    a, b = linearised(states[:-1], actions)
    first, second = cost.derivatives(states)
    slope, curve = cost.last @ states[-1] + first[-1], cost.last + np.diag(second[-1])
    change, gains = np.zeros(len(actions)), np.zeros((len(actions), 10))
    for t in reversed(range(len(actions))):
        q_u, q_x = 2 * cost.action * actions[t] + b[t] @ slope, first[t] + a[t].T @ slope
        q_uu, q_ux = 2 * cost.action + b[t] @ curve @ b[t], b[t] @ curve @ a[t]
        wanted = -q_u / (q_uu + damping)
        change[t] = np.clip(wanted, -1 - actions[t], 1 - actions[t])
        if change[t] == wanted:
            gains[t] = -q_ux / (q_uu + damping)
        mixed = np.outer(gains[t], q_ux)
        slope = q_x + gains[t] * (q_uu * change[t] + q_u) + q_ux * change[t]
        curve = (
            a[t].T @ curve @ a[t] + np.diag(second[t]) + q_uu * np.outer(gains[t], gains[t]) + mixed + mixed.T
        )
    return change, gains


def optimised(actions: np.ndarray, cost: Cost, iterations: int) -> tuple[np.ndarray, np.ndarray, float]:
    """States, actions and cost after iterative LQR with a line search."""
    still = np.zeros((len(actions), 10))
    states, actions = follow(actions, still, np.zeros(len(actions)), still)
    best, damping = cost(states, actions), 1e-3
    for _ in range(iterations):
        before = best
        while damping < 1e8 and best == before:
            change, gains = backward(states, actions, cost, damping)
            for share in (1, 0.6, 0.3, 0.1, 0.03, 0.01):
                tried = follow(actions, states, share * change, gains)
                if (found := cost(*tried)) < best:
                    (states, actions), best = tried, found
                    damping = max(damping / 3, 1e-7) if share > 0.5 else damping
                    break
            else:
                damping *= 6
        if before - best <= 1e-5 * before:
            break
    return states, actions, best


def search(seed: int, value: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A swing-up from random smooth actions, or None."""
    noise = np.convolve(np.random.default_rng(seed).normal(size=STEPS + 7), np.ones(8) / 8, "valid")
    actions = 0.12 * (noise - noise.mean()) / noise.std()
    _, actions, found = optimised(actions, Cost(np.diag(WEIGHTS)), 120)
    print(f"seed {seed}: cost {found:.2f}", flush=True)
    if found > 15:
        return None
    actions = np.append(actions, np.zeros(MORE))
    for factor in (3, 30, 300):
        _, actions, _ = optimised(actions, Cost(factor * np.diag(WEIGHTS)), 100)
    for price in (0.1, 0.3, 1.0, 3.0):
        states, actions, found = optimised(actions, Cost(value, price, wall=50.0), 60)
        print(f"action cost {price}: cost {found:.2f}, largest action {abs(actions).max():.2f}", flush=True)
    return (states, actions) if abs(states[-1]).max() < 1.5 else None


def tracking(states: np.ndarray, actions: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Gains [T, 10] of a linear-quadratic regulator along a swing-up."""
    a, b = linearised(states[:-1], actions)
    gains = np.zeros((len(actions), 10))
    for t in reversed(range(len(actions))):
        gains[t] = b[t] @ value @ a[t] / (10 + b[t] @ value @ b[t])
        value = np.diag([1.0] * 5 + [0.1] * 5) + a[t].T @ value @ (a[t] - np.outer(b[t], gains[t]))
    return gains


def robustness(states: np.ndarray, actions: np.ndarray, noise: float, value: np.ndarray) -> float:
    """Share of 200 episodes that end upright, by a regulator along the swing-up with noise on its actions."""
    gains = tracking(states, actions, value)
    rng = np.random.default_rng(0)
    body, inside = HANGING + 0.01 * rng.normal(size=(200, 10)), np.ones(200, bool)
    for t in range(len(actions) + 100):
        row = min(t, len(actions) - 1)
        reference, action = (states[t], actions[t]) if t < len(actions) else (np.zeros(10), 0.0)
        wanted = np.clip(action - (body - reference) @ gains[row], -1, 1) + noise * rng.normal(size=200)
        body = step(body, np.clip(wanted, -1, 1))
        inside &= (abs(body[:, 0]) <= 0.75) & (abs(body[:, 6:]).max(1) < 35)
        body[~inside] = HANGING
    return float((inside & (abs(body[:, 1:5]).max(1) < 0.3)).mean())


def record(episodes: int, output: Path, steps: int, disturbed: float, noise: float, seed: int) -> None:
    """Demonstrations, as a dataset: `noise` is the standard deviation of what is added to a share of the actions."""
    table = swing_up()
    states, actions = table[:, :10], table[:-1, 10]
    gain, value = regulator()
    gains = np.concatenate([tracking(states, actions, value), [gain]])  # the last one at upright, for ever
    states, actions = np.concatenate([states[:-1], np.zeros((1, 10))]), np.append(actions, 0)
    world, rng = QuadInvPendulum(episodes, training_steps=steps), np.random.default_rng(seed)
    observed = np.zeros((steps + 1, episodes, 14), np.float32)
    taken, rewards = np.zeros((steps, episodes, 1), np.float32), np.zeros((steps, episodes))
    observed[0], lasts = world.reset(seed), np.ones(episodes, bool)
    for t in range(steps):
        row = min(t, len(actions) - 1)
        body = world.state["body"].T.double().numpy()
        wanted = actions[row] - (body - states[row]) @ gains[row]
        wanted += noise * rng.normal(size=episodes) * (rng.random(episodes) < disturbed)
        taken[t, :, 0] = np.clip(wanted, -1, 1)
        step = world.step(torch.from_numpy(taken[t]))
        observed[t + 1], rewards[t] = step.obs, step.reward
        lasts &= ~step.terminated.numpy()
    lasts &= rewards[-20:].mean(0) > 0.7
    single = gymnasium.make(world.id)
    about = {"algorithm_name": "linear-quadratic regulator along a swing-up"}
    spaces = single.observation_space, single.action_space
    writer = Writer(dataset_name(output), output, *spaces, single.spec, about)
    ends = [False] * (steps - 1)
    for n in np.flatnonzero(lasts):
        given = list(observed[:, n]), list(taken[:, n]), rewards[:, n].tolist()
        writer.add(Episode(seed, *given, terminations=[*ends, False], truncations=[*ends, True]))
    writer.finish()
    print(f"{lasts.sum()} of {episodes} episodes end upright, mean return {rewards.sum(0)[lasts].mean():.0f}")


def find(seed: int, to: str) -> None:
    gain, value = regulator()
    found = None
    while found is None:
        found, seed = search(seed, value), seed + 1
    states, actions = found
    for _ in range(HOLD):
        actions = np.append(actions, np.clip(-gain @ states[-1], -1, 1))
        states = np.concatenate([states, step(states[-1:], actions[-1:])])
    for noise in (0.0, 0.03, 0.06):
        print(f"noise {noise}: {robustness(states, actions, noise, value):.2f} swung up", flush=True)
    table = np.column_stack([states, np.append(actions, 0)])
    np.savetxt(to, table, fmt="%.4f", delimiter=",")


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True)
    finding = commands.add_parser("find", help="a swing-up, by trajectory optimisation")
    finding.add_argument("--seed", type=int, default=0, help="the first to try")
    finding.add_argument("--to", required=True)
    recording = commands.add_parser("record", help="a dataset of the regulator along the environment's table")
    recording.add_argument("--episodes", type=int, default=500)
    recording.add_argument("--output", type=Path, required=True, help="folder of the dataset")
    recording.add_argument("--steps", type=int, default=400, help="of an episode")
    recording.add_argument("--disturbed", type=float, default=0.1, help="share of actions with noise")
    recording.add_argument("--noise", type=float, default=0.2, help="standard deviation of the noise")
    recording.add_argument("--seed", type=int, default=0)
    args = vars(parser.parse_args())
    {"find": find, "record": record}[args.pop("command")](**args)


if __name__ == "__main__":
    main()
