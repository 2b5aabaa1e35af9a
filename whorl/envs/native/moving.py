"""gym-hybrid's moving and sliding: accelerate, turn or brake to stop within a target on a square field.

The action is one of accelerate (0), turn (1) and brake (2), with an acceleration in [0, 1] and a turn in [-1, 1].
Accelerating adds up to 0.5 to the speed, turning changes the direction by up to 90 degrees, braking takes 0.1 off the
speed; then the agent moves for 0.005 time units. The reward is the decrease of the distance to the target less 0.001,
and 1 more when the agent has stopped within 0.1 of it, which terminates. Leaving the field (|x| or |y| above 1), or
step 201, terminates with a reward of -1. Sensed: x, y, speed, cosine and sine of the direction, the target's x and y,
the distance, whether it is within 0.1, and the elapsed share of 200 steps.

Sliding: a turn does not change the direction of motion; accelerating adds a vector to the velocity. The original adds
these two vectors by a wrong formula.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.sensed import Choices, Sensed, hybrid
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import field_scene

ACCELERATE, TURN, BRAKE = range(3)
GAIN, LARGEST_TURN, LOSS, DT = 0.5, math.pi / 2, 0.1, 0.005
RADIUS, COST = 0.1, 0.001


class Moving(Sensed):
    """State: `place` and `target` [2, B], `facing`, `course` (direction of motion), `speed` and `time` [B].

    Args:
        observe: full, or p (no speed).
        concat: number of observations that are concatenated, newest last.
        sliding: the direction of motion keeps when the agent turns.
        dtype: float32 or float64, for physics and observations.
    """

    id = "Moving-v0"
    fps = 30
    choices: ClassVar[Choices] = {"full": range(10), "p": (0, 1, 3, 4, 5, 6, 7, 8, 9)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        sliding: bool = False,
        dtype: str = "float32",
    ) -> None:
        action = hybrid(3, (0.0, -1.0), (1.0, 1.0))
        super().__init__(num_envs, device, action, observe, concat, 201, dtype, (SUCCESS,), ((0,), (1,), ()))
        self.sliding = sliding

    def initial(self, generator: torch.Generator) -> State:
        drawn = self.uniform(5, generator)
        facing = 2 * math.pi * drawn[4]
        return {
            "place": 2 * drawn[:2] - 1,
            "target": (1 - RADIUS) * (2 * drawn[2:4] - 1),
            "facing": facing,
            "course": facing,
            "speed": torch.zeros_like(facing),
            "time": torch.zeros_like(self.steps),
        }

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        choice, (push, turn) = action["0"], self.control(action["1"])
        gain = torch.where(choice == ACCELERATE, GAIN * (push + 1) / 2, 0)
        facing = state["facing"] + torch.where(choice == TURN, LARGEST_TURN * turn, 0)
        facing = torch.remainder(facing, 2 * math.pi)
        if self.sliding:
            speed, course = _added(state["speed"], state["course"], gain, facing)
        else:
            speed, course = state["speed"] + gain, facing
        slower = torch.where(speed < LOSS, 0, speed - LOSS)
        speed = torch.where(choice == BRAKE, slower, speed)
        place = state["place"] + DT * speed * torch.stack([course.cos(), course.sin()])
        new = {
            "place": place,
            "target": state["target"],
            "facing": facing,
            "course": course,
            "speed": speed,
            "time": state["time"] + 1,
        }
        stopped = self._stopped(new)
        lost = ~stopped & ((place.abs() > 1).any(0) | (new["time"] >= self.max_steps))
        nearer = _distance(state) - _distance(new) - COST + stopped.to(self.dtype)
        return new, nearer.masked_fill(lost, -1), stopped | lost

    def sense(self, state: State) -> Sequence[Tensor]:
        distance, facing = _distance(state), state["facing"]
        inside = (distance <= RADIUS).to(self.dtype)
        spent = state["time"].to(self.dtype) / (self.max_steps - 1)
        own = [*state["place"], state["speed"], facing.cos(), facing.sin()]
        return [*own, *state["target"], distance, inside, spent]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [self._stopped(state)]

    def render(self, env_index: int = 0) -> np.ndarray:
        at, target = (self.state[key][:, env_index].tolist() for key in ("place", "target"))
        facing, course, speed = (float(self.state[key][env_index]) for key in ("facing", "course", "speed"))
        shown = {**self.clock(env_index), "speed": f"{speed:.2f}"}
        nose = (0.12 * math.cos(facing), 0.12 * math.sin(facing))
        drift = (0.1 * speed * math.cos(course), 0.1 * speed * math.sin(course))
        return field_scene(at, target, RADIUS, [drift, nose], shown)

    def _stopped(self, state: State) -> Tensor:
        return (_distance(state) < RADIUS) & (state["speed"] == 0) & (state["time"] > 0)


def _distance(state: State) -> Tensor:
    return torch.linalg.vector_norm(state["place"] - state["target"], dim=0)


def _added(speed: Tensor, course: Tensor, gain: Tensor, facing: Tensor) -> tuple[Tensor, Tensor]:
    """Speed and direction of a velocity to which another is added; unchanged where that is 0."""
    x = speed * course.cos() + gain * facing.cos()
    y = speed * course.sin() + gain * facing.sin()
    same = gain == 0
    return torch.where(same, speed, torch.hypot(x, y)), torch.where(same, course, torch.atan2(y, x))
