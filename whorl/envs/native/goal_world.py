"""Native environments with goals, observed as in Gymnasium-Robotics: observation, achieved_goal and desired_goal.

`compute_reward` and `compute_terminated` are functions of tensors, so that hindsight experience replay samples on the
device (`whorl.data.hindsight`). The reward is 0 where the achieved goal is the desired one, and -1 elsewhere.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec, SpecTree
from whorl.envs.native.world import State, World


class GoalWorld(World):
    """A subclass defines `move`, `seen`, `achieved` and `matches`. Its state has `goal` [G, B], among others.

    Args:
        sizes: numbers in the observation and in a goal, which are within `bounds`.
        terminates: whether an episode ends when the goal is achieved.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        action: SpecTree,
        sizes: tuple[int, int],
        bounds: tuple[float, float],
        max_steps: int,
        terminates: bool,
    ) -> None:
        super().__init__(num_envs, device)
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1")
        self.max_steps, self.terminates = max_steps, terminates
        goal = Array((sizes[1],), "float32", *bounds)
        parts = {
            "observation": Array((sizes[0],), "float32", *bounds),
            "achieved_goal": goal,
            "desired_goal": goal,
        }
        self.spec = Spec(parts, action, num_envs, (SUCCESS,))

    @abstractmethod
    def move(self, state: State, action: tree.Tree) -> State:
        """The next state."""

    @abstractmethod
    def seen(self, state: State) -> Tensor:
        """What is observed besides goals [N, B]."""

    @abstractmethod
    def achieved(self, state: State) -> Tensor:
        """The goal achieved [G, B]."""

    @abstractmethod
    def matches(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """[...] bool: whether achieved goals [..., G] are the desired ones."""

    def compute_reward(self, achieved_goal: Tensor, desired_goal: Tensor, info: Any = None) -> Tensor:
        """Rewards [...] of steps that achieved goals [..., G]."""
        return self.matches(achieved_goal, desired_goal).float() - 1

    def compute_terminated(self, achieved_goal: Tensor, desired_goal: Tensor, info: Any = None) -> Tensor:
        """[...] bool: whether steps that achieved goals [..., G] end the episode."""
        found = self.matches(achieved_goal, desired_goal)
        return found if self.terminates else torch.zeros_like(found)

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        new = self.move(state, action)
        goals = self.achieved(new).T, new["goal"].T
        return new, self.compute_reward(*goals), self.compute_terminated(*goals)

    def observe(self, state: State) -> tree.Tree:
        return {
            "observation": self.seen(state).T.clone(),
            "achieved_goal": self.achieved(state).T.clone(),
            "desired_goal": state["goal"].T.clone(),
        }

    def measure(self, state: State) -> Sequence[Tensor]:
        return [self.matches(self.achieved(state).T, state["goal"].T)]

    def clock(self, env_index: int) -> dict[str, str]:
        """What every frame shows."""
        return {
            "step": f"{int(self.steps[env_index])} of {self.max_steps}",
            "return": f"{float(self.returns[env_index]):.0f}",
        }
