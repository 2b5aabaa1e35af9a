"""A point on a square table that is to reach a place, or to push a puck there, with a sparse reward.

The table has sides of 2. An action moves the point by at most 0.1 in each direction. The puck has a radius of 0.15: a
point that would enter it pushes it ahead, straight away from itself, and nothing slides on. Nobody leaves the table.
The goal is anywhere on the table, for the puck at least 0.2 from its edge, where it can be pushed everywhere, and
so is the puck's start. The reward is 0 while point or puck are within 0.1 of the goal, else -1; an episode is truncated
after 50 steps and never terminates.

Sensed: place of the point, and where the puck is from there.
"""

import math

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.spec import Continuous
from whorl.envs.native.goal_world import GoalWorld
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import table_scene

STEP, PUCK, RADIUS, EDGE = 0.1, 0.15, 0.1, 0.2


class PointGoal(GoalWorld):
    """State: `place` and `goal` [2, B], with `push` also `puck` [2, B].

    Args:
        push: a puck is to be pushed to the goal; false: the point is to reach it.
        max_steps: steps after which an episode is truncated.
    """

    id = "PointReach-v0"
    fps = 10

    def __init__(
        self, num_envs: int, device: torch.device | str = "cpu", push: bool = False, max_steps: int = 50
    ) -> None:
        action = Continuous((2,), (-1.0, -1.0), (1.0, 1.0))
        far = 2 if push else 1  # from edge to edge, where the puck is seen from the point
        super().__init__(num_envs, device, action, (4 if push else 2, 2), (-far, far), max_steps, False)
        self.push = push

    def initial(self, generator: torch.Generator) -> State:
        drawn = 2 * torch.rand(3, 2, self.num_envs, generator=generator, device=self.device) - 1
        place, goal, puck = drawn
        if not self.push:
            return {"place": place, "goal": goal}
        puck = (1 - EDGE) * puck
        return {"place": _outside(place, puck), "goal": (1 - EDGE) * goal, "puck": puck}

    def move(self, state: State, action: tree.Tree) -> State:
        place = (state["place"] + STEP * action.T.clamp(-1, 1)).clamp(-1, 1)
        if not self.push:
            return {**state, "place": place}
        away = state["puck"] - place
        distance = torch.linalg.vector_norm(away, dim=0)
        ahead = place + away * (PUCK / distance.clamp(min=1e-6))
        puck = torch.where(distance < PUCK, ahead, state["puck"]).clamp(-1, 1)
        # A puck at the edge of the table stops the point.
        return {**state, "place": _outside(place, puck), "puck": puck}

    def seen(self, state: State) -> Tensor:
        if not self.push:
            return state["place"]
        return torch.cat((state["place"], state["puck"] - state["place"]))

    def achieved(self, state: State) -> Tensor:
        return state["puck" if self.push else "place"]

    def matches(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return torch.linalg.vector_norm(achieved - desired, dim=-1) <= RADIUS

    def render(self, env_index: int = 0) -> np.ndarray:
        place, goal = (self.state[key][:, env_index].tolist() for key in ("place", "goal"))
        puck = self.state["puck"][:, env_index].tolist() if self.push else None
        shown = {**self.clock(env_index), "distance": f"{math.dist(puck or place, goal):.2f}"}
        return table_scene(place, puck, goal, (PUCK, RADIUS), shown)


def _outside(place: Tensor, puck: Tensor) -> Tensor:
    """Places [2, B] that are not within a puck: those that are go to its rim, the shortest way."""
    away = place - puck
    distance = torch.linalg.vector_norm(away, dim=0)
    rim = puck + away * (PUCK / distance.clamp(min=1e-6))
    return torch.where(distance < PUCK, rim, place)
