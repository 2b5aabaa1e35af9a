"""CartPoleContinuous-v0 against the textbook's equations and numbers worked by hand."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from whorl.envs.native.cart_pole import CartPoleContinuous


def placed(*rows: list[float]) -> CartPoleContinuous:
    """Environments in known states: place, speed, angle, angular speed."""
    world = CartPoleContinuous(len(rows), dtype="float64")
    world.reset(0)
    world.state["body"].copy_(torch.tensor(rows, dtype=torch.float64).T)
    return world


def test_a_push_from_rest_worked_by_hand():
    world = placed([0.0, 0.0, 0.0, 0.0])
    step = world.step(torch.tensor([[0.1]]))
    # Upright and still, 3 N: pull 3 / 1.1; turn -pull / (0.5 (4/3 - 0.1 / 1.1)); shove pull - 0.05 turn / 1.1.
    pull = 3 / 1.1
    turn = -pull / (0.5 * (4 / 3 - 1 / 11))
    shove = pull - 0.05 / 1.1 * turn
    # Euler: places follow the speeds before the step, which were 0.
    assert step.obs[0].tolist() == pytest.approx([0.0, 0.02 * shove, 0.0, 0.02 * turn])
    assert float(step.reward) == 1


def test_it_moves_like_gymnasiums_cart_pole_under_the_same_force():
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    state = [0.1, -0.4, 0.05, 0.3]
    env.state = np.array(state)
    world = placed(state)
    for choice in (1, 1, 0, 1, 0):
        env.step(choice)  # 10 N to one side
        step = world.step(torch.tensor([[1 / 3 if choice else -1 / 3]], dtype=torch.float64))
        np.testing.assert_allclose(step.obs[0].numpy(), env.state, atol=1e-12)


def test_the_last_step_is_paid_and_the_episode_ends_beyond_2_4_m_or_12_degrees():
    edge = math.radians(12)
    world = placed(
        [0.0, 0.0, 0.0, 0.0],
        [2.39, 1.0, 0.0, 0.0],
        [-2.39, -1.0, 0.0, 0.0],
        [0.0, 0.0, edge - 0.01, 1.0],
        [0.0, 0.0, 0.01 - edge, -1.0],
        [0.0, math.nan, 0.0, 0.0],
    )
    step = world.step(torch.zeros(6, 1))
    assert step.terminated.tolist() == [False, True, True, True, True, True]
    assert step.reward.tolist() == [1.0] * 6


def test_starts_are_within_0_05_of_rest():
    world = CartPoleContinuous(10000)
    start = world.reset(0)
    assert 0.0499 < float(start.max()) <= 0.05 and -0.05 <= float(start.min()) < -0.0499
    torch.testing.assert_close(start.mean(0), torch.zeros(4), rtol=0, atol=1e-3)


def test_a_pole_left_alone_falls_after_some_forty_steps():
    world = CartPoleContinuous(512)
    world.reset(0)
    lengths, alive = torch.zeros(512), torch.ones(512, dtype=torch.bool)
    for _ in range(200):
        step = world.step(torch.zeros(512, 1))
        lengths += alive
        alive &= ~step.terminated
    assert float(lengths.mean()) == pytest.approx(41.5, abs=2)
