"""Base class of native environments: one implementation for CPU and CUDA, for one environment or a hundred thousand.

A subclass defines how an episode starts, how it advances and what is observed; `World` adds the time limit, next-step
autoreset, snapshots and seeding. `step` never waits for the device and writes its state in place, so a rollout can be
captured in a CUDA graph, with `generator` registered with the graph.
"""

import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from whorl.core import messages, tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError, EnvError
from whorl.core.spec import Spec
from whorl.envs.vector import Mapped, Step, VectorEnv

State: TypeAlias = dict[str, Tensor]
"""Tensors whose LAST axis is the environments, so that components are contiguous rows and flags [B] broadcast."""


class World(VectorEnv, Mapped, ABC):
    """`num_envs` copies. A subclass sets `id`, `max_steps` and `spec`, and defines the three abstract methods."""

    spec: Spec
    max_steps: int
    """steps after which an episode is truncated"""
    training_options: ClassVar[tuple[str, ...]] = ()
    """options that change episodes of training alone: evaluations are played without them"""
    fps: ClassVar[int] = 50
    """steps per second of simulated time"""
    snapshots = True
    capturable = True

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device)
        self.state: State = {}
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.returns = torch.zeros(num_envs, device=self.device)
        """[B] undiscounted return of the episode so far"""
        self.ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        """[B] the episode ended: the next step resets the environment"""
        self.hit_reward = math.inf
        """reward that makes an episode a success; see `count_hits`"""
        self.hit = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        """[B] whether the episode had such a reward"""
        self._own: list[int] = []

    def count_hits(self, least: float) -> None:
        """From now on an episode is a success once one of its rewards was at least `least`."""
        self.hit_reward = least
        others = tuple(name for name in self.spec.measures if name != SUCCESS)
        self._own = [index for index, name in enumerate(self.spec.measures) if name != SUCCESS]
        self.spec = replace(self.spec, measures=(*others, SUCCESS))

    @abstractmethod
    def initial(self, generator: torch.Generator) -> State:
        """A new first state for every environment; it is read only where `ended` is true."""

    @abstractmethod
    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        """The next state, reward [B], terminated [B]. Does not write to `state`; draws from `self.generator` only."""

    @abstractmethod
    def observe(self, state: State) -> tree.Tree:
        """Observations [B, ...] that share no memory with `state`."""

    def measure(self, state: State) -> Sequence[Tensor]:
        """Numbers [B] about the episode so far, in the order of the spec's `measures`."""
        return ()

    def traces(self, env_index: int) -> dict[str, dict[str, float]]:
        """Panels of named numbers that are drawn over time beside the picture; see `whorl.envs.vector.Traced`."""
        return {}

    def remember(self, state: State, before: State | None) -> State:
        """`state` with entries that depend on the state `before`, which is None at the start of an episode."""
        return state

    @torch.no_grad()
    def reset(self, seed: int) -> tree.Tree:
        self.generator.manual_seed(seed)
        self.ended.fill_(True)
        self._write(self.remember(self.initial(self.generator), None))
        self.steps.zero_()
        self.returns.zero_()
        self.ended.zero_()
        self.hit.zero_()
        return self.observe(self.state)

    @torch.no_grad()
    def step(self, action: tree.Tree) -> Step:
        if not self.state:
            raise EnvError(f"{self.id} has no state yet; call reset(seed) before the first step")
        reset = self.ended.clone()
        fresh = self.remember(self.initial(self.generator), None)
        stepped, reward, terminated = self.advance(self.state, action)
        stepped = self.remember(stepped, self.state)
        # Select for all keys before writing any: a new tensor may be a view of another key's old one.
        self._write({key: torch.where(reset, fresh[key], stepped[key]) for key in self.state})
        reward = reward.masked_fill(reset, 0)
        terminated = terminated & ~reset
        self.steps.add_(1).masked_fill_(reset, 0)
        self.returns.masked_fill_(reset, 0).add_(reward)
        truncated = (self.steps >= self.max_steps) & ~terminated
        torch.logical_or(terminated, truncated, out=self.ended)
        step = Step(self.observe(self.state), reward, terminated, truncated, reset)
        if self.spec.measures:
            step.measures = torch.stack([x.float() for x in self._measures(reward, reset)], 1)  # [B, N]
        if self.spec.map_shape is not None:
            step.cells = self.cells()
        return step

    def _measures(self, reward: Tensor, reset: Tensor) -> Sequence[Tensor]:
        found = self.measure(self.state)
        if self.hit_reward == math.inf:
            return found
        self.hit.logical_or_(reward >= self.hit_reward).logical_and_(~reset)  # a reset is no step
        return [*(found[index] for index in self._own), self.hit]

    def snapshot(self) -> dict[str, Any]:
        counters = {"steps": self.steps, "returns": self.returns, "ended": self.ended, "hit": self.hit}
        return tree.clone({"state": self.state, **counters, "generator": self.generator.get_state()})

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Any]) -> tree.Tree:
        num_envs = snapshot["steps"].shape[0]
        if num_envs != self.num_envs:
            raise EnvError(
                f"the snapshot has {num_envs} environments of {self.id}, but this has {self.num_envs}; use {num_envs}"
            )
        self._write(snapshot["state"])
        self.steps.copy_(snapshot["steps"])
        self.returns.copy_(snapshot["returns"])
        self.ended.copy_(snapshot["ended"])
        self.hit.copy_(snapshot.get("hit", torch.zeros_like(self.hit)))  # runs of earlier versions have none
        self.generator.set_state(snapshot["generator"].cpu())
        return self.observe(self.state)

    def state_tensors(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        return [*self.state.values(), self.steps, self.returns, self.ended, self.hit]

    def _write(self, state: State) -> None:
        """Copy `state` into the buffers, which are allocated by the first call and never move."""
        if not self.state:
            self.state = {
                key: torch.empty(x.shape, dtype=x.dtype, device=self.device) for key, x in state.items()
            }
        tree.copy_(self.state, state)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` fused by torch.compile, which needs a C++ compiler for CPU and CUDA."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl"]
    if not any(shutil.which(name) for name in names if name):
        messages.warn("compile=True needs a C++ compiler and none was found; running eagerly")
        return fn
    return torch.compile(fn, dynamic=False)
