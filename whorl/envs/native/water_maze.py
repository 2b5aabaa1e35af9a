"""Find a hidden platform in a round pool repeatedly: the platform stays in place for the whole episode.

The pool is the disc of radius 1. The action, two numbers in [-1, 1], moves the swimmer by up to 0.04 per axis; a move
out of the pool has no effect. Sensed: position, whether it is on the platform, and the platform's position. A step that
ends on the platform gives reward 1; after the fifth, consecutive or not, the swimmer is moved to a random position.
Angle and distance from the middle are uniform for both, the platform within the pool and the swimmer off the platform.
Episodes are only truncated. The original's actions are within 0.2 and multiplied by 0.2: the same largest move.
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
"""steps on the platform until the swimmer is moved to a random position"""
DRAWS = 8
"""positions drawn at once, of which the first one off the platform is used"""


class WaterMaze(Sensed):
    """State: `place`, `drift`, `platform` [2, B], `stayed` [B] (steps on the platform since the last random position).

    Args:
        observe: full or hidden (without the platform's position).
        concat: number of observations that are concatenated, newest last.
        dense: the reward is minus the distance to the platform's middle.
        radius: of the platform.
        max_steps: steps after which an episode is truncated.
        compile: fuse the move with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "WaterMaze-v0"
    fps = 20
    choices: ClassVar[Choices] = {"full": range(5), "hidden": range(3)}
    coasts, gain, top = 0.0, 0.04, 0.04
    """share of the velocity that is kept, factor of the action, and largest velocity per axis"""

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
                f"radius is {radius}; it must be above 0 and at most 0.5, so that there is something to search"
            )
        self.dense, self.radius = dense, radius
        self._swim = compiled(swim) if compile else swim
        self._still = torch.zeros(2, num_envs, dtype=self.dtype, device=self.device)

    def initial(self, generator: torch.Generator) -> State:
        angle, share = self.uniform(2, generator)
        platform = polar((1 - self.radius) * share, 2 * math.pi * angle)
        place = self.random_place(platform, generator)
        return {"place": place, "drift": self._still, "platform": platform, "stayed": self._still[0]}

    def random_place(self, platform: Tensor, generator: torch.Generator) -> Tensor:
        """A random position off the platform; in the rare case that all draws are on it, the opposite one."""
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
            "place": torch.where(moved, self.random_place(platform, self.generator), place),
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
    """The platform is 0.7 from the middle, at a random angle; the swimmer starts in the middle, at rest.

    The action adds up to 0.03 to its velocity, which is at most 0.1 per axis and is sensed too. The wall stops it.
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

    def random_place(self, platform: Tensor, generator: torch.Generator) -> Tensor:
        return self._still


def swim(place: Tensor, drift: Tensor, push: Tensor, coasts: float, top: float) -> tuple[Tensor, Tensor]:
    """Position and velocity [2, B] one step later: a move out of the pool has no effect and stops the swimmer."""
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
