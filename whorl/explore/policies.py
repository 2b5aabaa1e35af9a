"""A family of policies from exploiting to exploring, and a bandit per environment that chooses among them."""

from dataclasses import dataclass, replace
from math import log
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whorl.agents.agent import Acted, Context
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.tree import Tree
from whorl.data.batch import LAST, POLICY, Batch, Rows
from whorl.explore.noise import random_action
from whorl.nets.q_network import choices_of
from whorl.ops.sums import sums_by
from whorl.settings.schema import Fraction, NonNegative, Range

FAMILY = "family"
"""the part of an agent's memory that holds the policy of each environment"""
BEHAVIOUR = "behaviour"
"""column: the probability with which an action was taken"""


@dataclass(frozen=True)
class PoliciesConfig:
    """Settings of a family of policies that share their networks (Badia et al. 2020, NGU)."""

    num_policies: Annotated[int, Range(1, 1_000)] = 32
    """policies, each with its weight beta of the intrinsic reward and its discount; number 0 has beta 0, unless it is
    the only one"""
    max_beta: NonNegative = 0.3
    """beta of the policy that explores most"""
    max_gamma: Fraction = 0.997
    """discount of policy 0"""
    min_gamma: Fraction = 0.99
    """discount of the policy that explores most"""
    relabel: Fraction = 0.0
    """share of the sampled sequences from which policy 0 learns in place of the policy that acted; 0: as published"""

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """What the memory reads besides the observation: the intrinsic reward and the policy, too."""
        inherited: Any = super()
        return (*inherited.memory_inputs, "streams", POLICY)


def betas(count: int, most: float) -> Tensor:
    """beta_0 = 0, beta_{N-1} = most, else most * sigmoid(10 (2i - (N - 2)) / (N - 2)) (NGU, appendix A): [N].

    A single policy has beta = most, as in the paper's experiments with N = 1.
    """
    number = torch.arange(count)
    found = most * torch.sigmoid(10 * (2 * number - (count - 2)) / max(count - 2, 1))
    found[0] = 0.0
    found[-1] = most
    return found


def gammas(count: int, most: float, least: float) -> Tensor:
    """gamma_i = 1 - exp(((N - 1 - i) ln(1 - most) + i ln(1 - least)) / (N - 1)) (NGU, appendix A): [N]."""
    number = torch.arange(count, dtype=torch.float64)
    last = max(count - 1, 1)
    return (1 - (((last - number) * log(1 - most) + number * log(1 - least)) / last).exp()).float()


def relabelled(agent: Any, batch: Batch) -> Batch:
    """The batch with policy 0 in place of the one that acted in a share `relabel` of its sequences.

    Retrace corrects for the actions, which are not those of policy 0. Without it, policy 0 does not learn what follows
    after actions that only explorers take: the network reads the number of the policy and need not generalise over it.
    """
    if not agent.cfg.relabel:
        return batch
    index = batch.last[POLICY]  # [T+1, B]
    drawn = torch.rand(index.shape[1], generator=agent.random("critic"), device=index.device)
    return batch.replace(last={**batch.last, POLICY: index.masked_fill(drawn < agent.cfg.relabel, 0)})


@dataclass(frozen=True)
class BanditConfig:
    """Settings of the bandit that chooses a policy for each episode (Badia et al. 2020, Agent57)."""

    bandit_window: Annotated[int, Range(1, 100_000)] = 160
    """episodes of an environment that its bandit remembers; at least num_policies"""
    bandit_beta: NonNegative = 1.0
    """weight of the bonus sqrt(1 / visits)"""
    bandit_epsilon: Fraction = 0.5
    """probability of a random policy"""


class Bandit:
    """Sliding-window UCB over arms, one for each environment, as tensors over all of them.

    arm = argmax_k mean_k + beta * sqrt(1 / n_k), mean and visits n over the last `window` episodes. First every arm is
    tried once; later an arm without visits in the window comes next. With probability epsilon the arm is random.
    """

    def __init__(self, arms: int, window: int, beta: float, epsilon: float) -> None:
        self.arms, self.window, self.beta, self.epsilon = arms, window, beta, epsilon

    def initial(self, num_envs: int) -> Tree:
        return {
            "arms": torch.zeros(num_envs, self.window, dtype=torch.int64),
            "returns": torch.zeros(num_envs, self.window),
            "count": torch.zeros(num_envs, dtype=torch.int64),
        }

    def add(self, state: Tree, where: Tensor, arm: Tensor, value: Tensor) -> Tree:
        """The state after episodes with `arm` [B] ended with the return `value` [B], in the environments `where`."""
        place = (state["count"] % self.window).unsqueeze(1)

        def put(column: Tensor, entry: Tensor) -> Tensor:
            old = column.gather(1, place)
            return column.scatter(1, place, torch.where(where.unsqueeze(1), entry.unsqueeze(1), old))

        return {
            "arms": put(state["arms"], arm),
            "returns": put(state["returns"], value),
            "count": state["count"] + where,
        }

    def scores(self, state: Tree) -> Tensor:
        """mean + beta * sqrt(1 / visits) of every arm, infinite without visits: [B, arms]."""
        filled = torch.arange(self.window, device=state["count"].device) < state["count"].unsqueeze(1)
        visits = sums_by(state["arms"], filled.float(), self.arms)
        total = sums_by(state["arms"], torch.where(filled, state["returns"], 0.0), self.arms)
        known = visits.clamp(min=1)
        return torch.where(visits > 0, total / known + self.beta * known.rsqrt(), torch.inf)

    def choose(self, state: Tree, generator: torch.Generator) -> Tensor:
        """The arm of the next episode [B]."""
        count, device = state["count"], state["count"].device
        drawn = torch.rand(2, count.shape[0], generator=generator, device=device)
        anything = (drawn[1] * self.arms).long().clamp(max=self.arms - 1)
        best = torch.where(drawn[0] < self.epsilon, anything, self.scores(state).argmax(1))
        return torch.where(count < self.arms, count, best)


def require_policies(agent: Any) -> None:
    """Raise if an agent with a family of policies lacks the memory or the intrinsic reward that it reads."""
    cfg, name = agent.cfg, type(agent).__name__
    choices_of(agent.spec, name)
    if cfg.memory == "none":
        raise ConfigError(f"{name} is recurrent, but memory is none; choose lstm, gru or attention")
    if not agent.spec.streams:
        raise ConfigError(f"{name} explores by an intrinsic reward, but has none; use components: [episodic]")
    if max(cfg.max_gamma, cfg.min_gamma) == 1:
        raise ConfigError(
            f"max_gamma is {cfg.max_gamma:g} and min_gamma {cfg.min_gamma:g}, but the discounts between them are "
            "spaced by the logarithm of 1 - gamma; use numbers below 1"
        )
    if Part.of(cfg.exploration).name != "epsilon":
        raise ConfigError(
            f"{name} explores by epsilon-greedy policies, but exploration is {Part.of(cfg.exploration).name!r}"
        )


def draw_policy(agent: Any, context: Context) -> Tensor:
    """A policy for each environment, uniformly: [B]."""
    count = agent.cfg.num_policies
    drawn = torch.rand(context.reset.shape[0], generator=context.generator, device=agent.device)
    return (drawn * count).long().clamp(max=count - 1)


def act_as(agent: Any, index: Tensor, obs: Tree, memory: Tree, context: Context) -> Acted:
    """Actions of the policies `index` [B], epsilon-greedy on their Q values.

    Columns: the policies, and the probabilities of the actions.
    """
    memory = {**memory, LAST: {**memory[LAST], POLICY: index}}
    q, after = agent.evaluate_row(agent.observations(obs), memory, context.reset)
    if context.random:
        action = random_action(agent.spec, obs, context.generator)
    else:
        action = agent.explore(q, obs, context, agent.progress)
    behaviour = agent.explore.probability(q, action, obs, context, agent.progress)
    after = {**memory, **after, FAMILY: {**memory[FAMILY], "index": index}}
    return Acted(action, after, {POLICY: index, BEHAVIOUR: behaviour})


def as_policy(rows: Rows, index: Tensor | int) -> Rows:
    """The same rows for networks that read the policy, of this number."""
    policy = torch.zeros_like(rows.reset, dtype=torch.int64) + index
    return replace(rows, last={**rows.last, POLICY: policy}, summaries={})


class PolicyReturns(nn.Module):
    """Recent returns of episodes by policy, from which evaluation takes the best one."""

    mean: Tensor
    count: Tensor

    def __init__(self, policies: int, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(policies))
        self.register_buffer("count", torch.zeros(policies))

    @torch.no_grad()
    def add_(self, policy: Tensor, value: Tensor) -> None:
        """Episodes that ended, of `policy` [...] with return `value` [...]; -1: none."""
        policy, value = policy.flatten(), value.flatten()
        ended = (policy >= 0).float()
        place = policy.clamp(min=0)
        count = sums_by(place, ended, len(self.count))
        total = sums_by(place, torch.where(ended > 0, value, 0.0), len(self.mean))
        keep = torch.where(self.count > 0, (1 - self.rate) ** count, (count == 0).float())
        self.mean.copy_(keep * self.mean + (1 - keep) * total / count.clamp(min=1))
        self.count.add_(count)

    def best(self) -> Tensor:
        """The policy with the best returns; 0 before any episode has ended."""
        return torch.where(self.count > 0, self.mean, -torch.inf).argmax()
