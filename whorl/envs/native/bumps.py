"""Two hidden bumps on a line, felt with a finger of variable stiffness: push the right one to the right.

A gripper moves along y, within 0.4 m. A finger of 80 mm hangs from it on a spring of stiffness k. The action, two
numbers in [-1, 1], is a move in units of 0.05 m and a stiffness, from 0.007 to 0.047 N·m/rad. Sensed: the gripper's
position, the finger's angle (positive where it touches a bump to its right), and the positions of the bumps.

Contact is quasi-static. The finger's tip is on one side of each bump, which is 40 mm wide. While the gripper moves over
the bump the tip stays at the near edge, so with an overlap o of gripper and bump the finger bends by o / 80 mm and
presses with the torque k o / 80 mm. There are two outcomes:

    the overlap reaches the whole width:        the tip slips over, and the finger is straight on the other side
    the torque reaches 0.027 · 40 mm / 80 mm:   the bump moves so that the torque stays constant

So a finger softer than 0.027 N·m/rad always slips over and moves nothing, and a stiffer one always pushes.

Moving the right bump by more than 0.01 m to the right gives reward 1 and terminates. The episode also terminates,
without a reward, when the left bump has moved by more than 0.001 m, when the right one has moved left by that much,
or when the gripper reaches 0.4 m. Bumps are 0.12 to 0.32 m apart and within 0.28 m; the gripper starts off them
within 0.35 m.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import bumps_scene

STEP, SOFT, GIVES, STIFF = 0.05, 0.007, 0.027, 0.047
"""m, and N·m/rad: the smallest stiffness, the one above which bumps move, the largest"""
WIDTH, FINGER = 0.04, 0.08
LIMIT, WITHIN, START = 0.4, 0.28, 0.35
"""m, largest distance from 0 of the gripper, the bumps, and the start of the gripper"""
NEAR, FAR = 0.12, 0.32
"""m, distance between the bumps"""
PUSHED, MOVED = 0.01, 0.001
"""m, the move of the right bump that is rewarded, and the largest one of any bump otherwise"""


class Bumps(Sensed):
    """State: `place` [B] (of the gripper), `bumps` [2, B] (left, right), `put` [2, B] (their initial positions),
    `side` [2, B] (side of each bump on which the tip is: -1 left, 1 right).

    Args:
        observe: touch (gripper and finger) or full (and the bumps).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        compile: fuse the contact with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "Bumps-v0"
    fps = 5
    choices: ClassVar[Choices] = {"touch": range(2), "full": range(4)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "touch",
        concat: int = 1,
        max_steps: int = 50,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0, 2), observe, concat, max_steps, dtype, (SUCCESS,))
        self._touch = compiled(touch) if compile else touch

    def initial(self, generator: torch.Generator) -> State:
        apart, left, place = self.uniform(3, generator)
        apart = NEAR + (FAR - NEAR) * apart
        left = (2 * WITHIN - apart) * left - WITHIN
        bumps = torch.stack([left, left + apart])
        # Uniform over the free positions: drawn on a line without the bumps, which are then inserted.
        place = 2 * (START - WIDTH) * place - START
        for bump in bumps:
            place = place + WIDTH * (place > bump - WIDTH / 2)
        side = torch.where(place < bumps, -1.0, 1.0).to(self.dtype)
        return {"place": place, "bumps": bumps, "put": bumps, "side": side}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        step, ratio = self.control(action)
        place = state["place"] + STEP * step
        stiffness = SOFT + (STIFF - SOFT) / 2 * (ratio + 1)
        bumps, side = self._touch(place, state["bumps"], state["side"], stiffness)
        left, right = bumps - state["put"]
        pushed = right > PUSHED
        ended = pushed | (left.abs() > MOVED) | (right < -MOVED) | (place.abs() >= LIMIT)
        new = {"place": place, "bumps": bumps, "put": state["put"], "side": side}
        return new, pushed.to(self.dtype), ended

    def sense(self, state: State) -> Sequence[Tensor]:
        bumps = state["bumps"]
        return [state["place"], angle(state["place"], bumps, state["side"]), *bumps]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [(state["bumps"] - state["put"])[1] > PUSHED]

    def render(self, env_index: int = 0) -> np.ndarray:
        bumps, put = (self.state[key][:, env_index].tolist() for key in ("bumps", "put"))
        place, bend = (float(row[env_index]) for row in self.sense(self.state)[:2])
        shown = {
            **self.clock(env_index),
            "gripper": f"{place:+.3f} m",
            "finger": f"{math.degrees(bend):+.0f}°",
        }
        return bumps_scene(place, bend, bumps, put, WIDTH, LIMIT, FINGER, shown)


def overlap(place: Tensor, bumps: Tensor, side: Tensor) -> Tensor:
    """Distance [2, B] of the gripper beyond the edge at which the tip stays; negative before it."""
    return WIDTH / 2 - side * (place - bumps)


def angle(place: Tensor, bumps: Tensor, side: Tensor) -> Tensor:
    """The finger's angle [B]."""
    return (-side * overlap(place, bumps, side).clamp(min=0)).sum(0) / FINGER


def touch(place: Tensor, bumps: Tensor, side: Tensor, stiffness: Tensor) -> tuple[Tensor, Tensor]:
    """Bumps and sides [2, B] after the gripper moved to `place`: the tip slips over a bump, or the bump moves."""
    bent, pushes = overlap(place, bumps, side), stiffness > GIVES
    shift = (bent - WIDTH * GIVES / stiffness).clamp(min=0) * pushes
    slipped = (bent >= WIDTH) & ~pushes
    return bumps - side * shift, torch.where(slipped, -side, side)
