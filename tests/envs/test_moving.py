"""Moving and sliding: worked steps, what ends an episode, and a driver that stops in the target."""

import math

import pytest
import torch
from torch import Tensor

from whorl.envs.native import WORLDS
from whorl.envs.native.moving import ACCELERATE, BRAKE, TURN, Moving


def placed(
    x: float, y: float, facing: float, speed: float, target: tuple[float, float] = (0.5, 0), **options: object
) -> Moving:
    world = Moving(1, dtype="float64", **options)
    world.reset(0)
    state = world.state
    state["place"][:, 0], state["target"][:, 0] = torch.tensor([x, y]), torch.tensor(target)
    state["facing"].fill_(facing), state["course"].fill_(facing), state["speed"].fill_(speed)
    return world


def act(choice: int, push: float = 0.0, turn: float = 0.0) -> dict[str, Tensor]:
    return {"0": torch.tensor([choice]), "1": torch.tensor([[2 * push - 1, turn]])}


def test_accelerating_by_hand():
    world = placed(0, 0, 0, 0.2)
    step = world.step(act(ACCELERATE, push=0.5))
    assert float(world.state["speed"]) == pytest.approx(0.45)
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.005 * 0.45, 0])
    assert float(step.reward) == pytest.approx(0.005 * 0.45 - 0.001)
    assert not step.terminated.any()


def test_turning_by_hand():
    world = placed(0, 0, 0, 1.0)
    step = world.step(act(TURN, turn=0.5))
    half = math.sqrt(0.5)
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.005 * half, 0.005 * half])
    seen = [
        0.005 * half,
        0.005 * half,
        1,
        half,
        half,
        0.5,
        0,
        math.dist((0.5, 0), (0.005 * half,) * 2),
        0,
        1 / 200,
    ]
    assert step.obs[0].tolist() == pytest.approx(seen)


def test_braking_stops_below_a_tenth_and_stopping_in_the_target_is_the_goal():
    world = placed(0.45, 0, 0, 0.15)
    first = world.step(act(BRAKE))
    assert float(world.state["speed"]) == pytest.approx(0.05)
    assert not first.terminated.any() and float(first.obs[0, 8]) == 1
    second = world.step(act(BRAKE))
    assert float(world.state["speed"]) == 0
    assert float(second.reward) == pytest.approx(1 - 0.001)
    assert second.terminated.all() and float(second.measures) == 1


def test_a_start_within_the_target_is_no_success_before_a_step():
    world = placed(0.5, 0, 0, 0)
    assert not world.measure(world.state)[0].any()
    assert float(world.step(act(TURN)).measures) == 1  # it is at rest within the target after a step


def test_leaving_the_field_and_running_out_of_time_cost_one_and_terminate():
    world = placed(0.999, 0, 0, 1.0)
    step = world.step(act(ACCELERATE, push=1))
    assert float(step.reward) == -1 and step.terminated.all() and float(step.measures) == 0
    late = placed(0, 0, 0, 0)
    late.state["time"].fill_(199), late.steps.fill_(199)
    step = late.step(act(TURN))
    assert not step.terminated.any() and float(step.obs[0, 9]) == 1
    step = late.step(act(TURN))
    assert float(step.reward) == -1 and step.terminated.all() and not step.truncated.any()


def test_a_sliding_agent_keeps_its_course_when_it_turns_and_adds_velocities():
    world = placed(0, 0, 0, 0.3, sliding=True)
    world.step(act(TURN, turn=1))
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.0015, 0])
    world.step(act(ACCELERATE, push=0.8))  # 0.4 upwards: 3-4-5
    assert float(world.state["speed"]) == pytest.approx(0.5)
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.003, 0.002])


def driver(world: Moving) -> dict[str, Tensor]:
    """Turn to the target, hold a speed that can be braked off, and brake."""
    away = world.state["target"] - world.state["place"]
    off = torch.atan2(away[1], away[0]) - world.state["facing"]
    off = torch.remainder(off + math.pi, 2 * math.pi) - math.pi
    distance, speed = torch.linalg.vector_norm(away, dim=0), world.state["speed"]
    stops = 0.025 * speed.square() + 0.01  # braking takes 0.1 off per step
    brake = (distance < stops + 0.05) | (distance < 0.08)
    choice = torch.where(off.abs() > 0.05, TURN, torch.where(brake, BRAKE, ACCELERATE))
    push = ((2.5 - speed) / 0.5).clamp(0, 1)
    return {"0": choice, "1": torch.stack([2 * push - 1, (off / (math.pi / 2)).clamp(-1, 1)], 1)}


def test_a_driver_succeeds_nearly_always_and_returns_what_is_possible():
    world = Moving(400)
    world.reset(0)
    start, first = world.state["place"] - world.state["target"], torch.ones(400, dtype=torch.bool)
    returns, success = torch.zeros(400), torch.zeros(400)
    for _ in range(201):
        step = world.step(driver(world))
        ended = step.terminated & first
        returns[ended], success[ended] = world.returns[ended], step.measures[ended, 0]
        first &= ~step.terminated
    assert float(success.mean()) > 0.97
    # 1 for stopping in the target, and the distance but for the last 0.1 at most.
    assert float(returns.mean()) == pytest.approx(1 + float(torch.hypot(*start).mean()), abs=0.25)


def test_sliding_is_the_same_task_with_another_motion():
    assert WORLDS["Sliding-v0"](1).sliding and not WORLDS["Moving-v0"](1).sliding
