"""Gymnasium's mountain car with a reward at the goal only: 1 on top of the right hill, 0 elsewhere.

The engine is too weak to climb the hill, so the car has to swing between both. Without the -1 per step of the original
nothing tells an agent to try: a random policy returns 0. Observed: position and velocity. Discrete actions: 0 left, 1
nothing, 2 right, and the goal at 0.5 (`MountainCar-v0`); or, with `continuous`, a force in [-1, 1] and the goal at 0.45
(`MountainCarContinuous-v0`, whose cost of acting is left out as well). The car starts at rest within 0.1 of -0.5.
Reaching the goal terminates.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.spec import Discrete
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import hill_scene

GRAVITY, FASTEST, LEFT_END, RIGHT_END = 0.0025, 0.07, -1.2, 0.6


class SparseMountainCar(Sensed):
    """State: `place` and `speed` [B].

    Args:
        observe: full, or p (position).
        concat: number of observations that are concatenated, newest last.
        continuous: a continuous force, of up to 1.5 times that of the discrete actions.
        max_steps: steps after which an episode is truncated.
        compile: fuse the equations of motion with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "SparseMountainCar-v0"
    fps = 30
    choices: ClassVar[Choices] = {"full": (0, 1), "p": (0,)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        continuous: bool = False,
        max_steps: int = 200,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        action = box(-1.0, 1.0) if continuous else Discrete(3)
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,))
        self.continuous = continuous
        self._move = compiled(move) if compile else move
        self.force, self.goal = (0.0015, 0.45) if continuous else (0.001, 0.5)

    def initial(self, generator: torch.Generator) -> State:
        place = 0.2 * self.uniform(1, generator)[0] - 0.6
        return {"place": place, "speed": torch.zeros_like(place)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        push = self.control(action)[0] if self.continuous else (action - 1).to(self.dtype)
        place, speed = self._move(state["place"], state["speed"], self.force * push)
        new = {"place": place, "speed": speed}
        reached = self._reached(new)
        return new, reached.to(self.dtype), reached

    def sense(self, state: State) -> Sequence[Tensor]:
        return [state["place"], state["speed"]]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [self._reached(state)]

    def render(self, env_index: int = 0) -> np.ndarray:
        x, speed = float(self.state["place"][env_index]), float(self.state["speed"][env_index])
        shown = {**self.clock(env_index), "position": f"{x:+.2f}", "velocity": f"{speed:+.3f}"}
        return hill_scene(x, self.goal, LEFT_END, RIGHT_END, shown)

    def _reached(self, state: State) -> Tensor:
        return (state["place"] >= self.goal) & (state["speed"] >= 0)


def move(place: Tensor, speed: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
    """Position and velocity [B] one step later; the left end stops the car."""
    speed = (speed + push - GRAVITY * (3 * place).cos()).clamp(-FASTEST, FASTEST)
    place = (place + speed).clamp(LEFT_END, RIGHT_END)
    return place, speed.masked_fill((place == LEFT_END) & (speed < 0), 0)
