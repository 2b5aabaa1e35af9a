"""Goal: steps against the rules written for one pair of players, what ends an episode, and what shooting is worth."""

import math

import pytest
import torch
from torch import Tensor

from whorl.envs.native.goal import KICK, LEFT, MOST_TICKS, RIGHT, Goal


def act(choice: int, x: float = 0.0, y: float = 0.0, post: float = 0.0) -> dict[str, Tensor]:
    parameters = torch.tensor([[x / 20 - 1, y / 15, post / 7.01, post / 7.01]], dtype=torch.float64)
    return {"0": torch.tensor([choice]), "1": parameters}


def wrap(angle: float) -> float:
    return math.remainder(angle, 2 * math.pi)


class Body:
    """A player, keeper or ball."""

    def __init__(self, at: complex, facing: float, size: float, rate: float, decay: float) -> None:
        self.at, self.speed, self.facing = at, 0j, facing
        self.size, self.rate, self.decay = size, rate, decay
        self.most, self.error = (2.7, 0.05) if decay > 0.5 else (1.0, 0.1)

    def push(self, power: float, angle: float, noise: list[float]) -> None:
        angle *= 1 + self.error * noise[0]
        spread = self.error * abs(self.speed)
        push = power * self.rate * complex(math.cos(angle), math.sin(angle))
        self.speed = self.bound(self.speed + self.bound(push + spread * complex(noise[1], noise[2])))

    def bound(self, value: complex) -> complex:
        return complex(*(max(-self.most, min(self.most, part)) for part in (value.real, value.imag)))


def angle(value: complex) -> float:
    return math.atan2(value.imag, value.real)


class Match:
    """The rules for one match, tick by tick, in complex numbers."""

    def __init__(self, world: Goal) -> None:
        place, facing = world.state["place"][..., 0].tolist(), world.state["facing"][:, 0].tolist()
        points = [complex(x, y) for x, y in zip(*place)]
        self.player, self.keeper = (Body(points[i], facing[i], 0.9, 0.006, 0.4) for i in (0, 1))
        self.ball = Body(points[2], 0, 0.4, 0.027, 0.94)

    def act(self, target: complex, kick: bool, noise: list[list[list[float]]]) -> tuple[float, bool]:
        for number in range(MOST_TICKS):
            self.play(target, noise[number][0])
            self.guard(noise[number][1])
            for body in (self.player, self.keeper, self.ball):
                body.at += body.speed
                body.speed *= body.decay
            for pair in (
                (self.player, self.keeper),
                (self.player, self.ball),
                (self.keeper, self.ball),
            ):
                self.part(*pair)
            x, y = self.ball.at.real, self.ball.at.imag
            if 20 <= x <= 22.44 and abs(y) <= 7.01:
                return 50.0, True
            if abs(self.ball.at - self.keeper.at) < 2 or not (0 <= x <= 20 and abs(y) <= 15):
                return -math.hypot(max(20 - x, 0), max(abs(y) - 7.01, 0)), True
            if kick and self.reaches() and abs(self.ball.speed) <= 0.1:
                break
        return 0.0, False

    def reaches(self) -> bool:
        return abs(self.ball.at - self.player.at) <= 1.6

    def play(self, target: complex, noise: list[float]) -> None:
        to_ball = self.ball.at - self.player.at
        off = wrap(angle(to_ball) - self.player.facing)
        if self.reaches():
            wanted = 0.06 * (target - self.player.at) - self.ball.speed
            quality = 1 - 0.25 * abs(off) / math.pi - 0.25 * abs(to_ball) / 1.6
            power = min(abs(wanted) / (quality * 0.027), 100) * quality
            self.ball.push(power, angle(wanted), noise)
        elif abs(off) >= math.pi / 8:
            self.player.facing += off / (1 + 5 * abs(self.player.speed))
        else:
            self.player.push(10, self.player.facing, noise)

    def guard(self, noise: list[float]) -> None:
        ball, keeper = self.ball, self.keeper
        end = ball.at + ball.speed / 0.06
        goes_to, power = end, 8
        if ball.speed.real and ball.speed.imag:
            slope = ball.speed.imag / ball.speed.real
            crossing = ball.at.imag + slope * (20 - ball.at.real)
            if end.real > 20 and abs(crossing) <= 9.01:
                # Where the path meets the line through the keeper at a right angle.
                x = (keeper.at.imag + keeper.at.real / slope - ball.at.imag + slope * ball.at.real) / (
                    slope + 1 / slope
                )
                goes_to, power = complex(x, ball.at.imag + slope * (x - ball.at.real)), 20
        keeper.facing = angle(goes_to - keeper.at)
        keeper.push(power, keeper.facing, noise)

    def part(self, one: Body, other: Body) -> None:
        away = other.at - one.at
        overlap = one.size + other.size - abs(away)
        if overlap > 0:
            shift = overlap / 2 * away / abs(away)
            one.at, other.at = one.at - shift, other.at + shift
            one.speed, other.speed = -one.speed, -other.speed


@pytest.mark.parametrize("seed", range(24))
def test_steps_are_those_of_the_rules_written_for_one_match(seed: int):
    world = Goal(1, dtype="float64")
    world.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(6 * MOST_TICKS, 1, generator=generator, dtype=torch.float64)
    world.uniform = lambda rows, _: drawn[:rows]
    choice = (LEFT, KICK, RIGHT)[seed % 3]
    x, y, post = (float(v) for v in torch.rand(3, generator=generator))
    x, y, post = 12 * x, 20 * y - 10, 14 * post - 7
    if seed % 4 == 0:  # the player is somewhere else and has to come back
        world.state["place"][:, 0] += torch.tensor([[2.0], [4.0]], dtype=torch.float64)
    match = Match(world)
    target = complex(x, y) if choice == KICK else complex(20.4, post)
    noise = (2 * drawn - 1).view(MOST_TICKS, 2, 3).tolist()
    reward, ended = match.act(target, choice == KICK, noise)
    step = world.step(act(choice, x, y, post))
    bodies = (match.player, match.keeper, match.ball)
    places = [[body.at.real for body in bodies], [body.at.imag for body in bodies]]
    speeds = [[body.speed.real for body in bodies], [body.speed.imag for body in bodies]]
    assert torch.allclose(world.state["place"][..., 0], torch.tensor(places).double(), atol=1e-6)
    assert torch.allclose(world.state["speed"][..., 0], torch.tensor(speeds).double(), atol=1e-6)
    assert world.state["facing"][:, 0].tolist() == pytest.approx([match.player.facing, match.keeper.facing])
    assert float(step.reward) == pytest.approx(reward, abs=1e-6)
    assert bool(step.terminated) == ended and float(step.measures) == (reward == 50)


def test_players_that_collide_are_moved_apart_and_turn_back():
    world = Goal(1, dtype="float64")
    world.reset(0)
    drawn = torch.full((6 * MOST_TICKS, 1), 0.5, dtype=torch.float64)
    world.uniform = lambda rows, _: drawn[:rows]
    world.state["place"][..., 0] = torch.tensor([[5.0, 6.5, 3.5], [0.0, 0.4, 0.0]])
    world.state["speed"][..., 0] = torch.tensor([[0.3, -0.4, 0.0], [0.0, 0.1, 0.0]])
    world.state["facing"][:, 0] = torch.tensor([torch.pi, torch.pi])
    match = Match(world)
    for body, (x, y) in zip((match.player, match.keeper), ((0.3, 0.0), (-0.4, 0.1))):
        body.speed = complex(x, y)
    reward, ended = match.act(complex(4, 1), True, [[[0.0] * 3] * 2] * MOST_TICKS)
    step = world.step(act(KICK, 4, 1))
    bodies = (match.player, match.keeper, match.ball)
    places = [[body.at.real for body in bodies], [body.at.imag for body in bodies]]
    speeds = [[body.speed.real for body in bodies], [body.speed.imag for body in bodies]]
    assert torch.allclose(world.state["place"][..., 0], torch.tensor(places).double(), atol=1e-5)
    assert torch.allclose(world.state["speed"][..., 0], torch.tensor(speeds).double(), atol=1e-5)
    assert float(step.reward) == pytest.approx(reward, abs=1e-5) and bool(step.terminated) == ended


def test_the_keeper_starts_on_the_line_from_the_ball_to_the_middle_of_the_goal():
    world = Goal(50, dtype="float64")
    world.reset(0)
    (_, keeper_x, ball_x), (_, keeper_y, ball_y) = world.state["place"]
    assert (keeper_x == 14.5).all()
    torch.testing.assert_close(keeper_y / (20 - keeper_x), ball_y / (20 - ball_x))
    away = world.state["place"][:, 2] - world.state["place"][:, 0]
    assert (torch.hypot(*away) <= 1.6).all() and (torch.hypot(*away) > 1.599).all()


def test_kicking_to_the_first_coordinate_only_is_an_option():
    both, first = Goal(1, dtype="float64"), Goal(1, dtype="float64", kick_x_only=True)
    ends = []
    for world in (both, first):
        world.reset(1)
        world.uniform = lambda rows, _: torch.full((rows, 1), 0.5, dtype=torch.float64)
        world.step(act(KICK, 8, -3))
        ends.append(world.state["place"][1, 2].item())
    assert ends[0] < 0 < ends[1]  # towards y = -3 and towards y = 8


def test_stopping_early_changes_no_step():
    early, whole = Goal(30), Goal(30)
    whole.every_tick = True
    early.reset(0), whole.reset(0)
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        action = {
            "0": torch.randint(3, (30,), generator=generator),
            "1": torch.rand(30, 4, generator=generator) * 2 - 1,
        }
        a, b = early.step(action), whole.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward)


def test_a_striker_that_draws_the_keeper_aside_scores_where_a_direct_shot_never_does():
    world = Goal(200)
    world.reset(0)
    world.state["place"][1] *= 0.25  # starts within 4 of the middle, where one kick aside is enough
    world.state["facing"][0] = torch.atan2(-world.state["place"][1, 0], torch.tensor(20.0))
    start = world.snapshot()
    y = world.state["place"][1, 0]
    side = y.sign()
    parameters = torch.stack([y * 0 - 0.9, (y + 6.3 * side) / 15, side * 4.95 / 7.01, side * 0.7], 1)
    kick, shot = ({"0": torch.full((200,), choice), "1": parameters} for choice in (KICK, LEFT))
    direct = world.step(shot)
    assert direct.terminated.all() and float(direct.measures.mean()) < 0.05
    world.restore(start)
    assert not world.step(kick).terminated.any()
    aside = world.step(shot)
    assert aside.terminated.all() and float(aside.measures.mean()) > 0.7
