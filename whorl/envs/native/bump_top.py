"""A soft finger feels what lies on a line, which says at which end of the line to go.

The gripper moves from 0 to 100. At 50 lies one of two things: a bump of width 4 or of width 5, or (box) a box of width
10 or nothing. With the first of each pair the goal is the left end, with the second the right end. Ends: 10 and 90
(box: 5 and 95); the goal is rewarded with 1, the other end with -1, and both terminate. The action, in [-1, 1], is the
gripper's new position, 50 (a + 1), or with `velocity` a move of up to 3, where the thing lies between 40 and 60 and the
other end is rewarded with 0. Sensed: the position in units of 100, the finger's angle (positive where it touches a
thing to its right), and the goal (1: left, -1: right).

The finger is 10 long and always soft. While the gripper moves over a thing its tip stays at the near edge, so with an
overlap o of both the finger's angle is o / 10 rad. At an overlap of the whole width it slips over, straight again. What
was touched on the way is not observed: only at a position where the finger is bent does it show.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import bumps_scene

LINE, MIDDLE, FINGER = 100.0, 50.0, 10.0
SPEED, SCATTER = 3.0, 10.0
"""largest move per step, and largest distance of the thing from the middle, with `velocity`"""
CLEAR = 1.0
"""least distance between the gripper's start and the wider thing"""


class BumpTop(Sensed):
    """State: `place`, `thing` (its position), `width`, `side` (of the thing on which the tip is: -1 left, 1 right) and
    `way` (1: the left end is right, -1: the other), all [B].

    Args:
        observe: touch (position and finger) or full (and the side to go to).
        concat: number of observations that are concatenated, newest last.
        widths: of the thing that says left, and of the one that says right; 0: nothing.
        margin: distance of the ends from 0 and 100.
        velocity: the action is a move.
        max_steps: steps after which an episode is truncated.
        dtype: float32 or float64, for physics and observations.
    """

    id = "BumpTop-v0"
    fps = 5
    choices: ClassVar[Choices] = {"touch": range(2), "full": range(3)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "touch",
        concat: int = 1,
        widths: Sequence[float] = (4.0, 5.0),
        margin: float = 10.0,
        velocity: bool = False,
        max_steps: int = 20,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0), observe, concat, max_steps, dtype, (SUCCESS,))
        if len(widths) != 2 or not all(0 <= width <= 20 for width in widths) or widths[0] == widths[1]:
            raise ConfigError(f"widths is {widths!r}; it must hold two different widths from 0 to 20")
        if not 0 < margin < 25:
            raise ConfigError(f"margin is {margin!r}; it must be above 0 and below 25")
        self.margin, self.velocity = margin, velocity
        self._clear = max(widths) / 2 + CLEAR
        self._widths, self._ways = self.constant(*widths)[:, 0], self.constant(1, -1)[:, 0]

    def initial(self, generator: torch.Generator) -> State:
        kind = self.drawn(2, generator)
        place, thing = self.uniform(2, generator)
        thing = MIDDLE + self.velocity * SCATTER * (2 * thing - 1)
        # Uniform over the free positions: drawn on a line without the thing, which is then inserted.
        free = LINE - 2 * self.margin - 2 * self._clear
        place = self.margin + free * place
        place = place + 2 * self._clear * (place > thing - self._clear)
        side = torch.where(place < thing, -1.0, 1.0).to(self.dtype)
        found = {"place": place, "thing": thing, "width": self._widths[kind], "side": side}
        return {**found, "way": self._ways[kind]}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        control = self.control(action)[0]
        place = state["place"] + SPEED * control if self.velocity else MIDDLE * (control + 1)
        place = place.clamp(0, LINE)
        crossed = overlap({**state, "place": place}) >= state["width"]
        side = torch.where(crossed, -state["side"], state["side"])
        new = {**state, "place": place, "side": side}
        gone = self.gone(new)
        return new, gone.clamp(min=0) if self.velocity else gone, gone != 0

    def gone(self, state: State) -> Tensor:
        """1 at the end to go to, -1 at the other, else 0 [B]."""
        place = state["place"]
        end = (place <= self.margin).to(self.dtype) - (place >= LINE - self.margin).to(self.dtype)
        return end * state["way"]

    def sense(self, state: State) -> Sequence[Tensor]:
        return [state["place"] / LINE, angle(state), state["way"]]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [self.gone(state) > 0]

    def render(self, env_index: int = 0) -> np.ndarray:
        place, thing, width = (float(self.state[key][env_index]) for key in ("place", "thing", "width"))
        bend = float(angle(self.state)[env_index])
        way = "left" if self.state["way"][env_index] > 0 else "right"
        shown = {**self.clock(env_index), "gripper": f"{place:.1f}", "go": way}
        things = [(thing - MIDDLE) / LINE]
        at = (place - MIDDLE) / LINE
        return bumps_scene(at, bend, things, things, width / LINE, 0.5, FINGER / LINE, shown)


def overlap(state: State) -> Tensor:
    """Distance [B] of the gripper beyond the edge at which the tip stays; negative before it."""
    return state["width"] / 2 - state["side"] * (state["place"] - state["thing"])


def angle(state: State) -> Tensor:
    """The finger's angle [B]."""
    return -state["side"] * overlap(state).clamp(min=0) / FINGER * (state["width"] > 0)
