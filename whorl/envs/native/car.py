"""A car between heaven and hell, whose sides are random in each episode; a priest tells which is where.

Heaven is at 1 or at -1 and hell opposite; reaching either terminates. A priest stands at 0.5: tasks that hide
heaven's side show it only near him, as 1 or -1, and 0 otherwise. The action, in [-1, 1], accelerates: it adds up to
0.0015 to the velocity, which is at most 0.2 and then moves the car. Sensed: position, velocity, and heaven's side.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import car_scene

POWER, TOP_SPEED, START, PRIEST = 0.0015, 0.2, 0.2, 0.5
END, PATH = 1.1, 20
"""largest position of the Top variants, and number of observed points on the path of a move"""


class CarHeavenHell(Sensed):
    """State: `body` [2, B] (position, velocity), `side` [B] (of heaven). The reward is 1 in heaven and else 0.

    Args:
        observe: full, or priest (the side is shown only near the priest).
        concat: number of observations that are concatenated, newest last.
        episodic: the reward is -1 per step, hell adds -1 for all remaining steps, and the time limit terminates. An
            episode returns -max_steps unless heaven is reached before its last step.
        hearing: distance from the priest within which the side is shown.
        max_steps: steps after which an episode is truncated.
        compile: fuse the move with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "CarHeavenHell-v0"
    choices: ClassVar[Choices] = {"full": (0, 1, 3), "priest": (0, 1, 2)}
    bound: ClassVar[float] = 1.0
    """bound of the action"""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        episodic: bool = False,
        hearing: float = 0.2,
        max_steps: int = 160,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        action = box(-self.bound, self.bound)
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,))
        self.episodic, self.hearing = episodic, hearing
        self._drive = compiled(drive) if compile else drive
        self._sides = self.constant(-1, 1)[:, 0]

    def initial(self, generator: torch.Generator) -> State:
        place = START * (2 * self.uniform(1, generator) - 1)
        body = torch.cat([place, torch.zeros_like(place)])
        return {"body": body, "side": self.chosen(self._sides, generator)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        body = self.move(state["body"], self.control(action))
        side = state["side"]
        gone = body[0] * side
        ended = ~(gone.abs() < 1)
        if not self.episodic:
            return {"body": body, "side": side}, self.pay(gone), ended
        left = self.max_steps - 1 - self.steps
        reward = -1 - left * (gone <= -1)
        return {"body": body, "side": side}, reward.to(self.dtype), ended | (left <= 0)

    def move(self, body: Tensor, control: Tensor) -> Tensor:
        return self._drive(body, control)

    def pay(self, gone: Tensor) -> Tensor:
        """The reward, given the position in the direction of heaven."""
        return (gone >= 1).to(self.dtype)

    def sense(self, state: State) -> Sequence[Tensor]:
        (place, speed), side = state["body"], state["side"]
        return [place, speed, self.heard(place, side), side]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [state["body"][0] * state["side"] >= 1]

    def heard(self, place: Tensor, side: Tensor) -> Tensor:
        """The side where the priest is near, else 0."""
        return side * ((place - PRIEST).abs() <= self.hearing)

    def render(self, env_index: int = 0) -> np.ndarray:
        place, speed = self.state["body"][:, env_index].tolist()
        shown = {**self.clock(env_index), "place": f"{place:+.2f}", "speed": f"{speed:+.3f}"}
        return car_scene(place, float(self.state["side"][env_index]), PRIEST, self.hearing, shown)


class CarHeavenHellTop(CarHeavenHell):
    """The action is the new position, within 1.1; no velocity is sensed; the reward is 1 in heaven and -1 in hell."""

    id = "CarHeavenHellTop-v0"
    fps = 2
    choices: ClassVar[Choices] = {"full": (0, 3), "priest": (0, 2)}
    bound = END

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        hearing: float = 0.2,
        max_steps: int = 10,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, observe, concat, False, hearing, max_steps, compile, dtype)

    def move(self, body: Tensor, control: Tensor) -> Tensor:
        return torch.cat([self.bound * control, torch.zeros_like(control)])

    def pay(self, gone: Tensor) -> Tensor:
        return (gone >= 1).to(self.dtype) - (gone <= -1).to(self.dtype)


class CarHeavenHellTopRelative(CarHeavenHell):
    """The action is a move, within 1, clipped at 1.1; rewards are those of the episodic task.

    State: also `path` [20, B], points on the last move, 0 before the first. Observed at each: position, 0, the side.
    """

    id = "CarHeavenHellTopRelative-v0"
    fps = 2
    choices: ClassVar[Choices] = {
        "full": [4 * i + j for i in range(PATH) for j in (0, 1, 3)],
        "priest": [4 * i + j for i in range(PATH) for j in (0, 1, 2)],
    }

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        hearing: float = 0.2,
        max_steps: int = 8,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, observe, concat, True, hearing, max_steps, compile, dtype)
        self._shares = self.constant(*(i / PATH for i in range(1, PATH + 1)))
        self._before = torch.zeros(PATH - 1, num_envs, dtype=self.dtype, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        state = super().initial(generator)
        return {**state, "path": torch.cat([self._before, state["body"][:1]])}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        new, reward, ended = super().advance(state, action)
        path = torch.lerp(state["body"][:1], new["body"][:1], self._shares)
        return {**new, "path": path}, reward, ended

    def move(self, body: Tensor, control: Tensor) -> Tensor:
        return torch.cat([(body[:1] + control).clamp(-END, END), torch.zeros_like(control)])

    def sense(self, state: State) -> Sequence[Tensor]:
        path, speed, side = state["path"], state["body"][1], state["side"]
        heard = self.heard(path, side)
        return [row for i in range(PATH) for row in (path[i], speed, heard[i], side)]


def drive(body: Tensor, action: Tensor) -> Tensor:
    """Position and velocity [2, B] one step later, under actions [1, B]."""
    place, speed = body.split(1)
    speed = torch.add(speed, action, alpha=POWER).clamp(-TOP_SPEED, TOP_SPEED)
    return torch.cat([place + speed, speed])
