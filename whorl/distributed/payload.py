"""What an actor makes of a rollout before it is sent: nothing, first priorities for replay, or gradients."""

from collections.abc import Sequence
from itertools import count
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Storage
from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.initial_priorities import InitialPriorities


class Payload(Protocol):
    """What a trajectory holds."""

    tensors: dict[str, Tree]
    """the same ones for every rollout"""

    def load(self, rollout: Batch) -> None:
        """Fill them; rows of the rollout are in its storage already."""


class Rows:
    """The rollout as it is."""

    def __init__(self, agent: Agent, storage: Storage, gamma: float, seed: int) -> None:
        self.tensors = storage.tensors

    def load(self, rollout: Batch) -> None:
        """All is there."""


class PrioritizedRowsPayload:
    """The rollout, and how wrong the actor's copy of the agent is about the samples that it completes (Ape-X)."""

    def __init__(self, agent: Agent, storage: Storage, gamma: float, seed: int) -> None:
        _prepare(agent, seed)
        spec = agent.spec.with_num_envs(storage.reset.shape[1])
        self._appraisal = InitialPriorities(
            agent.cfg, spec, agent.device, agent.errors, agent.stored(), storage.steps
        )
        self.tensors = {**storage.tensors, "first": self._appraisal.empty()}

    def load(self, rollout: Batch) -> None:
        self.tensors["first"].copy_(self._appraisal.add(rollout))


class Gradients:
    """What one update from the rollout would be: of every optimizer its gradients, clipped, and its rate (A3C).

    The agent's own weights stay as they are: new ones come from the learner.
    """

    _advice: ClassVar[str] = "leave actor_gradients out"

    def __init__(self, agent: Agent, storage: Storage, gamma: float, seed: int) -> None:
        self.agent = agent
        _prepare(agent, seed)
        self._found: dict[str, dict[str, Tree]] = {}
        agent.export_gradients(self._take)
        if isinstance(agent.cfg, ReplayConfig):
            raise ConfigError(
                "actor_gradients is for algorithms that learn from each rollout once, but "
                f"{type(agent).__name__} learns from replay; {self._advice}"
            )
        for setting in ("normalize_obs", "normalize_reward"):
            if getattr(agent.cfg, setting, False):
                raise ConfigError(
                    f"{setting} follows all rows, but with actor_gradients each actor sees its own alone; leave "
                    f"{setting} out, or {self._advice}"
                )
        updated = agent.update(storage.batch(gamma))
        metrics = {name: torch.zeros_like(value) for name, value in updated.metrics.items()}
        self.tensors: dict[str, Tree] = {"steps": self._found, "metrics": metrics}
        self._found = {}

    def load(self, rollout: Batch) -> None:
        self._found = {}
        updated = self.agent.update(rollout)
        self.tensors = {"steps": self._found, "metrics": updated.metrics}

    def _take(self, name: str, gradients: Sequence[Tensor], rate: Tensor) -> None:
        if name in self._found:
            raise ConfigError(
                f"an update of {type(self.agent).__name__} takes several steps of its {name}, each from where the last "
                f"one led; gradients can travel only where there is one; {self._advice}"
            )
        numbered = {str(number): gradient for number, gradient in enumerate(gradients)}
        self._found[name] = {"gradient": numbered, "rate": rate.clone()}


def _prepare(agent: Agent, seed: int) -> None:
    """What an update draws at random, in an actor, comes from streams of its own."""
    numbers = count(seed)
    agent.prepare(agent.device, lambda name: torch.Generator(agent.device).manual_seed(next(numbers)))
