"""Environments with goals: the keys of their observations, and their rewards as a function of goals."""

from typing import Protocol

from torch import Tensor

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""keys of the observation, as in Gymnasium-Robotics"""


class GoalRewards(Protocol):
    """The reward of an environment as a function of goals, for any number of rows."""

    on_device: bool
    """whether these are functions of tensors on any device, which can be recorded in a CUDA graph; otherwise tensors
    must be in host memory"""
    terminates: bool
    """whether episodes end at some goals, so that `terminated` has to be asked"""

    def reward(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Rewards [N] of steps that led to goals `achieved` [N, ...] while `desired` [N, ...] were wanted."""

    def terminated(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """[N] bool: whether these steps end an episode in a terminal state."""
