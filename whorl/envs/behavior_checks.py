"""What whorl check tests in an environment of several agents."""

import math

import torch

from whorl.core import tree
from whorl.core.errors import WhorlError
from whorl.envs.make import Source
from whorl.explore.noise import random_action


def check_behaviors(source: Source, steps: int = 200) -> list[str]:
    """What is wrong with an environment of several agents, as far as random actions show it; see `whorl check`."""
    try:
        first, second = (_try_out(source, steps) for _ in range(2))
    except WhorlError as error:
        return [error.message]
    if not all(math.isfinite(reward) for _, reward in first):
        return ["a reward is not a finite number; find the division or root that makes it"]
    if any(math.isnan(seen) for seen, _ in first):
        return ["an observation is NaN; find the division or root that makes it"]
    if first != second:
        return [
            "reset(seed=0) and the same actions lead to other episodes; draw all random numbers from the seed"
        ]
    return []


def _try_out(source: Source, steps: int) -> list[tuple[float, float]]:
    """Sums of observations and rewards of one copy, step by step, with random actions."""
    assert source.adapter is not None
    env, found = source.adapter.behavior_env(source, 1), []
    generator = torch.Generator().manual_seed(0)
    try:
        obs = env.reset(0)
        for _ in range(steps):
            answers = env.step(
                {name: random_action(spec, obs[name], generator) for name, spec in env.specs.items()}
            )
            obs = {name: answer.obs for name, answer in answers.items()}
            seen = sum(float(leaf.double().sum()) for one in obs.values() for leaf in tree.leaves(one))
            found.append((seen, sum(float(answer.reward.sum()) for answer in answers.values())))
    finally:
        env.close()
    return found
