"""Episodes with a fixed policy: evaluation never touches a training stream."""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch

from whorl.agents.agent import Agent, Context
from whorl.collect.collector import acting
from whorl.core import tree
from whorl.data.batch import remember
from whorl.envs.vector import Step, VectorEnv


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of whole episodes."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)

    @property
    def std(self) -> float:
        return pstdev(self.returns)

    @property
    def mean_length(self) -> float:
        return fmean(self.lengths)

    def metrics(self) -> dict[str, float]:
        return {
            "evaluation/return": self.mean_return,
            "evaluation/return_std": self.std,
            "evaluation/return_min": min(self.returns),
            "evaluation/return_max": max(self.returns),
            "evaluation/length": self.mean_length,
        }


SYNC_EVERY = 32
"""steps between looks at a GPU for whether all episodes are over"""
LONGEST = 100_000
"""steps after which an episode that does not end is counted as it stands"""


def run_episodes(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    watch: Callable[[VectorEnv, Step], None] | None = None,
) -> Evaluation:
    """Play until `episodes` episodes are over, the same number (give or take one) on every environment.

    Taking the first episodes to finish would favour short ones. `watch(env, step)` is called after each step.
    """
    num_envs, device = env.spec.num_envs, agent.device
    generator = torch.Generator(device).manual_seed(seed)
    most = -(-episodes // num_envs)
    quota = torch.tensor(
        [episodes // num_envs + (env_index < episodes % num_envs) for env_index in range(num_envs)],
        device=device,
    )
    # One column per environment, one row per episode, and a spare row that takes what is beyond the quota.
    returns = torch.zeros(most + 1, num_envs, dtype=torch.float64, device=device)
    lengths = torch.zeros(most + 1, num_envs, dtype=torch.int64, device=device)
    episode = torch.zeros(1, num_envs, dtype=torch.int64, device=device)
    obs = tree.to(env.reset(seed), device)
    reset = torch.ones(num_envs, dtype=torch.bool, device=device)
    memory = agent.initial_memory(num_envs)
    with acting(device):
        for number in itertools.count(1):
            acted = agent.act(obs, memory, Context(reset, generator, greedy=deterministic))
            step = env.step(acted.action)
            memory = remember(acted.memory, acted.action, step.reward.to(device, copy=True))
            obs, reset = tree.to(step.obs, device), step.reset.to(device, copy=True)
            at = torch.minimum(episode, quota)
            returns.scatter_add_(0, at, step.reward.to(device, torch.float64).unsqueeze(0))
            lengths.scatter_add_(0, at, (~reset).long().unsqueeze(0))
            episode += (step.terminated | step.truncated).to(device)
            if watch is not None:
                watch(env, step)
            if (device.type == "cpu" or number % SYNC_EVERY == 0) and bool((episode[0] >= quota).all()):
                break
            if number == LONGEST:
                warnings.warn(
                    f"{env.id}: an episode did not end in {LONGEST} steps; give it a time limit", stacklevel=2
                )
                break
    counted = (torch.arange(most + 1, device=device).unsqueeze(1) < quota) & (lengths > 0)
    return Evaluation(returns[counted].tolist(), lengths[counted].tolist())
