"""A pole balanced on a cart by a continuous force: Sutton's cart-pole, for 200 steps or, as a long task, for 1000.

The action, in [-1, 1], is a force in units of 30 N. Sensed: position and velocity of the cart, angle (0 upright) and
angular velocity of the pole. Explicit Euler steps of 0.02 s: positions move by the velocities before the step. Every
step gives reward 1, the last one too; the episode terminates when the cart is beyond 2.4 m or the pole beyond 12
degrees.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import cart_scene

GRAVITY, CART, POLE, HALF, FORCE, DT = 9.8, 1.0, 0.1, 0.5, 30.0, 0.02
"""m/s², kg, kg, half the pole in m, N, s"""
RAIL, LEAN = 2.4, math.radians(12)


class CartPoleContinuous(Sensed):
    """State: `body` [4, B] (position, velocity, angle, angular velocity).

    Args:
        observe: full, p (position and angle) or v (their velocities).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        compile: fuse the equations of motion with torch.compile.
        dtype: float32 or float64, for physics and observations.
        state: observe a dict of these entries and all of them (`observed`, `state`).
    """

    id = "CartPoleContinuous-v0"
    choices: ClassVar[Choices] = {"full": range(4), "p": (0, 2), "v": (1, 3)}

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
        super().__init__(num_envs, device, box(-1.0, 1.0), observe, concat, max_steps, dtype, state=state)
        self._move = compiled(move) if compile else move

    def initial(self, generator: torch.Generator) -> State:
        return {"body": 0.1 * self.uniform(4, generator) - 0.05}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        body = self._move(state["body"], self.control(action)[0])
        inside = (body[0].abs() <= RAIL) & (body[2].abs() <= LEAN)
        return {"body": body}, torch.ones_like(body[0]), ~inside

    def sense(self, state: State) -> Sequence[Tensor]:
        return state["body"].unbind()

    def render(self, env_index: int = 0) -> np.ndarray:
        x, _, angle, _ = self.state["body"][:, env_index].tolist()
        shown = {**self.clock(env_index), "cart": f"{x:+.2f} m", "pole": f"{math.degrees(angle):+.1f}°"}
        return cart_scene(x, RAIL, [angle], [2 * HALF], shown)


def move(body: Tensor, action: Tensor, force: float = FORCE, dt: float = DT) -> Tensor:
    """The body [4, B] after a step of `dt` seconds, with actions [B] in units of `force`."""
    _, speed, angle, spin = body
    sin, cos, mass = angle.sin(), angle.cos(), CART + POLE
    pull = (force * action + POLE * HALF * spin.square() * sin) / mass
    turn = (GRAVITY * sin - cos * pull) / (HALF * (4 / 3 - POLE / mass * cos.square()))
    shove = pull - POLE * HALF / mass * turn * cos
    return torch.add(body, torch.stack([speed, shove, spin, turn]), alpha=dt)
