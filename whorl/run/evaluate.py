"""Episodes with a fixed policy: evaluation never touches a training stream."""

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch

from whorl import tree
from whorl.agent import Agent, Context
from whorl.envs.vector import VectorEnv


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


@torch.no_grad()
def run_episodes(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    watch: Any = None,
) -> Evaluation:
    """Play until `episodes` episodes are over, the same number (give or take one) on every lane.

    Taking the first episodes to finish would favour short ones. `watch(env, step)` is called after each step.
    """
    lanes = env.spec.lanes
    device = agent.device
    generator = torch.Generator(device).manual_seed(seed)
    quota = torch.tensor([episodes // lanes + (lane < episodes % lanes) for lane in range(lanes)])
    obs = tree.to(env.reset(seed), device)
    reset = torch.ones(lanes, dtype=torch.bool, device=device)
    memory = agent.initial_memory(lanes)
    total = torch.zeros(lanes, dtype=torch.float64)
    length = torch.zeros(lanes, dtype=torch.int64)
    returns: list[list[float]] = [[] for _ in range(lanes)]
    lengths: list[list[int]] = [[] for _ in range(lanes)]
    while bool((quota > 0).any()):
        acted = agent.act(obs, memory, Context(reset, generator, greedy=deterministic))
        memory = acted.memory
        step = env.step(acted.action)
        obs, reset = tree.to(step.obs, device), step.reset.to(device)
        real = ~step.reset.cpu()
        total += step.reward.double().cpu() * real
        length += real
        ended = (step.terminated | step.truncated).cpu()
        for lane in ended.nonzero()[:, 0].tolist():
            if quota[lane] > 0:
                returns[lane].append(float(total[lane]))
                lengths[lane].append(int(length[lane]))
                quota[lane] -= 1
            total[lane], length[lane] = 0.0, 0
        if watch is not None:
            watch(env, step)
    return Evaluation([x for lane in returns for x in lane], [x for lane in lengths for x in lane])
