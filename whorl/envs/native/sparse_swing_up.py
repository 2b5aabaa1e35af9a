"""A pole to swing up, with a reward only where it is upright (bsuite's cart-pole swing-up, arXiv:1908.03568).

Sutton's cart-pole, which starts hanging. Actions: 0 push left, 1 stay, 2 push right, with 10 N for a step of 0.01 s.
Pushing costs 0.1. A step that ends with the pole upright (cosine of its angle above 0.5), slow (below 1 rad/s) and near
the middle (within 1 m) gives 1. So a random policy returns about -34, staying still 0, and only an agent that accepts
the cost finds more. Terminated when the cart is beyond 3 m, truncated after 1000 steps.

Sensed: position and velocity of the cart, both divided by 3, sine and cosine of the pole's angle (0 upright), its
angular velocity, and as 1 or -1 whether the cart is near the middle and the pole slow.
Differs from bsuite: the time limit truncates, so the elapsed time is not observed.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Discrete
from whorl.envs.native.cart_pole import HALF, move
from whorl.envs.native.sensed import Choices, Sensed
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import cart_scene

FORCE, DT, RAIL, SLOW = 10.0, 0.01, 3.0, 1.0
"""N, s, m, rad/s"""


class SparseCartPoleSwingUp(Sensed):
    """State: `body` [4, B] (position, velocity, angle, angular velocity).

    Args:
        observe: full, or p (position and angle).
        concat: number of observations that are concatenated, newest last.
        height: the pole is upright where the cosine of its angle is above this.
        near: distance in m from the middle within which there is a reward.
        move_cost: of a step with a push.
        max_steps: steps after which an episode is truncated.
        compile: fuse the equations of motion with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "SparseCartPoleSwingUp-v0"
    fps = 100
    choices: ClassVar[Choices] = {"full": range(7), "p": (0, 2, 3)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        height: float = 0.5,
        near: float = 1.0,
        move_cost: float = 0.1,
        max_steps: int = 1000,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, Discrete(3), observe, concat, max_steps, dtype)
        if not -1 <= height < 1 or not 0 < near <= RAIL:
            raise ConfigError(
                f"height is {height} and near {near}; height is a cosine in [-1, 1), near at most {RAIL} m"
            )
        self.height, self.near, self.move_cost = height, near, move_cost
        motion = partial(move, force=FORCE, dt=DT)
        self._move = compiled(motion) if compile else motion
        self._hanging = self.constant(0, 0, math.pi, 0)

    def initial(self, generator: torch.Generator) -> State:
        return {"body": self._hanging + (0.1 * self.uniform(4, generator) - 0.05)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        push = (action - 1).to(self.dtype)
        body = self._move(state["body"], push)
        place, _, angle, spin = body
        upright = (angle.cos() > self.height) & (spin.abs() < SLOW) & (place.abs() < self.near)
        return {"body": body}, upright.to(self.dtype) - self.move_cost * push.abs(), place.abs() > RAIL

    def sense(self, state: State) -> Sequence[Tensor]:
        place, speed, angle, spin = state["body"]
        near, slow = (place.abs() < self.near, spin.abs() < SLOW)
        told = [torch.where(x, 1.0, -1.0).to(self.dtype) for x in (near, slow)]
        return [place / RAIL, speed / RAIL, angle.sin(), angle.cos(), spin, *told]

    def render(self, env_index: int = 0) -> np.ndarray:
        x, _, angle, spin = self.state["body"][:, env_index].tolist()
        shown = {**self.clock(env_index), "height": f"{math.cos(angle):+.2f}", "spin": f"{spin:+.1f} rad/s"}
        return cart_scene(x, RAIL, [angle], [2 * HALF], shown)
