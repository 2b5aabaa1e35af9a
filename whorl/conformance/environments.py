"""Toy environments: random episodes for any spec, and a walk with known values."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.spec import (
    MASK_KEY,
    Array,
    Continuous,
    Spec,
    SpecTree,
    empty_action,
    empty_obs,
    flatten_action,
)
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.envs.vector import Step, VectorEnv


class RandomWorld(VectorEnv):
    """Random observations of any spec in episodes of random length, half of them terminated, half truncated."""

    id, snapshots, capturable = "conformance", False, False

    def __init__(self, spec: Spec, end: float = 0.15) -> None:
        self.spec, self.end = spec, end
        self.generator = torch.Generator()
        self.over = torch.zeros(spec.num_envs, dtype=torch.bool)

    def reset(self, seed: int) -> Tree:
        self.generator.manual_seed(seed)
        self.over.zero_()
        return self._observe()

    def step(self, action: Tree) -> Step:
        reset = self.over
        chance = torch.rand(3, self.spec.num_envs, generator=self.generator)
        ended = (chance[0] < self.end) & ~reset
        terminated = ended & (chance[1] < 0.5)
        self.over = ended
        return Step(self._observe(), chance[2] * ~reset, terminated, ended & ~terminated, reset)

    def close(self) -> None:
        """There is nothing to close."""

    def _observe(self) -> Tree:
        empty = empty_obs(self.spec.observation, (self.spec.num_envs,))
        obs = tree.map(self._fill, empty)
        if self.spec.masked:
            first = empty_action(self.spec.action, (self.spec.num_envs,))
            obs[MASK_KEY][choices_taken(self.spec.action, first) > 0] = 1  # something is always allowed
        return obs

    def _fill(self, leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, generator=self.generator)
        high = 256 if leaf.dtype == torch.uint8 else 2
        return torch.randint(high, leaf.shape, generator=self.generator).to(leaf.dtype)


def choices_taken(spec: SpecTree, action: Tree) -> Tensor:
    """The discrete parts of an action, one-hot in the order of the flat action mask: [..., mask_size]."""
    pairs = zip(tree.leaves(spec), tree.leaves(action))
    return torch.cat([flatten_action(x, value) for x, value in pairs if not isinstance(x, Continuous)], -1)


class Walk:
    """State min(t, 5), one-hot; reward 1 for each step from state 5; actions have no effect.

    Truncated after 8 steps; a `terminal` walk terminates with the first step from state 5 instead.
    """

    id, snapshots, capturable = "walk", False, False
    STATES = 6

    def __init__(self, spec: Spec, terminal: bool = False) -> None:
        self.spec, self.terminal = spec, terminal
        self.limit = self.STATES if terminal else 8
        self.time = torch.zeros(spec.num_envs, dtype=torch.int64)

    @staticmethod
    def of(spec: Spec, terminal: bool = False) -> "Walk":
        """A walk with the number of environments and the actions of `spec`."""
        return Walk(replace(spec, observation=Array((Walk.STATES,))), terminal)

    def reset(self, seed: int) -> Tensor:
        # Environments start in different states, so that a rollout contains all of them.
        self.time.copy_(torch.arange(self.spec.num_envs) % self.limit)
        return self._observe()

    def step(self, action: Tensor) -> Step:
        reset = self.time == self.limit
        reward = ((self.time >= self.STATES - 1) & ~reset).float()
        self.time = torch.where(reset, 0, self.time + 1)
        ended = self.time == self.limit
        never = torch.zeros_like(ended)
        terminated, truncated = (ended, never) if self.terminal else (never, ended)
        return Step(self._observe(), reward, terminated, truncated, reset)

    def _observe(self) -> Tensor:
        return nn.functional.one_hot(self.time.clamp(max=self.STATES - 1), self.STATES).float()


def walk_states(spec: Spec) -> Batch:
    """All states of `Walk` in the order of an episode, with rewards 0."""
    obs = torch.eye(Walk.STATES).unsqueeze(1)  # [states, 1, states]
    none = torch.zeros(Walk.STATES, 1)
    reset = none > 0
    reset[0] = True
    last = {"action": empty_action(spec.action, (Walk.STATES, 1)), "reward": none}
    return Batch(obs, reset, {}, none, none, none, none, last=last)
