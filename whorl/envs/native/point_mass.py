"""A point mass that is to reach a target: catch point and hard move (Li et al. 2022, HyAR, arXiv:2109.05490).

A force F moves the agent by v <- 0.75 v + 0.1 F and x <- x + 0.1 v. Agent and target start anywhere in a square of side
2, the agent at rest. Sensed: velocity, and target - agent. The reward is minus the squared distance, and 20 more on
success, which terminates.

Catch point: move (0) with a force of 2 in the direction of the parameter, or catch (1), without a force. A catch within
0.2 of the target succeeds; the eleventh that fails terminates, with reward 0. Truncated after 25 steps.

Hard move: of n actuators, evenly spread over the circle, an action switches any on and others off (2^n choices). Their
sum, divided by the largest such sum, is multiplied by 2 and by the parameter of that choice. Coming within 0.2 of the
target succeeds. Truncated after 30 steps.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError
from whorl.envs.native.sensed import Choices, Sensed, hybrid
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import field_scene

FORCE, DAMPING, DT = 2.0, 0.25, 0.1
RADIUS, PRIZE = 0.2, 20.0
MOVE, CATCH = range(2)
TRIES = 10
"""catches that may fail in an episode"""


class PointMass(Sensed):
    """State: `place`, `speed` and `target` [2, B], `reached` [B]."""

    fps = 10
    choices: ClassVar[Choices] = {"full": range(4), "p": (2, 3)}

    def initial(self, generator: torch.Generator) -> State:
        drawn = 2 * self.uniform(4, generator) - 1
        still, reached = torch.zeros_like(drawn[:2]), torch.zeros_like(self.ended)
        return {"place": drawn[:2], "speed": still, "target": drawn[2:], "reached": reached}

    def moved(self, state: State, force: Tensor) -> tuple[State, Tensor]:
        """The state after a force [2, B], and the squared distance to the target then [B]."""
        speed = (1 - DAMPING) * state["speed"] + DT * force
        place = state["place"] + DT * speed
        return {**state, "place": place, "speed": speed}, (place - state["target"]).square().sum(0)

    def sense(self, state: State) -> Sequence[Tensor]:
        return [*state["speed"], *(state["target"] - state["place"])]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [state["reached"]]

    def render(self, env_index: int = 0) -> np.ndarray:
        at, speed, target = (self.state[key][:, env_index].tolist() for key in ("place", "speed", "target"))
        drift = (0.5 * speed[0], 0.5 * speed[1])
        shown = {**self.clock(env_index), "distance": f"{math.dist(at, target):.2f}"}
        return field_scene(at, target, RADIUS, [drift], shown)


class CatchPoint(PointMass):
    """State: that of a point mass, and `missed` [B], the catches that failed.

    Args:
        observe: full, or p (target - agent).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        dtype: float32 or float64, for physics and observations.
    """

    id = "CatchPoint-v0"

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        max_steps: int = 25,
        dtype: str = "float32",
    ) -> None:
        action = hybrid(2, (-1.0,), (1.0,))
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,), ((0,), ()))

    def initial(self, generator: torch.Generator) -> State:
        return {**super().initial(generator), "missed": torch.zeros_like(self.steps)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        tried, angle = action["0"] == CATCH, math.pi * self.control(action["1"])[0]
        new, distance = self.moved(
            state, FORCE * torch.stack([angle.sin(), angle.cos()]).masked_fill(tried, 0)
        )
        near = distance < RADIUS**2
        reached, missed = tried & near, state["missed"] + (tried & ~near)
        failed = missed > TRIES
        reward = (PRIZE * reached - distance).masked_fill(failed, 0)
        return {**new, "reached": reached, "missed": missed}, reward, reached | failed


class HardMove(PointMass):
    """State: that of a point mass.

    Args:
        observe: full, or p (target - agent).
        concat: number of observations that are concatenated, newest last.
        n: actuators, 2 to 12; HyAR has 4, 6, 8 and 10.
        parameters: each (every choice has a force of its own, 2^n numbers, as in HyAR) or one (shared by all choices).
        max_steps: steps after which an episode is truncated.
        dtype: float32 or float64, for physics and observations.
    """

    id = "HardMove-v0"

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "full",
        concat: int = 1,
        n: int = 6,
        parameters: str = "each",
        max_steps: int = 30,
        dtype: str = "float32",
    ) -> None:
        if not 2 <= n <= 12:
            raise ConfigError(f"n is {n}; choose 2 to 12 actuators")
        if parameters not in ("each", "one"):
            raise ConfigError(f"parameters is {parameters!r}; choose each or one")
        self.shared = parameters == "one"
        count = 1 if self.shared else 2**n
        action = hybrid(2**n, (-1.0,) * count, (1.0,) * count)
        used = () if self.shared else [(choice,) for choice in range(count)]
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,), used)
        self.motions = _motions(n).to(self.device, self.dtype)
        """[2, 2^n] the direction of each choice, at most 1 long"""

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        choice, parameters = action["0"], self.control(action["1"])
        strength = parameters[0] if self.shared else parameters.gather(0, choice[None])[0]
        new, distance = self.moved(state, FORCE * strength * self.motions[:, choice])
        reached = distance < RADIUS**2
        return {**new, "reached": reached}, PRIZE * reached - distance, reached


def _motions(n: int) -> Tensor:
    """The sum of the actuators that each choice switches on: bit i of the choice is actuator i."""
    angles = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)
    actuators = torch.stack([angles.cos(), angles.sin()])  # [2, n]
    switched = (torch.arange(2**n) >> torch.arange(n)[:, None]) & 1  # [n, 2^n]
    sums = actuators @ switched.double()
    return sums / torch.linalg.vector_norm(sums, dim=0).max()
