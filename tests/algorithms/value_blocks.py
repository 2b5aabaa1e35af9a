"""For the tests of value agents: small nets, nets whose answers are read off the observation, a world of known rows."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from replay_blocks import VECTOR, Plain, batch_of, says
from torch import Tensor

from whorl.agents.agent import Agent, Context
from whorl.collect.collector import LocalCollector
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec, SpecTree
from whorl.data.batch import Batch
from whorl.envs.adapters.gymnasium import GymnasiumVector

MASKED: dict[str, Any] = {"state": VECTOR, MASK_KEY: Array((3,), "int8", 0.0, 1.0)}


def build(
    cls: type[Agent],
    choices: int = 3,
    observation: SpecTree = VECTOR,
    num_envs: int = 2,
    seed: int = 0,
    **settings: Any,
) -> Any:
    """An agent with small nets, ready to learn."""
    torch.manual_seed(seed)
    agent = cls(
        Spec(observation, Discrete(choices), num_envs), cls.Config(**{"hidden_sizes": (8,), **settings})
    )
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(seed * 100 + len(name)))


def telling(cls: type[Agent], choices: int, columns: int = 1, masked: bool = False, **settings: Any) -> Any:
    """An agent that reads what its nets say off the observation: [target net or online net, choices, columns]."""
    said: Any = Array((2, choices, columns))
    if masked:
        said = {"said": said, MASK_KEY: Array((choices,), "int8", 0.0, 1.0)}
    agent = build(cls, choices, said, **settings)
    says(agent.target_critic, lambda obs: table(obs)[..., 0, :, :])
    says(agent.critic, lambda obs: table(obs)[..., 1, :, :])
    return agent


def table(obs: Any) -> Tensor:
    return obs["said"] if isinstance(obs, dict) else obs


def allowing(batch: Batch, now: Sequence[int], after: Sequence[int]) -> Batch:
    """The same rows for a masked agent, with masks [choices] of every row and of every successor."""
    mask = torch.tensor([now, after], dtype=torch.int8).unsqueeze(1)
    return batch.replace(obs={"said": batch.obs, MASK_KEY: mask.expand(-1, batch.shape[1], -1)})


def told(
    now: Tensor | Sequence[Any],
    after: Tensor | Sequence[Any],
    action: Sequence[int],
    reward: Sequence[float],
    discount: Sequence[float],
    judged: Tensor | Sequence[Any] | None = None,
    known: Tensor | Sequence[Any] | None = None,
) -> Batch:
    """Transitions for `telling` agents, whose nets say [B, choices, columns] (or [B, choices] of one column).

    Args:
        now: what the online net says of the rows.
        after: what the target net says of their successors.
        judged: what the online net says of the successors; as the target net, if not given.
        known: what the target net says of the rows; as the online net, if not given.
    """
    tables = [
        torch.as_tensor(table, dtype=torch.float32)
        for table in (now if known is None else known, now, after, after if judged is None else judged)
    ]
    target_now, online_now, target_next, online_next = (
        t.unsqueeze(-1) if t.dim() == 2 else t for t in tables
    )
    obs = torch.stack((torch.stack((target_now, online_now), 1), torch.stack((target_next, online_next), 1)))
    return batch_of(obs, torch.tensor([action]), list(reward), list(discount))


def plain_values(critic: Any) -> Plain:
    """A net of ours without streams or noise, written out in double."""
    return Plain(
        [(layer.weight, layer.bias) for layer in (*critic.advantage.hidden.layers, critic.advantage.last)]
    )


def context(num_envs: int, seed: int = 0, **given: Any) -> Context:
    return Context(torch.zeros(num_envs, dtype=torch.bool), torch.Generator().manual_seed(seed), **given)


def masked_obs(num_envs: int, allowed: Sequence[int]) -> dict[str, Tensor]:
    """Random states in which only some of three choices are allowed."""
    mask = torch.tensor([int(choice in allowed) for choice in range(3)], dtype=torch.int8)
    state = torch.randn(num_envs, 3, generator=torch.Generator().manual_seed(0))
    return {"state": state, MASK_KEY: mask.expand(num_envs, 3).clone()}


class Script(gymnasium.Env):
    """Rewards 1, 2, 3 and a terminal state; 4, 5 and a truncation; then 6, 7, 8, ... without an end.

    The observation is the number of the row, final and first ones included.
    """

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    ENDS = {3: "terminated", 5: "truncated"}  # noqa: RUF012 - a table

    def __init__(self) -> None:
        self.row, self.reward = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row += 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.row, self.reward = self.row + 1, self.reward + 1
        end = self.ENDS.get(self.reward)
        return self._observe(), float(self.reward), end == "terminated", end == "truncated", {}

    def _observe(self) -> np.ndarray:
        return np.array([self.row], np.float32)


def scripted(agent: Any, rows: int) -> tuple[Batch, dict[str, float]]:
    """So many rows of `Script`, and what the collector reports of them."""
    env = GymnasiumVector(Script, 1, "Script")
    collector = LocalCollector(env, agent, rows, torch.Generator().manual_seed(0))
    collector.reset(0)
    return collector.collect(), collector.episode_statistics.drain()
