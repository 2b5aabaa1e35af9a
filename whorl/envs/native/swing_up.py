"""A pole to swing up on a cart and hold, a short or a long one in each episode.

The action, in [-1, 1], is a force in units of 10 N. Sensed: position and velocity of the cart, cosine and sine of the
pole's angle (0 upright), its angular velocity, its length, and the last action. Explicit Euler steps of 0.01 s. A cart
that would pass 2.4 m keeps its position, and its new velocity is reversed. The reward is
-0.1 (angle² + 0.01 spin² + position²) after the step, with the angle within [-pi, pi); episodes are only truncated.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.envs.native.sensed import Choices, Sensed, box, wrapped
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import cart_scene

GRAVITY, CART, POLE, FORCE, FRICTION, DT = 9.82, 0.5, 0.5, 10.0, 0.1, 0.01
RAIL = 2.4


class CartPoleSwingUpVariableLength(Sensed):
    """State: `body` [4, B] (position, velocity, angle, angular velocity), `length`, `action` [B].

    Args:
        observe: full, pvl (without last action), pv (also without length) or pa (position, angle, last action).
        concat: number of observations that are concatenated, newest last.
        lengths: of the pole in m; one is drawn per episode.
        max_steps: steps after which an episode is truncated.
        compile: fuse the equations of motion with torch.compile.
        dtype: float32 or float64, for physics and observations.
        state: observe a dict of these entries and all of them (`observed`, `state`).
    """

    id = "CartPoleSwingUpVariableLength-v0"
    fps = 100
    choices: ClassVar[Choices] = {"full": range(7), "pvl": range(6), "pv": range(5), "pa": (0, 2, 3, 6)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        lengths: Sequence[float] = (0.1, 0.6),
        max_steps: int = 500,
        compile: bool = False,
        dtype: str = "float32",
        state: bool = False,
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0), observe, concat, max_steps, dtype, state=state)
        self._lengths = self.lengths(lengths)
        self._move = compiled(move) if compile else move
        self._hanging = self.constant(0, 0, math.pi, 0)
        self._idle = torch.zeros(num_envs, dtype=self.dtype, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        body = torch.add(self._hanging, self.normal(4, generator), alpha=0.2)
        return {"body": body, "length": self.chosen(self._lengths, generator), "action": self._idle}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        control = self.control(action)[0]
        body = self._move(state["body"], state["length"], control)
        place, _, angle, spin = body
        reward = -0.1 * (wrapped(angle).square() + 0.01 * spin.square() + place.square())
        new = {"body": body, "length": state["length"], "action": control}
        return new, reward, torch.zeros_like(self.ended)

    def sense(self, state: State) -> Sequence[Tensor]:
        place, speed, angle, spin = state["body"]
        return [place, speed, angle.cos(), angle.sin(), spin, state["length"], state["action"]]

    def render(self, env_index: int = 0) -> np.ndarray:
        x, _, angle, _ = self.state["body"][:, env_index].tolist()
        length, action = float(self.state["length"][env_index]), float(self.state["action"][env_index])
        shown = {**self.clock(env_index), "pole": f"{length:.1f} m", "force": f"{FORCE * action:+.1f} N"}
        return cart_scene(x, RAIL, [-angle], [length], shown)


def move(body: Tensor, length: Tensor, action: Tensor) -> Tensor:
    """The body [4, B] one step later."""
    place, speed, angle, spin = body
    sin, cos, mass = angle.sin(), angle.cos(), CART + POLE
    drive = FORCE * action - FRICTION * speed
    whirl = POLE * length * spin.square() * sin
    spread = 4 * mass - 3 * POLE * cos.square()
    shove = (3 * POLE * GRAVITY * sin * cos - 2 * whirl + 4 * drive) / spread
    turn = (6 * mass * GRAVITY * sin - 3 * whirl * cos + 6 * drive * cos) / (length * spread)
    new = torch.add(body, torch.stack([speed, shove, spin, turn]), alpha=DT)
    inside = new[0].abs() <= RAIL
    stopped = torch.stack([place, -new[1], new[2], new[3]])
    return torch.where(inside, new, stopped)
