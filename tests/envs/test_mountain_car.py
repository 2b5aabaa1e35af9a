"""The sparse mountain car moves like Gymnasium's two, and gives a reward at the goal only."""

import gymnasium
import numpy as np
import pytest
import torch

from whorl.envs.native import WORLDS
from whorl.envs.native.mountain_car import SparseMountainCar


def push_along(velocity: float) -> int:
    """The policy that reaches the goal: push where the car is going."""
    return 2 if velocity >= 0 else 0


def test_it_moves_like_gymnasiums_step_by_step_up_to_the_goal():
    theirs = gymnasium.make("MountainCar-v0").unwrapped
    theirs.reset(seed=0)
    world = SparseMountainCar(1, dtype="float64")
    world.reset(0)
    world.state["place"].fill_(float(theirs.state[0]))
    for t in range(200):
        # Aimless at first, against the left wall too, and then up the hill.
        action = [0, 2, 1][t % 3] if t < 30 else push_along(float(theirs.state[1]))
        _, _, terminated, _, _ = theirs.step(action)
        step = world.step(torch.tensor([action]))
        assert step.obs[0].tolist() == pytest.approx([float(x) for x in theirs.state], abs=1e-12)
        assert bool(step.terminated) == terminated and float(step.reward) == float(terminated)
        if terminated:
            break
    assert terminated and step.measures.tolist() == [[1.0]] and not step.truncated.any()


def test_the_left_end_stops_the_car_like_gymnasiums():
    theirs = gymnasium.make("MountainCar-v0").unwrapped
    theirs.reset(seed=0)
    theirs.state = np.array([-1.15, -0.07])
    world = SparseMountainCar(1, dtype="float64")
    world.reset(0)
    world.state["place"].fill_(-1.15), world.state["speed"].fill_(-0.07)
    for _ in range(5):
        theirs.step(0)
        step = world.step(torch.tensor([0]))
        assert step.obs[0].tolist() == pytest.approx([float(x) for x in theirs.state], abs=1e-12)
    assert float(world.state["place"]) > -1.2


def test_the_continuous_car_moves_like_gymnasiums():
    theirs = gymnasium.make("MountainCarContinuous-v0").unwrapped
    theirs.reset(seed=1)
    world = WORLDS["SparseMountainCarContinuous-v0"](1, dtype="float64")
    world.reset(0)
    world.state["place"].fill_(float(theirs.state[0]))
    world.state["speed"].fill_(float(theirs.state[1]))
    for t in range(300):
        force = [0.3, -0.8, 2.0][t % 3] if t < 30 else float(np.sign(theirs.state[1]) or 1)
        _, _, terminated, _, _ = theirs.step(np.array([force]))
        step = world.step(torch.tensor([[force]]))
        # Their state is float32, in which it is computed.
        assert step.obs[0].tolist() == pytest.approx([float(x) for x in theirs.state], abs=1e-6)
        world.state["place"].fill_(float(theirs.state[0]))
        world.state["speed"].fill_(float(theirs.state[1]))
        assert bool(step.terminated) == terminated and float(step.reward) == float(terminated)
        if terminated:
            break
    assert terminated


def test_a_car_at_the_goal_that_rolls_back_has_not_arrived():
    world = SparseMountainCar(2)
    world.reset(0)
    world.state["place"].copy_(torch.tensor([0.55, 0.49]))
    world.state["speed"].copy_(torch.tensor([-0.02, 0.03]))
    step = world.step(torch.tensor([1, 1]))
    assert step.obs[0, 0] > 0.5 and step.terminated.tolist() == [False, True]
    assert step.reward.tolist() == [0, 1]


def test_time_is_truncated_without_success():
    world = SparseMountainCar(1)
    world.reset(0)
    steps = [world.step(torch.tensor([1])) for _ in range(200)]
    assert bool(steps[-1].truncated) and not bool(steps[-1].terminated)
    assert sum(float(step.reward) for step in steps) == 0 and steps[-1].measures.tolist() == [[0.0]]


def test_starts_are_at_rest_within_a_tenth_of_the_valley():
    world = SparseMountainCar(5000)
    obs = world.reset(0)
    assert (obs[:, 1] == 0).all()
    assert float(obs[:, 0].min()) == pytest.approx(-0.6, abs=0.001)
    assert float(obs[:, 0].max()) == pytest.approx(-0.4, abs=0.001)
