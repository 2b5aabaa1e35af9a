"""Rewards of an environment as a function of goals: its `compute_reward` and `compute_terminated`.

They take arrays of goals [N, ...] and return arrays [N], as in Gymnasium-Robotics. `info` is empty, because the replay
buffer does not store it.
"""

from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import torch
from torch import Tensor

from whorl.core.errors import EnvError
from whorl.core.goals import ACHIEVED, DESIRED, GoalRewards
from whorl.core.spec import Spec

ROWS = 3
"""goals given at once to see whether a function takes arrays of them"""


def goal_rewards(make: Callable[[], Any], on_device: bool, spec: Spec, id: str) -> GoalRewards | None:
    """The rewards of an environment with this spec; None if it has no goals or no `compute_reward`.

    Args:
        make: makes the environment.
        on_device: whether its functions take tensors, as those of native environments do; otherwise numpy arrays.
        id: a name for messages.
    """
    keys = spec.observation if isinstance(spec.observation, dict) else {}
    rewards = EnvGoalRewards(make, on_device, id)
    if not {ACHIEVED, DESIRED} <= keys.keys() or rewards.function("compute_reward") is None:
        return None
    rewards.check(*(np.zeros((ROWS, *keys[key].shape), keys[key].dtype) for key in (ACHIEVED, DESIRED)))
    return rewards


class EnvGoalRewards(GoalRewards):
    """`GoalRewards` of an environment, which each process makes for itself."""

    terminates = False

    def __init__(self, make: Callable[[], Any], on_device: bool, id: str) -> None:
        self._make, self.on_device, self.id = make, on_device, id
        self._env: Any = None

    def check(self, achieved: np.ndarray, desired: np.ndarray) -> None:
        """Raise if the functions do not take arrays of goals; see whether goals end episodes. These must be equal."""
        goals = torch.from_numpy(achieved), torch.from_numpy(desired)
        self._check_shape("compute_reward", self._call("compute_reward", *goals))
        if self.function("compute_terminated") is None:
            return
        found = self._call("compute_terminated", *goals)
        # These goals are equal, so achieved: in continuing tasks it is False even for them.
        self.terminates = bool(found.any())
        if self.terminates:
            self._check_shape("compute_terminated", found)

    def reward(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return self._call("compute_reward", achieved, desired).float()

    def terminated(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return self._call("compute_terminated", achieved, desired).bool()

    def function(self, name: str) -> Any:
        """The function of that name of the environment or of a wrapper around it; None if there is none."""
        if self._env is None:
            self._env = self._make()
        if isinstance(self._env, gymnasium.Env):
            return self._env.get_wrapper_attr(name) if self._env.has_wrapper_attr(name) else None
        return getattr(self._env, name, None)

    def _call(self, name: str, achieved: Tensor, desired: Tensor) -> Tensor:
        function = self.function(name)
        if self.on_device:
            return function(achieved, desired, {})
        try:
            return torch.from_numpy(np.asarray(function(achieved.numpy(), desired.numpy(), {})))
        except Exception as error:  # an environment may raise anything
            raise EnvError(f"{name} of {self.id} failed for arrays of goals: {error!r}") from error

    def _check_shape(self, name: str, found: Tensor) -> None:
        if found.shape != (ROWS,):
            shape = "one value" if found.dim() == 0 else f"the shape {tuple(found.shape)}"
            raise EnvError(
                f"{name} of {self.id} returned {shape} for {ROWS} goals, but her calls it with arrays of goals and "
                f"expects one value for each; let it compute along the last axis"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_env": None, "_make": cloudpickle.dumps(self._make)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make = cloudpickle.loads(state["_make"])
