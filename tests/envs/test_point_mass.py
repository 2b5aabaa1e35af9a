"""Catch point and hard move: worked steps, what ends an episode, and scripted success."""

import math

import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.envs.native.point_mass import CATCH, MOVE, CatchPoint, HardMove, PointMass


def put(world: PointMass, place: tuple[float, float], target: tuple[float, float]) -> PointMass:
    world.reset(0)
    world.state["place"][:] = torch.tensor(place)[:, None]
    world.state["target"][:] = torch.tensor(target)[:, None]
    return world


def catch(choice: int, angle: float = 0.0) -> dict[str, Tensor]:
    return {"0": torch.tensor([choice]), "1": torch.tensor([[angle / math.pi]])}


def test_a_move_by_hand():
    world = put(CatchPoint(1, dtype="float64"), (0, 0), (0.5, 0))
    world.state["speed"][:, 0] = torch.tensor([0.4, 0.0])
    step = world.step(catch(MOVE, math.pi / 2))  # sine first: to the right
    assert world.state["speed"][:, 0].tolist() == pytest.approx([0.3 + 0.2, 0], abs=1e-6)
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.05, 0], abs=1e-6)
    assert float(step.reward) == pytest.approx(-(0.45**2))
    assert step.obs[0].tolist() == pytest.approx([0.5, 0, 0.45, 0], abs=1e-6)


def test_a_catch_near_the_target_succeeds_and_has_no_force():
    world = put(CatchPoint(1), (0.31, 0), (0.5, 0))
    step = world.step(catch(CATCH, 1.0))
    assert world.state["place"][:, 0].tolist() == pytest.approx([0.31, 0])
    assert float(step.reward) == pytest.approx(20 - 0.19**2)
    assert step.terminated.all() and float(step.measures) == 1


def test_being_near_without_a_catch_is_no_success():
    world = put(CatchPoint(1), (0.5, 0), (0.5, 0))
    step = world.step(catch(MOVE))
    assert not step.terminated.any() and float(step.measures) == 0 and float(step.reward) < 0


def test_the_eleventh_catch_that_fails_ends_the_episode_without_a_reward():
    world = put(CatchPoint(1), (0, 0), (1, 0))
    steps = [world.step(catch(CATCH)) for _ in range(11)]
    assert [float(step.reward) for step in steps] == [-1.0] * 10 + [0.0]
    assert [bool(step.terminated) for step in steps] == [False] * 10 + [True]
    assert float(steps[-1].measures) == 0


def test_actuators_add_up_and_the_strongest_choice_has_length_one():
    world = HardMove(1, n=4, dtype="float64")
    # Right, up, left and down; right and up together are the longest sum.
    half = math.sqrt(0.5)
    expected = {0b0001: (half, 0), 0b0010: (0, half), 0b0011: (half, half), 0b0101: (0, 0), 0b1111: (0, 0)}
    for choice, motion in expected.items():
        assert world.motions[:, choice].tolist() == pytest.approx(motion, abs=1e-12)
    assert float(torch.linalg.vector_norm(world.motions, dim=0).max()) == pytest.approx(1)


@pytest.mark.parametrize("parameters", ["each", "one"])
def test_a_hard_move_by_hand(parameters: str):
    world = put(HardMove(1, n=4, parameters=parameters, dtype="float64"), (0, 0), (1, 0))
    forces = torch.zeros(1, world.spec.action["1"].size)
    forces[0, 0b0011 if parameters == "each" else 0] = 0.5
    step = world.step({"0": torch.tensor([0b0011]), "1": forces})
    moved = 0.1 * 0.1 * 2 * 0.5 * math.sqrt(0.5)
    assert world.state["place"][:, 0].tolist() == pytest.approx([moved, moved])
    assert float(step.reward) == pytest.approx(-((1 - moved) ** 2 + moved**2))


def test_coming_near_is_the_success_of_a_hard_move():
    world = put(HardMove(1), (0.4, 0), (0.5, 0))
    step = world.step({"0": torch.tensor([0]), "1": torch.zeros(1, 64)})
    assert step.terminated.all() and float(step.measures) == 1
    assert float(step.reward) == pytest.approx(20 - 0.01, abs=1e-5)


def test_sizes_of_the_action_and_wrong_options():
    assert HardMove(1, n=10).spec.action["1"].size == 1024
    assert HardMove(1, n=10, parameters="one").spec.action["1"].size == 1
    with pytest.raises(ConfigError, match="n is 40; choose 2 to 12 actuators"):
        HardMove(1, n=40)
    with pytest.raises(ConfigError, match="choose each or one"):
        HardMove(1, parameters="all")


def rate(world: PointMass, steps: int) -> float:
    """The share of the first episodes that a scripted agent succeeds in."""
    world.reset(0)
    success, over = torch.zeros(world.num_envs), torch.zeros(world.num_envs, dtype=torch.bool)
    for _ in range(steps):
        ahead = world.state["target"] - world.state["place"] - 0.3 * world.state["speed"]
        if isinstance(world, HardMove):
            choice = (world.motions.T @ ahead).argmax(0)
            action = {"0": choice, "1": torch.ones(world.num_envs, world.spec.action["1"].size)}
        else:
            near = torch.linalg.vector_norm(ahead, dim=0) < 0.15
            action = {"0": near.long(), "1": (torch.atan2(ahead[0], ahead[1]) / math.pi)[:, None]}
        step = world.step(action)
        success[~over] += step.measures[~over, 0]
        over |= step.terminated
    return float((success > 0).float().mean())


def test_scripted_agents_succeed_unless_the_target_is_too_far():
    # The fastest speed is 0.8, so in 25 steps of 0.1 an agent comes less than 2 far; corners are 2.8 apart.
    assert rate(CatchPoint(300), 25) > 0.87
    assert rate(HardMove(300), 30) > 0.93
