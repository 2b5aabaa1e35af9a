"""Platform (Masson et al. 2016, arXiv:1509.01644): run, hop and leap across two gaps and past two enemies.

An action is one of run (0), hop (1) and leap (2) with the parameter of that choice, and lasts until it is done: a run
for one second, a jump until the player stands again. Three platforms of width 250, 275 and 50 lie 225 and 235 apart.
The reward is the advance as a share of the whole way, so the best return is 1. Falling, touching an enemy and the far
end terminate. Sensed, scaled to about [0, 1]: position and velocity of the player, position and velocity of the enemy
of its platform, width of that platform and of the next, the gap between, where the platform begins, and a difference of
height that is always 0.

Rules as in gym-platform: in each tick of 0.05 s the player accelerates (in the air by gravity) and loses a little speed
at random, and the enemy of the current platform walks, turns at the edges and changes its speed at random. A jump adds
at most 30 to the horizontal velocity; landing stops the player. The steps of an episode are limited, which truncates.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.sensed import Choices, Sensed, hybrid
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import platform_scene

RUN, HOP, LEAP = range(3)
FARTHEST = (30.0, 720.0, 430.0)
"""largest parameters of run, hop and leap"""
LIFT = (0.0, 35.0, 25.0)
"""upward velocity of a hop and a leap"""
WIDTHS, GAPS, HEIGHT = (250.0, 275.0, 50.0), (225.0, 235.0), 40.0
LEFTS = (0.0, WIDTHS[0] + GAPS[0], WIDTHS[0] + GAPS[0] + WIDTHS[1] + GAPS[1])
END = LEFTS[2] + WIDTHS[2]
WIDE, TALL = 20.0, 30.0
"""of player and enemies"""
DT, GRAVITY, DECAY = 0.05, 9.8, 0.99
RUN_TICKS, TICKS = 20, 145
"""of a run, and at least as many as any jump takes"""
FASTEST, FASTEST_ON_GROUND, FASTEST_ENEMY, MOST_GAIN = 100.0, 70.0, 30.0, 30.0
NOISE = 0.5 * DT
"""standard deviation of the change of a velocity in a tick"""


class Platform(Sensed):
    """State: `body` [7, B]: position, height and velocity of the player, positions and velocities of both enemies.

    Args:
        observe: full, or p (positions and platforms without velocities).
        concat: number of observations that are concatenated, newest last.
        max_steps: steps after which an episode is truncated.
        compile: fuse the walk of the enemies with torch.compile (slow first call).
        dtype: float32 or float64, for physics and observations.
    """

    id = "Platform-v0"
    fps = 2
    choices: ClassVar[Choices] = {"full": range(9), "p": (0, 2, 4, 5, 6, 7)}

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
        action = hybrid(3, (0.0,) * 3, FARTHEST)
        used = ((RUN,), (HOP,), (LEAP,))
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,), used)
        self._walk = compiled(walk) if compile else walk
        self._farthest, self._lift = self.constant(*FARTHEST), self.constant(*LIFT)[:, 0]
        ends = [left + width - WIDE for left, width in zip(LEFTS[:2], WIDTHS)]
        self._edges = self.constant(*LEFTS[:2]), self.constant(*ends)
        self._start = self.constant(0, HEIGHT, 0, *ends, -FASTEST_ENEMY, -FASTEST_ENEMY)
        self._run_done = torch.arange(TICKS, device=self.device)[:, None] >= RUN_TICKS - 1
        ahead = zip(LEFTS, WIDTHS, (*WIDTHS[1:], 0.0), (*GAPS, 0.0))
        rows = [
            (now / WIDTHS[1], then / WIDTHS[1], gap / GAPS[1], left / END) for left, now, then, gap in ahead
        ]
        self._platforms = torch.stack([self.constant(*row)[:, 0] for row in rows], 1)  # [4, 3]

    def initial(self, generator: torch.Generator) -> State:
        return {"body": self._start.repeat(1, self.num_envs)}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        choice, body = action["0"], state["body"]
        parameters = (self.control(action["1"]) + 1) / 2 * self._farthest
        parameter = parameters.gather(0, choice[None])[0]
        pushes = self.normal(2, self.generator).abs()  # of the jump
        drift = NOISE * self.normal(3 * TICKS, self.generator).view(TICKS, 3, -1)
        jumps = choice != RUN
        flown = flight(body, parameter, self._lift[choice], pushes, drift[:, 0].abs())
        ran = run(body, parameter, drift[:RUN_TICKS, 0].abs())
        path = torch.where(jumps, flown, ran)  # [TICKS, 3, B]
        x, y, _ = path.unbind(1)
        before = torch.cat([body[:1], x[:-1]])
        enemies = self._walk(body[3:], before, drift[:, 1:], *self._edges)  # [TICKS, 4, B]
        touched = ((x[:, None] - enemies[:, :2]).abs() < WIDE).any(1) & (y < HEIGHT + TALL)
        over = (y < HEIGHT) | (x >= END) | touched
        done = over | torch.where(jumps, (y <= HEIGHT), self._run_done)
        last = done.int().argmax(0)[None, None]  # the first tick that ends the action
        now = torch.cat([path, enemies], 1).gather(0, last.expand(1, 7, -1))[0]
        return {"body": now}, (now[0] - body[0]) / END, over.gather(0, last[0])[0]

    def sense(self, state: State) -> Sequence[Tensor]:
        x, _, speed, *enemies = state["body"]
        second = x > LEFTS[1]
        enemy, walk = (torch.where(second, enemies[i + 1], enemies[i]) for i in (0, 2))
        here = (x >= LEFTS[1]).long() + (x >= LEFTS[2])
        now = self._platforms[:, here]
        own = [(x + WIDE) / (END + WIDE), speed / FASTEST, enemy / END, walk / (2 * FASTEST_ENEMY) + 0.5]
        return [*own, *now, torch.zeros_like(x)]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [state["body"][0] >= END]

    def render(self, env_index: int = 0) -> np.ndarray:
        x, y, speed, first, second, *_ = self.state["body"][:, env_index].tolist()
        shown = {**self.clock(env_index), "velocity": f"{speed:.0f}"}
        return platform_scene((x, y), (first, second), list(zip(LEFTS, WIDTHS)), HEIGHT, (WIDE, TALL), shown)


def run(body: Tensor, power: Tensor, drift: Tensor) -> Tensor:
    """Path [TICKS, 3, B] of position, height and speed in a run; ticks after its end repeat the last."""
    x, y, speed = body[:3]
    path = []
    for number in range(RUN_TICKS):
        # Off its platform the player falls, which ends the episode.
        standing = _above(x)
        faster = (speed + power - drift[number]).clamp(0, FASTEST_ON_GROUND)
        speed = torch.where(standing, faster, (speed - drift[number]).clamp(min=0))
        x = (x + speed * DT).clamp(max=END)
        y = torch.where(standing, y, HEIGHT - GRAVITY * DT * DT)
        speed = speed * DECAY
        path.append(torch.stack([x, y, speed]))
    return torch.stack(path + [path[-1]] * (TICKS - RUN_TICKS))


def flight(body: Tensor, goal: Tensor, lift: Tensor, pushes: Tensor, drift: Tensor) -> Tensor:
    """Path [TICKS, 3, B] of position, height and speed in a jump, which lands or falls in its first tick at the height
    of the platforms or below.
    """
    ticks = torch.arange(1, TICKS + 1, device=body.device, dtype=body.dtype)[:, None]
    x, _, speed = body[:3]
    gain = torch.minimum(goal / (2 / GRAVITY * lift + 1) - speed, 2 * FASTEST - lift) - pushes[0]
    first = (speed + gain.clamp(-MOST_GAIN, MOST_GAIN) - drift[0]).clamp(0, FASTEST_ON_GROUND)
    # Each tick the speed is multiplied by DECAY, then reduced, but not below 0. Divided by the powers of DECAY it is a
    # sum of reductions that is reflected at 0: the sum less its lowest value below 0 so far.
    power = DECAY ** (ticks - 1)
    sums = torch.cat([first[None], -drift[1:] / power[1:]]).cumsum(0)
    speed = (sums - sums.cummin(0).values.clamp(max=0)) * power
    x = (x + DT * speed.cumsum(0)).clamp(max=END)
    climb = lift - pushes[1]
    y = HEIGHT + DT * (ticks * climb - GRAVITY * DT * ticks * (ticks - 1) / 2)
    speed = speed * DECAY
    for left, width in zip(LEFTS, WIDTHS):
        x, y, speed = _pushed_out(x, y, speed, left, left + width)
    return torch.stack([x, y, speed], 1)


def walk(enemies: Tensor, player: Tensor, drift: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Positions and velocities [TICKS, 4, B] of the two enemies between `left` and `right` [2, 1].

    Only the enemy of the player's platform moves, by its position before each tick.
    """
    second = player > LEFTS[1]
    active = torch.stack([~second, second], 1)  # [TICKS, 2, B]
    drift, reach = drift * active, DT * active
    place, speed = enemies[:2], enemies[2:]
    path = []
    for number in range(TICKS):
        turns = active[number] & ((place <= left) | (place >= right))
        speed = torch.where(turns, -speed, speed) + drift[number]
        speed = speed.clamp(-FASTEST_ENEMY, FASTEST_ENEMY)
        place = torch.addcmul(place, speed, reach[number]).clamp(left, right)
        path.append(torch.cat([place, speed]))
    return torch.stack(path)


def _above(x: Tensor) -> Tensor:
    above = [(x >= left - WIDE) & (x <= left + width) for left, width in zip(LEFTS, WIDTHS)]
    return above[0] | above[1] | above[2]


def _pushed_out(
    x: Tensor, y: Tensor, speed: Tensor, left: float, right: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A player that overlaps a platform is moved on top of it, or to its side if that is nearer, and stops."""
    inside = (x > left - WIDE) & (x < right) & (y > -TALL) & (y < HEIGHT)
    beside = torch.where(x < left, left - WIDE, torch.where(x > right - WIDE, right, x))
    sideways = inside & (beside != x) & ((beside - x).abs() < HEIGHT - y)
    return (
        torch.where(sideways, beside, x),
        y.masked_fill(inside & ~sideways, HEIGHT),
        speed.masked_fill(inside, 0),
    )
