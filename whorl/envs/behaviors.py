"""Environments whose agents have several behaviours, each with spaces and a policy of its own.

A behaviour is a group of agents that share one policy. Each of its agents is one row of a batch, as if it were an
environment; a row whose agent is dead or has not appeared yet *waits* (see `whorl.envs.vector.Step`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core.errors import EnvError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.envs.vector import Step, VectorEnv


class BehaviorEnv(Protocol):
    """Copies of an environment that are stepped together, with the actions of all behaviours at once."""

    id: str
    snapshots: bool
    """whether `snapshot` saves the exact state"""
    specs: Mapping[str, Spec]
    """of each behaviour, by name; its `num_envs` is the number of its agents in all copies"""
    copies: int = 1
    """copies of the environment; rows of a behaviour are the agents of one copy after another"""
    together: bool = False
    """whether the agents of a copy play one episode together; false: each has episodes of its own"""

    def reset(self, seed: int) -> dict[str, Tree]:
        """Reset all copies and seed their random numbers; the first observations of each behaviour [B, ...]."""

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Step all copies; a copy whose agents are all gone is reset instead."""

    def snapshot(self) -> dict[str, Any]:
        """Tensors and plain containers from which `restore` continues exactly."""
        raise EnvError(f"{self.id} has no snapshots")

    def restore(self, snapshot: dict[str, Any]) -> dict[str, Tree]:
        """Continue from a snapshot; the current observations of each behaviour."""
        raise EnvError(f"{self.id} has no snapshots")

    def render(self, env_index: int = 0) -> Any:
        """One uint8 RGB frame [H, W, 3] of one copy, or None where it does not render."""
        return None

    def ended(self) -> Tensor:
        """[copies] bool: all agents are gone, so that the next step resets the copy; never where agents come and go."""
        return torch.zeros(self.copies, dtype=torch.bool)

    def close(self) -> None:
        """Free what the environment holds."""


class OneBehavior(VectorEnv):
    """The only behaviour of a `BehaviorEnv` as a batch of environments."""

    waits = True

    def __init__(self, env: BehaviorEnv) -> None:
        self.env, self.id, self.snapshots = env, env.id, env.snapshots
        ((self._name, self.spec),) = env.specs.items()
        self.players = self.spec.num_envs // env.copies if env.together else 1

    def reset(self, seed: int) -> Tree:
        return self.env.reset(seed)[self._name]

    def step(self, action: Tree) -> Step:
        return self.env.step({self._name: action})[self._name]

    def snapshot(self) -> dict[str, Any]:
        return self.env.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        return self.env.restore(snapshot)[self._name]

    def render(self, env_index: int = 0) -> Any:
        return self.env.render(env_index * self.env.copies // self.spec.num_envs)

    def close(self) -> None:
        self.env.close()
