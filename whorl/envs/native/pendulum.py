"""A pendulum to swing up and hold: Gymnasium's, or one with a random length per episode.

The action is a torque u within 2 N·m. Sensed: cosine and sine of the angle (0 upright), the angular velocity, the
length, and the last torque. The angular acceleration is 3 g / (2 l) sin(angle) + 3 u / (m l²), a step 0.05 s, and the
velocity is clipped to 8 rad/s. Gymnasium's pendulum moves by the clipped velocity, the one of variable length by the
velocity before clipping. The reward is -(angle² + 0.1 velocity² + 0.001 u²) with the values before the step and the
angle within [-pi, pi). Episodes start at any angle with a velocity within 1 rad/s, and are only truncated.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.envs.native.sensed import Choices, Sensed, box, wrapped
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import pendulum_scene

GRAVITY, MASS, TORQUE, TOP_SPEED, DT = 10.0, 1.0, 2.0, 8.0, 0.05


class PendulumVariableLength(Sensed):
    """State: `body` [2, B] (angle, angular velocity), `length`, `torque` [B].

    Args:
        observe: full, pvl (without last torque), pv (also without length), pl (angle, length), pa (angle, torque).
        concat: number of observations that are concatenated, newest last.
        lengths: of the pendulum in m; one is drawn per episode.
        max_steps: steps after which an episode is truncated.
        compile: fuse the equations of motion with torch.compile.
        dtype: float32 or float64, for physics and observations.
        state: observe a dict of these entries and all of them (`observed`, `state`).
    """

    id = "PendulumVariableLength-v0"
    fps = 20
    choices: ClassVar[Choices] = {
        "full": range(5),
        "pvl": range(4),
        "pv": range(3),
        "pl": (0, 1, 3),
        "pa": (0, 1, 4),
    }
    held: ClassVar[bool] = False
    """whether the angle moves by the clipped velocity"""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        lengths: Sequence[float] = (0.2, 1.0),
        max_steps: int = 200,
        compile: bool = False,
        dtype: str = "float32",
        state: bool = False,
    ) -> None:
        action = box(-TORQUE, TORQUE)
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, state=state)
        self._lengths = self.lengths(lengths)
        moved = partial(move, held=self.held)
        self._move = compiled(moved) if compile else moved
        self._reach = self.constant(math.pi, 1)
        self._idle = torch.zeros(num_envs, dtype=self.dtype, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        body = (2 * self.uniform(2, generator) - 1) * self._reach
        return {"body": body, "length": self.chosen(self._lengths, generator), "torque": self._idle}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        torque = TORQUE * self.control(action)[0]
        angle, speed = state["body"]
        cost = wrapped(angle).square() + 0.1 * speed.square() + 0.001 * torque.square()
        body = self._move(state["body"], state["length"], torque)
        new = {"body": body, "length": state["length"], "torque": torque}
        return new, -cost, torch.zeros_like(self.ended)

    def sense(self, state: State) -> Sequence[Tensor]:
        angle, speed = state["body"]
        return [angle.cos(), angle.sin(), speed, state["length"], state["torque"]]

    def render(self, env_index: int = 0) -> np.ndarray:
        angle = float(self.state["body"][0, env_index])
        length, torque = float(self.state["length"][env_index]), float(self.state["torque"][env_index])
        shown = {**self.clock(env_index), "length": f"{length:.1f} m", "torque": f"{torque:+.2f} N·m"}
        return pendulum_scene(angle, length, torque / TORQUE, shown)

    def traces(self, env_index: int) -> dict[str, dict[str, float]]:
        angle, speed = self.state["body"][:, env_index].tolist()
        return {
            "attitude, degrees": {"angle": math.degrees(math.remainder(angle, 2 * math.pi))},
            "velocity, rad/s": {"velocity": speed},
        }


class Pendulum(PendulumVariableLength):
    """Gymnasium's Pendulum-v1, of 1 m. Observed: full (cos, sin, velocity), p (cos, sin), v, or va (and torque)."""

    id = "PendulumFull-v0"
    choices: ClassVar[Choices] = {"full": range(3), "p": (0, 1), "v": (2,), "va": (2, 4)}
    held = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        max_steps: int = 200,
        compile: bool = False,
        dtype: str = "float32",
        state: bool = False,
    ) -> None:
        super().__init__(num_envs, device, observe, concat, (1.0,), max_steps, compile, dtype, state)


def move(body: Tensor, length: Tensor, torque: Tensor, held: bool) -> Tensor:
    """The body [2, B] one step later; `held`: the angle moves by the clipped velocity."""
    angle, speed = body
    turn = 1.5 * GRAVITY / length * angle.sin() + 3 / MASS * torque / length.square()
    speed = torch.add(speed, turn, alpha=DT)
    top = speed.clamp(-TOP_SPEED, TOP_SPEED)
    return torch.stack([torch.add(angle, top if held else speed, alpha=DT), top])
