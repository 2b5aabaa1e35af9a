"""QuadInvPendulum-v0: swing a chain of four links up from hanging and hold it upright, by moving the cart below it.

The action, in [-1, 1], is the cart's acceleration in units of 40 m/s²: the cart has no mass. The equations of the chain
are in `chain`. Sensed: position and velocity of the cart, then per link sine and cosine of its angle to the link below,
and its angular velocity. Differs from the original: the coupling of the cart and the first link has the coefficient
h_1 = 0.364, not 0.376, and a state that is not finite gives reward 0.

With `curriculum`, training starts along a swing-up that trajectory optimisation found, near its end at first (Salimans
and Chen 2018, arXiv:1812.03381; Resnick et al. 2018, arXiv:1807.06919). Its actions are not used.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.envs.native import chain
from whorl.envs.native.sensed import Choices, Sensed, box
from whorl.envs.native.world import State
from whorl.envs.rendering.scenes import cart_scene

PUSH, PERIOD = 40.0, chain.SUBSTEPS * chain.DT
RAIL, TOP_SPEED = 0.75, 35.0
NEAREST = 0.003
"""the smallest of `random_starts`, as a share of the largest"""
LEVEL_STEP, LEVEL_RANGE = 0.05, 0.12
"""`curriculum`: change of an environment's level after an episode, and levels below it that starts are drawn from"""
UPRIGHT = 0.7
"""`curriculum`: an episode that ends with at least this reward, for an action of 0, raises the level"""
NOISE = 0.001
"""`curriculum`: standard deviation of the starts around the swing-up, in all ten numbers"""


class QuadInvPendulum(Sensed):
    """State: `body` [10, B] (position of the cart and four absolute angles, then the velocities of these five); with
    `curriculum` also `level` [1, B], from 0 to 1.

    Args:
        concat: number of observations that are concatenated, newest last.
        friction: in the joints; without it the chain keeps its energy while the cart is at rest.
        compile: fuse the integrator with torch.compile (a slow first call of up to a minute, then ten times faster).
        dtype: float32 or float64, for physics and observations.
        random_starts: share of the episodes of training that start somewhere around upright, at all distances.
        training_steps: steps after which an episode of training is truncated.
        curriculum: random starts lie on a swing-up instead: near its end at first, in each environment earlier after an
            episode that ends upright and later after each other one.
    """

    id = "QuadInvPendulum-v0"
    choices: ClassVar[Choices] = {"full": range(14)}
    training_options = ("random_starts", "training_steps", "curriculum")

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        concat: int = 1,
        friction: bool = True,
        compile: bool = False,
        dtype: str = "float32",
        random_starts: float = 0.0,
        training_steps: int = 1000,
        curriculum: bool = False,
    ) -> None:
        if training_steps < 1:
            raise ConfigError(f"training_steps is {training_steps}; it must be at least 1")
        super().__init__(num_envs, device, box(-1.0, 1.0), "full", concat, training_steps, dtype)
        if not 0 <= random_starts <= 1:
            raise ConfigError(f"random_starts is {random_starts}; it is a share of the episodes, from 0 to 1")
        if curriculum and not random_starts:
            raise ConfigError(
                "curriculum is true, but random_starts is 0; give the share of random starts, such as 0.9"
            )
        self._random_starts, self._curriculum = random_starts, curriculum
        self._swing = chain.swing(num_envs, self.device, self.dtype, friction, compile)
        self._hanging = self.constant(0, *[math.pi] * 4, *[0] * 5)
        if curriculum:
            self._swing_up = torch.from_numpy(swing_up()[:, :10].T).to(self.device, self.dtype)  # [10, T]

    def reset(self, seed: int) -> tree.Tree:
        self.steps.zero_()  # for `_levels`: no episode has ended
        return super().reset(seed)

    def initial(self, generator: torch.Generator) -> State:
        hanging = torch.add(self._hanging, self.normal(10, generator), alpha=0.01)
        if not self._random_starts:
            return {"body": hanging}
        elsewhere = self.uniform(1, generator) < self._random_starts
        reach = 1 - self.uniform(1, generator)  # [1, B]
        if not self._curriculum:
            start = self._around_upright(NEAREST ** (1 - reach), generator)
            return {"body": torch.where(elsewhere, start, hanging)}
        level = self._levels()
        reach = (level - LEVEL_RANGE * reach).clamp(min=0)
        row = ((1 - reach[0]) * (self._swing_up.shape[1] - 1)).round().long()  # [B]
        start = torch.add(self._swing_up[:, row], self.normal(10, generator), alpha=NOISE)
        return {"body": torch.where(elsewhere, start, hanging), "level": level}

    def _levels(self) -> Tensor:
        """The levels [1, B] of the next episodes, after those in progress; 0 before the first."""
        if not self.state:
            return self.constant(0).expand(1, self.num_envs)
        body = self.state["body"]
        upright = self._inside(body) & (reward(body, torch.zeros_like(body[0])) >= UPRIGHT)
        change = torch.where(upright, LEVEL_STEP, -LEVEL_STEP)
        return torch.where(self.steps > 0, self.state["level"] + change, 0).clamp(0, 1)

    def _around_upright(self, size: Tensor, generator: torch.Generator) -> Tensor:
        """States [10, B] at the distances `size` [1, B] to upright, where 1 is anywhere.
        All links share a rotation and a spin, and each adds a smaller one."""
        place, speed, turn, spin = (2 * self.uniform(4, generator) - 1).split(1)
        bends, spins = self.normal(8, generator).split(4)
        angles = size * (math.pi * turn + 0.3 * bends)
        speeds = size * (8 * spin + 3 * spins)
        return torch.cat([0.4 * place, angles, 2 * size.sqrt() * speed, speeds])

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        control = self.control(action)
        push = PUSH * control  # [1, B]
        place, angles, speed, speeds = state["body"].split((1, 4, 1, 4))
        angles, speeds = self._swing(angles, speeds, push[0])
        place = place + PERIOD * speed + (PERIOD**2 / 2) * push
        body = torch.cat([place, angles, speed + PERIOD * push, speeds])
        return {**state, "body": body}, reward(body, control[0]).nan_to_num(0.0), ~self._inside(body)

    def _inside(self, body: Tensor) -> Tensor:
        """Whether episodes go on [B]. Comparisons with NaN are false: a state that is not finite terminates, too."""
        return (body[0].abs() <= RAIL) & (body[6:].abs().amax(0) < TOP_SPEED)

    def sense(self, state: State) -> Sequence[Tensor]:
        body = state["body"]
        bends = relative(body)
        links = zip(bends.sin(), bends.cos(), body[6:])
        return [body[0], body[5], *(row for link in links for row in link)]

    def render(self, env_index: int = 0) -> np.ndarray:
        x, *angles = self.state["body"][:5, env_index].tolist()
        return cart_scene(
            x, RAIL, [-q for q in angles], chain.LENGTH, {**self.clock(env_index), "cart": f"{x:+.2f} m"}
        )

    def traces(self, env_index: int) -> dict[str, dict[str, float]]:
        place, *angles = self.state["body"][:5, env_index].tolist()
        degrees = [math.degrees(math.remainder(angle, 2 * math.pi)) for angle in angles]
        return {
            "position, m": {"cart": place},
            "attitude, degrees": {str(link): angle for link, angle in enumerate(degrees, 1)},
        }


def swing_up() -> np.ndarray:
    """States and actions [151, 11] of a swing-up from hanging at rest almost to upright at rest."""
    return np.loadtxt(Path(__file__).with_suffix(".csv"), delimiter=",")


def relative(body: Tensor) -> Tensor:
    """The angle of the first link, then of each other one to the link below it [4, B]."""
    return torch.cat([body[1:2], body[2:5] - body[1:4]])


def reward(body: Tensor, action: Tensor) -> Tensor:
    """At most 1: cart in the middle, small action, straight joints, slow links."""
    central = 0.5 + 0.5 * (-0.7 * body[0].square()).exp()
    lazy = 0.8 + 0.2 * (1 - action.square()).clamp(min=0)
    straight = (0.5 + 0.5 * relative(body).cos()).prod(0)
    calm = 0.5 + 0.5 * (-0.2 * body[6:].square().amax(0)).exp()
    return central * lazy * straight * calm
