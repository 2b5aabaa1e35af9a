"""Find a platform in a round pool again and again: by steps, with a distance to follow, or with a body that coasts.

The pool is the disc of radius 1. The action, two numbers in [-1, 1], moves the swimmer by up to 0.04 per axis; a move
out of the pool does not happen. Sensed: place, whether it is on the platform, and the platform's place. A step that
ends on the platform earns 1; with the fifth, in a row or not, the swimmer is put elsewhere. Wherever it or the platform
is put, angle and distance from the middle are uniform, the platform within the pool and the swimmer off the platform.
Episodes are only truncated. The original's action box is 0.2 and is multiplied by 0.2 again: the same largest move.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import maze_scene

STAY = 5
"""steps on the platform until the swimmer is put elsewhere"""
DRAWS = 8
"""places drawn at once, of which the first off the platform is taken"""


class WaterMaze(Sensed):
    """State: `place`, `drift`, `platform` [2, B], `stayed` [B] (steps on the platform since it was put somewhere).

    Args:
        observe: full or hidden (without the platform's place).
        concat: how many of the last observations are seen at once.
        dense: the reward is minus the distance to the platform's middle.
        radius: of the platform.
        max_steps: an episode is truncated after so many steps.
        compile: fuse the move with torch.compile.
        dtype: of physics and observations.
    """

    id = "WaterMaze-v0"
    fps = 20
    choices: ClassVar[Choices] = {"full": range(5), "hidden": range(3)}
    coasts, gain, top = 0.0, 0.04, 0.04
    """share of the speed that stays, what the action adds to it, and the highest speed per axis"""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        dense: bool = False,
        radius: float = 0.3,
        max_steps: int = 200,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, box(-1.0, 1.0, 2), observe, concat, max_steps, dtype)
        if not 0 < radius <= 0.5:
            raise ConfigError(
                f"radius is {radius}; choose one above 0 and up to 0.5, or nothing is left to search"
            )
        self.dense, self.radius = dense, radius
        self._swim = compiled(swim) if compile else swim
        self._still = torch.zeros(2, num_envs, dtype=self.dtype, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        angle, share = self.uniform(2, generator)
        platform = polar((1 - self.radius) * share, 2 * math.pi * angle)
        place = self.elsewhere(platform, generator)
        return {"place": place, "drift": self._still, "platform": platform, "stayed": self._still[0]}

    def elsewhere(self, platform: Tensor, generator: torch.Generator) -> Tensor:
        """A place off the platform: the first such of some draws, or else, very rarely, opposite to it."""
        distance, angle = self.uniform(2 * DRAWS, generator).view(2, DRAWS, -1)
        drawn = polar(distance, 2 * math.pi * angle)  # [2, DRAWS, B]
        free = off(drawn, platform[:, None]) > self.radius
        first = free.to(torch.uint8).argmax(0)  # [B]
        place = drawn.gather(1, first.expand(2, 1, -1))[:, 0]
        opposite = polar(-0.9, torch.atan2(platform[1], platform[0]))
        return torch.where(free.any(0), place, opposite)

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        push = self.gain * self.control(action)
        place, drift = self._swim(state["place"], state["drift"], push, self.coasts, self.top)
        platform = state["platform"]
        distance = off(place, platform)
        inside = (distance <= self.radius).to(self.dtype)
        stayed = state["stayed"] + inside
        moved = stayed >= STAY
        new = {
            "place": torch.where(moved, self.elsewhere(platform, self.generator), place),
            "drift": drift.masked_fill(moved, 0),
            "platform": platform,
            "stayed": stayed.masked_fill(moved, 0),
        }
        return new, -distance if self.dense else inside, torch.zeros_like(self.ended)

    def sense(self, state: State) -> Sequence[Tensor]:
        inside = (off(state["place"], state["platform"]) <= self.radius).to(self.dtype)
        return [*state["place"], inside, *state["platform"], *state["drift"]]

    def render(self, env_index: int = 0) -> np.ndarray:
        place, drift, platform = (
            self.state[key][:, env_index].tolist() for key in ("place", "drift", "platform")
        )
        stayed = int(self.state["stayed"][env_index])
        shown = {**self.clock(env_index), "on platform": f"{stayed} of {STAY}"}
        return maze_scene(place, drift, platform, self.radius, shown)


class WaterMazeSimple(WaterMaze):
    """The platform is 0.7 from the middle, at any angle; the swimmer starts in the middle, at rest, and coasts.

    The action adds up to 0.03 to its speed, which stays within 0.1 per axis and is sensed too. The wall stops it.
    """

    id = "WaterMazeSimple-v0"
    choices: ClassVar[Choices] = {"full": range(7), "hidden": (0, 1, 2, 5, 6)}
    coasts, gain, top = 1.0, 0.03, 0.1

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        max_steps: int = 200,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device, observe, concat, max_steps=max_steps, compile=compile, dtype=dtype)

    def initial(self, generator: torch.Generator) -> State:
        platform = polar(0.7, 2 * math.pi * self.uniform(1, generator)[0])
        return {"place": self._still, "drift": self._still, "platform": platform, "stayed": self._still[0]}

    def elsewhere(self, platform: Tensor, generator: torch.Generator) -> Tensor:
        return self._still


def swim(place: Tensor, drift: Tensor, push: Tensor, coasts: float, top: float) -> tuple[Tensor, Tensor]:
    """Place and speed [2, B] one step later: a move out of the pool does not happen, and stops the swimmer."""
    drift = (coasts * drift + push).clamp(-top, top)
    there = place + drift
    inside = there.square().sum(0) <= 1
    return torch.where(inside, there, place), drift.masked_fill(~inside, 0)


def polar(distance: Tensor | float, angle: Tensor) -> Tensor:
    """Points [2, ...] at these distances and angles."""
    return torch.stack([distance * angle.cos(), distance * angle.sin()])


def off(place: Tensor, platform: Tensor) -> Tensor:
    """Distances from the platform's middle."""
    return (place - platform).square().sum(0).sqrt()
