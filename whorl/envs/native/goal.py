"""Robot soccer goal (Masson et al. 2016, arXiv:1509.01644): kick a ball past a keeper.

An action is kick-to (0) with a point (x, y), or shoot at the left (1) or the right (2) of the goal line with a height y
on it. It lasts until it is done: a kick until the player has reached the resting ball, a shot until the episode ends.
The reward is 50 for a goal, and minus the distance of the ball from the goal where the keeper catches it or it leaves
the field; both terminate. Sensed, scaled as in gym-goal: position, velocity and direction of player and keeper,
position and velocity of the ball; and, with `observe="features"`, the direction from keeper to ball and the keeper's
projection from the ball onto the goal line, over half the goal's width.

In each tick the player kicks the ball if it is within 1.6, so that it would come to rest at the target, and otherwise
turns to it or dashes; the keeper walks to where the ball will stop, or, if that is in the goal, faster to the nearest
point of its path; all move and slow down, and those that overlap are pushed apart. Directions of all acceleration have
random errors. Everything within 2 of the keeper is caught.

Differs from gym-goal: an action lasts at most 300 ticks; the time limit of 100 actions truncates and has no reward of
its own; a ball that passes the goal on either side is as far as its distance to the nearer post.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.envs.native.sensed import Choices, Sensed, hybrid, wrapped
from whorl.envs.native.world import State, compiled
from whorl.envs.rendering.scenes import pitch_scene

KICK, LEFT, RIGHT = range(3)
LENGTH, WIDTH, GOAL, DEPTH, AREA = 20.0, 30.0, 14.02, 2.44, 5.5
"""of the half pitch, the goal, and the goal area"""
KICKABLE, CATCHABLE = 1.6, 2.0
PLAYER_SIZE, BALL_SIZE = 0.9, 0.4
PLAYER_RATE, BALL_RATE = 0.006, 0.027
"""acceleration per unit of power"""
PLAYER_DECAY, BALL_DECAY = 0.4, 0.94
PLAYER_MOST, BALL_MOST = 1.0, 2.7
"""largest component of accelerations and velocities"""
PLAYER_ERROR, BALL_ERROR = 0.1, 0.05
MOST_POWER, DASH, WALK, DIVE, INERTIA = 100.0, 10.0, 8.0, 20.0, 5.0
FACING, RESTING = math.pi / 8, 0.1
PRIZE = 50.0
MOST_TICKS = 300


class Goal(Sensed):
    """State: `place` and `speed` [2, 3, B] (of player, keeper and ball), `facing` [2, B] (player, keeper).

    Args:
        observe: features (17 numbers), full (14, without the three features), or p (positions and directions).
        concat: number of observations that are concatenated, newest last.
        kick_x_only: kick-to aims at (x, x), which is what gym-goal does, not at (x, y), which it describes.
        max_steps: steps after which an episode is truncated.
        compile: fuse the rules of a tick with torch.compile.
        dtype: float32 or float64, for physics and observations.
    """

    id = "Goal-v0"
    fps = 2
    choices: ClassVar[Choices] = {"features": range(17), "full": range(14), "p": (0, 1, 4, 5, 6, 9, 10, 11)}

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        observe: str = "features",
        concat: int = 1,
        kick_x_only: bool = False,
        max_steps: int = 100,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        high = (2 * LENGTH, WIDTH / 2, GOAL / 2, GOAL / 2)
        action = hybrid(3, (0.0, -WIDTH / 2, -GOAL / 2, -GOAL / 2), high)
        used = ((0,) if kick_x_only else (0, 1), (2,), (3,))
        super().__init__(num_envs, device, action, observe, concat, max_steps, dtype, (SUCCESS,), used)
        self.every_tick = self.device.type != "cpu"
        """do all ticks that a step may take, so that it can be captured; otherwise stop when every action is done"""
        self.kick_x_only = kick_x_only
        self._tick = compiled(tick) if compile else tick
        self._high = self.constant(*high)

    def initial(self, generator: torch.Generator) -> State:
        y = WIDTH * (self.uniform(1, generator)[0] - 0.5)
        zero = torch.zeros_like(y)
        ahead = torch.atan2(-y, zero + LENGTH)
        reach = KICKABLE - 1e-5
        ball = (reach * ahead.cos(), y + reach * ahead.sin())
        keeper = (zero + LENGTH - AREA, ball[1] * AREA / (LENGTH - ball[0]))
        place = torch.stack([torch.stack(rows) for rows in zip((zero, y), keeper, ball)])
        facing = torch.stack([ahead, torch.atan2(ball[1] - keeper[1], ball[0] - keeper[0])])
        return {"place": place, "speed": torch.zeros_like(place), "facing": facing}

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        choice, share = action["0"], self.control(action["1"])
        x, y, left, right = torch.cat([(share[:1] + 1) / 2, share[1:]]) * self._high
        kick = choice == KICK
        goal_line = torch.stack(
            [torch.full_like(x, LENGTH + BALL_SIZE), torch.where(choice == LEFT, left, right)]
        )
        target = torch.where(kick, torch.stack([x, x if self.kick_x_only else y]), goal_line)
        errors = 2 * self.uniform(6 * MOST_TICKS, self.generator).view(MOST_TICKS, 2, 3, -1) - 1
        place, speed, facing = state["place"], state["speed"], state["facing"]
        busy = torch.ones_like(self.ended)
        for number in range(MOST_TICKS):
            moved, rests = self._tick(place, speed, facing, target, errors[number])
            place, speed, facing = (
                torch.where(busy, new, old) for new, old in zip(moved, (place, speed, facing))
            )
            busy = busy & ~(_scored(place) | _lost(place) | (kick & rests))
            if not self.every_tick and not bool(busy.any()):
                break
        scored, lost = _scored(place), _lost(place)
        reward = torch.where(scored, PRIZE, torch.where(lost, -_goal_distance(place[:, 2]), 0))
        return {"place": place, "speed": speed, "facing": facing}, reward, scored | lost

    def sense(self, state: State) -> Sequence[Tensor]:
        (px, kx, bx), (py, ky, by) = state["place"]
        (pu, ku, bu), (pv, kv, bv) = state["speed"]
        facing = state["facing"] / (2 * math.pi) + 0.5
        player = [px / LENGTH, py / WIDTH + 0.5, pu / 2 + 0.5, pv / 2 + 0.5, facing[0]]
        keeper = [kx / LENGTH, ky / WIDTH + 0.5, ku / 2 + 0.5, kv / 2 + 0.5, facing[1]]
        ball = [bx / LENGTH, by / WIDTH + 0.5, bu / 6 + 0.5, bv / 6 + 0.5]
        away = torch.hypot(bx - kx, by - ky).clamp(min=1e-6)
        along = torch.where(kx == bx, 1e-6, kx - bx)
        seen = by + (ky - by) / along * (LENGTH - bx)
        features = [(bx - kx) / away, (by - ky) / away, (seen / (GOAL / 2)).clamp(-1, 1)]
        return [*player, *keeper, *ball, *features]

    def measure(self, state: State) -> Sequence[Tensor]:
        return [_scored(state["place"])]

    def render(self, env_index: int = 0) -> np.ndarray:
        xs, ys = self.state["place"][..., env_index].tolist()
        player, keeper, ball = zip(xs, ys)
        facing = self.state["facing"][:, env_index].tolist()
        shown = {**self.clock(env_index), "ball": f"{ball[0]:.1f}, {ball[1]:+.1f}"}
        return pitch_scene(player, keeper, ball, facing, (LENGTH, WIDTH, GOAL), CATCHABLE, shown)


def tick(
    place: Tensor, speed: Tensor, facing: Tensor, target: Tensor, errors: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Positions, velocities and directions one tick later, and whether the ball rests within reach of the player.

    `target` [2, B] is where the ball is to go, `errors` [2, 3, B] are uniform within 1: of player or ball, of keeper.
    """
    (player, keeper, ball), (walk, run, roll) = place.unbind(1), speed.unbind(1)
    near = _length(ball - player) <= KICKABLE
    at_ball = _angle(ball - player)
    off = wrapped(at_ball - facing[0])
    faces = off.abs() < FACING

    # The player: a kick, or a dash, or a turn.
    wanted = (1 - BALL_DECAY) * (target - player) - roll
    quality = 1 - 0.25 * off.abs() / math.pi - 0.25 * _length(ball - player) / KICKABLE
    strength = torch.minimum(_length(wanted), MOST_POWER * BALL_RATE * quality)
    kicked = _accelerated(roll, strength, _angle(wanted), errors[0], BALL_ERROR, BALL_MOST)
    dashed = _accelerated(walk, DASH * PLAYER_RATE, facing[0], errors[0], PLAYER_ERROR, PLAYER_MOST)
    turned = facing[0] + off / (1 + INERTIA * _length(walk))
    ahead = torch.where(near | faces, facing[0], turned)

    # The keeper sees the kick.
    roll = torch.where(near, kicked, roll)
    walk = torch.where(~near & faces, dashed, walk)
    end = ball + roll / (1 - BALL_DECAY)
    slope = roll[1] / torch.where(roll[0] == 0, 1, roll[0])
    crosses = ball[1] + slope * (LENGTH - ball[0])
    threat = (end[0] > LENGTH) & (crosses.abs() <= GOAL / 2 + CATCHABLE) & (roll[0] != 0) & (roll[1] != 0)
    along = ((keeper - ball) * roll).sum(0) / roll.square().sum(0).clamp(min=1e-12)
    goes_to = torch.where(threat, ball + along * roll, end)
    watch = _angle(goes_to - keeper)
    power = torch.where(threat, DIVE, WALK) * PLAYER_RATE
    run = _accelerated(run, power, watch, errors[1], PLAYER_ERROR, PLAYER_MOST)

    player, keeper, ball = player + walk, keeper + run, ball + roll
    walk, run, roll = PLAYER_DECAY * walk, PLAYER_DECAY * run, BALL_DECAY * roll
    player, keeper, walk, run = _apart(player, keeper, walk, run, 2 * PLAYER_SIZE)
    player, ball, walk, roll = _apart(player, ball, walk, roll, PLAYER_SIZE + BALL_SIZE)
    keeper, ball, run, roll = _apart(keeper, ball, run, roll, PLAYER_SIZE + BALL_SIZE)

    rests = (_length(roll) <= RESTING) & (_length(ball - player) <= KICKABLE)
    moved = (
        torch.stack([player, keeper, ball], 1),
        torch.stack([walk, run, roll], 1),
        torch.stack([ahead, watch]),
    )
    return moved, rests


def _accelerated(
    speed: Tensor, strength: Tensor | float, angle: Tensor, errors: Tensor, error: float, most: float
) -> Tensor:
    """A velocity after an acceleration, with errors in proportion to the angle and to the speed."""
    angle = (1 + error * errors[0]) * angle
    push = strength * torch.stack([angle.cos(), angle.sin()]) + error * _length(speed) * errors[1:]
    return (speed + push.clamp(-most, most)).clamp(-most, most)


def _apart(
    one: Tensor, other: Tensor, speed: Tensor, other_speed: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two that are nearer than `least` are moved apart to it, and turn back."""
    away = other - one
    distance = _length(away)
    overlap = (least - distance).clamp(min=0) / 2
    shift = overlap * away / distance.clamp(min=1e-9)
    turn = torch.where(distance < least, -1.0, 1.0).to(speed.dtype)
    return one - shift, other + shift, speed * turn, other_speed * turn


def _scored(place: Tensor) -> Tensor:
    x, y = place[:, 2]
    return (x >= LENGTH) & (x <= LENGTH + DEPTH) & (y.abs() <= GOAL / 2)


def _lost(place: Tensor) -> Tensor:
    """Whether the keeper has the ball, or it is off the field and not in the goal."""
    x, y = place[:, 2]
    out = (x < 0) | (x > LENGTH) | (y.abs() > WIDTH / 2)
    return ((_length(place[:, 2] - place[:, 1]) < CATCHABLE) | out) & ~_scored(place)


def _goal_distance(ball: Tensor) -> Tensor:
    """[B] how far the ball is from the goal line between the posts."""
    return torch.hypot((LENGTH - ball[0]).clamp(min=0), (ball[1].abs() - GOAL / 2).clamp(min=0))


def _length(vector: Tensor) -> Tensor:
    return torch.hypot(vector[0], vector[1])


def _angle(vector: Tensor) -> Tensor:
    return torch.atan2(vector[1], vector[0])
