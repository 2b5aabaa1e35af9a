"""Two tasks in which an action is a pose: find out where the goal is, then go there.

Ant reacher: the action, two numbers in [-1, 1], is the ant's new place in units of 8. Heaven is at (-6.25, 6.75) or at
(6.25, 6.75), and hell at the other of the two. Coming within 1.9 of heaven is rewarded with 1, of hell with -1, and
either terminates. A priest at (5.25, -5.75) tells where heaven is: tasks that hide it show it within 1.9 of him, and
zeros elsewhere. The ant starts at (0, 0). Sensed: its place, heaven's as he tells it, and heaven's.

UR5 arm: the action, three numbers in [-1, 1], is the new angle of shoulder pan, shoulder lift and elbow: π a,
π/8 (a - 1) and π/4 a. The target is a pose too. With all three angles within 10° of the target's the reward is 1, which
terminates. Tasks that hide the target show it for 10 steps after the angles were within 10° of the switch, (0, 0,
-π/4), and zeros otherwise. Sensed: the angles, the target as it is shown, and the target.
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
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import field_scene

FIELD, RADIUS = 8.0, 1.9
HEAVEN, PRIEST = (6.25, 6.75), (5.25, -5.75)
SCALE, OFFSET = (math.pi, math.pi / 8, math.pi / 4), (0.0, -math.pi / 8, 0.0)
SWITCH, NEAR, SHOWN = (0.0, 0.0, -math.pi / 4), math.radians(10), 10
"""the switch's angles, the largest difference of an angle, and the steps for which the target is shown"""
REST, TURNED = (0.006, 0.003, -0.128), math.pi / 8
"""angles of the arm at the start, the first within `TURNED` of 0"""
SHOULDER, UPPER_ARM, FOREARM, ABOVE = 0.089, 0.425, 0.392, 0.15
"""m, height of the shoulder, lengths of the arm's parts, and least height of a target's wrist"""
CANDIDATES = 16
"""targets drawn per episode, of which the first is taken whose wrist is high enough; 5 of 6 are"""


class AntReacherTop(Sensed):
    """State: `place` [2, B], `side` [B] (of heaven: -1 left, 1 right).

    Args:
        observe: full, or priest (heaven is shown only near the priest).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        dtype: float32 or float64, for physics and observations.
    """

    id = "AntReacherTop-v0"
    fps = 2
    choices: ClassVar[Choices] = {"full": (0, 1, 4, 5), "priest": (0, 1, 2, 3)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        max_steps: int = 20,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0, 2), observe, concat, max_steps, dtype, (SUCCESS,))
        self._sides = self.constant(-1, 1)[:, 0]
        self._priest, self._mirror = self.constant(*PRIEST), self.constant(-1, 1)

    def initial(self, generator: torch.Generator) -> State:
        side = self.chosen(self._sides, generator)
        return {"place": torch.zeros_like(torch.stack([side, side])), "side": side}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        place = FIELD * self.control(action)
        heaven = self.heaven(state["side"])
        reached, lost = near(place, heaven), near(place, self._mirror * heaven)
        reward = reached.to(self.dtype) - lost.to(self.dtype)
        return {"place": place, "side": state["side"]}, reward, reached | lost

    def heaven(self, side: Tensor) -> Tensor:
        """The place of heaven [2, B]."""
        return torch.stack([side * HEAVEN[0], torch.full_like(side, HEAVEN[1])])

    def sense(self, state: State) -> Sequence[Tensor]:
        heaven = self.heaven(state["side"])
        return [*state["place"], *(heaven * near(state["place"], self._priest)), *heaven]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [near(state["place"], self.heaven(state["side"]))]

    def render(self, env_index: int = 0) -> np.ndarray:
        at = (self.state["place"][:, env_index] / FIELD).tolist()
        heaven = (self.heaven(self.state["side"])[:, env_index] / FIELD).tolist()
        priest = (PRIEST[0] / FIELD - at[0], PRIEST[1] / FIELD - at[1])
        told = near(self.state["place"], self._priest)[env_index]
        shown = {**self.clock(env_index), "priest": "tells" if told else "is down right"}
        return field_scene(at, heaven, RADIUS / FIELD, [priest], shown)


class UR5Top(Sensed):
    """State: `angles` and `target` [3, B], `since` [B] (steps since the switch was touched).

    Args:
        observe: full, or switch (the target is shown only after the switch was touched).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        dtype: float32 or float64, for physics and observations.
    """

    id = "UR5Top-v0"
    fps = 2
    choices: ClassVar[Choices] = {"full": (0, 1, 2, 6, 7, 8), "switch": range(6)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        max_steps: int = 10,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0, 3), observe, concat, max_steps, dtype, (SUCCESS,))
        self._scale, self._offset = self.constant(*SCALE), self.constant(*OFFSET)
        self._switch, self._rest = self.constant(*SWITCH), self.constant(*REST)
        self._never = torch.full_like(self.steps, SHOWN + 1)

    def initial(self, generator: torch.Generator) -> State:
        turned, sign, pan = self.uniform(3, generator)
        angles = self._rest.expand(-1, self.num_envs).clone()
        angles[0] = TURNED * (2 * turned - 1)
        lift, elbow = self.uniform(2 * CANDIDATES, generator).unflatten(0, (2, CANDIDATES))
        lift, elbow = -math.pi / 4 * lift, math.pi / 2 * elbow - math.pi / 4
        # argmax gives the first of equal values.
        first = (wrist(lift, elbow) > ABOVE).int().argmax(0, keepdim=True)
        pan = torch.where(sign < 0.5, -1, 1) * math.pi * (0.25 + 0.75 * pan)
        target = torch.cat([pan[None], lift.gather(0, first), elbow.gather(0, first)])
        return {"angles": angles, "target": target, "since": self._never}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        angles, target = self._scale * self.control(action) + self._offset, state["target"]
        since = (state["since"] + 1).clamp(max=SHOWN + 1).masked_fill(posed(angles, self._switch), 0)
        reached = posed(angles, target)
        return {"angles": angles, "target": target, "since": since}, reached.to(self.dtype), reached

    def sense(self, state: State) -> Sequence[Tensor]:
        target = state["target"]
        return [*state["angles"], *(target * (state["since"] <= SHOWN)), *target]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [posed(state["angles"], state["target"])]

    def render(self, env_index: int = 0) -> np.ndarray:
        """From above: where the wrist is, and where it would be in the target's pose."""
        at, target = (from_above(self.state[key][:, env_index].tolist()) for key in ("angles", "target"))
        seen = bool(self.state["since"][env_index] <= SHOWN)
        shown = {**self.clock(env_index), "target": "shown" if seen else "hidden"}
        return field_scene(at, target, 0.08, [(-at[0], -at[1])], shown)


def near(place: Tensor, other: Tensor) -> Tensor:
    """Whether two places [2, B] are within `RADIUS` [B]."""
    return (place - other).square().sum(0) < RADIUS**2


def posed(angles: Tensor, other: Tensor) -> Tensor:
    """Whether all angles [3, B] of two poses agree [B]."""
    return ((angles - other).abs() <= NEAR).all(0)


def wrist(lift: Tensor, elbow: Tensor) -> Tensor:
    """Height of the wrist."""
    return SHOULDER - UPPER_ARM * lift.sin() - FOREARM * (lift + elbow).sin()


def from_above(angles: Sequence[float]) -> tuple[float, float]:
    """The wrist's place on the table, in m."""
    pan, lift, elbow = angles
    reach = UPPER_ARM * math.cos(lift) + FOREARM * math.cos(lift + elbow)
    return reach * math.cos(pan), reach * math.sin(pan)
