"""Native environments as single Gymnasium environments with numpy arrays, for use with other libraries."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from whorl.core import tree
from whorl.core.arrays import SUCCESS, SUCCESS_KEYS
from whorl.core.spec import ActionLeaf, Array, Continuous, Discrete, MultiDiscrete, TupleSpec, as_keyed
from whorl.envs.native import WORLDS
from whorl.envs.native.goal_world import GoalWorld


class WorldEnv(gymnasium.Env):
    """One copy of a registered native environment, with its own time limit; `options` go to its constructor."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, world_id: str, render_mode: str | None = None, **options: Any) -> None:
        self.world = WORLDS[world_id](1, **options)
        self.metadata = {**self.metadata, "render_fps": self.world.fps}
        self.render_mode = render_mode
        self.observation_space = _space(self.world.spec.observation)
        self.action_space = _space(self.world.spec.action)
        self.measures = tuple(name for name in self.world.spec.measures if name != SUCCESS)
        self.map_shape = self.world.map_shape
        self.parameters_of = self.world.spec.parameters_of
        if isinstance(self.world, GoalWorld):
            self.compute_reward = _of_arrays(self.world.compute_reward)
            self.compute_terminated = _of_arrays(self.world.compute_terminated)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs = self.world.reset(int(self.np_random.integers(2**31)))
        return self._out(obs), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.world.step(_canonical(self.world.spec.action, action))
        ends = bool(step.terminated), bool(step.truncated)
        return self._out(step.obs), float(step.reward), *ends, self._info()

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of the agent on the map."""
        assert self.map_shape is not None
        return divmod(int(self.world.cells()), self.map_shape[1])

    def render(self) -> Any:
        return self.world.render(0) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.world.close()

    def _info(self) -> dict[str, Any]:
        """The measures of the episode so far, and the position, where there is a map."""
        names = [SUCCESS_KEYS[0] if name == SUCCESS else name for name in self.world.spec.measures]
        found: dict[str, Any] = dict(zip(names, map(float, self.world.measure(self.world.state))))
        return found | ({} if self.map_shape is None else {"position": self.position})

    def _out(self, obs: tree.Tree) -> Any:
        return tree.map(lambda leaf: leaf[0].cpu().numpy(), obs)


def _of_arrays(function: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    """A function of goals for numpy arrays, as Gymnasium-Robotics defines them."""

    def call(achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return function(torch.as_tensor(achieved_goal), torch.as_tensor(desired_goal)).numpy()

    return call


def _space(spec: Any) -> spaces.Space[Any]:
    """The Gymnasium space of an observation or action tree."""
    if isinstance(spec, TupleSpec):
        return spaces.Tuple([_space(value) for value in spec.values()])
    if isinstance(spec, dict):
        return spaces.Dict({key: _space(value) for key, value in spec.items()})
    if isinstance(spec, Array):
        return spaces.Box(spec.low, spec.high, spec.shape, np.dtype(spec.dtype))
    if isinstance(spec, Continuous):
        low, high = (np.array(x, np.float32).reshape(spec.shape) for x in (spec.low, spec.high))
        return spaces.Box(low, high, dtype=np.float32)
    if isinstance(spec, Discrete):
        return spaces.Discrete(spec.n, start=spec.start)
    return spaces.MultiDiscrete(spec.nvec)


def _canonical(spec: Any, action: Any) -> tree.Tree:
    """The inverse of `whorl.core.spec.to_env`, with an environment axis of length 1."""

    def leaf(a: ActionLeaf, value: Any) -> torch.Tensor:
        if isinstance(a, Discrete):
            return torch.as_tensor([int(value) - a.start])
        if isinstance(a, MultiDiscrete):
            return torch.as_tensor(np.asarray(value)[None])
        flat = np.asarray(value, np.float32).reshape(1, -1)
        bounds = zip(a.low, a.high, a.bounded)
        scaled = [
            2 * (x - low) / (high - low) - 1 if bounded else x
            for x, (low, high, bounded) in zip(flat[0], bounds)
        ]
        return torch.tensor([scaled])

    return tree.map(leaf, spec, as_keyed(spec, action))
