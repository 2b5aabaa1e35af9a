"""The pendulums against Gymnasium's and numbers worked by hand."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from whorl.envs.native import WORLDS
from whorl.envs.native.pendulum import Pendulum, PendulumVariableLength


def placed(*rows: list[float], length: float) -> PendulumVariableLength:
    """Environments in known states: angle, angular speed."""
    world = PendulumVariableLength(len(rows), dtype="float64", lengths=(length,))
    world.reset(0)
    world.state["body"].copy_(torch.tensor(rows, dtype=torch.float64).T)
    return world


def test_a_short_pendulum_worked_by_hand():
    world = placed([math.pi / 2, 1.0], length=0.2)
    step = world.step(torch.tensor([[0.5]]))
    # Level, torque 1: 30 / 0.4 + 3 / 0.04 = 150 rad/s², so speed 1 + 7.5; the angle moves by that, then 8 is the limit.
    angle = math.pi / 2 + 0.05 * 8.5
    assert step.obs[0].tolist() == pytest.approx([math.cos(angle), math.sin(angle), 8.0, 0.2, 1.0])
    # before the step: (pi/2)² + 0.1 + 0.001
    assert float(step.reward) == pytest.approx(-(math.pi**2 / 4 + 0.101))


def test_at_length_one_it_moves_and_pays_like_gymnasiums_pendulum():
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    env.state = np.array([2.5, -0.4])
    world = placed([2.5, -0.4], length=1.0)
    for torque in (1.5, -2.0, 0.3, 2.0):
        obs, reward, *_ = env.step(np.array([torque]))
        step = world.step(torch.tensor([[torque / 2]], dtype=torch.float64))
        np.testing.assert_allclose(step.obs[0].numpy(), [*obs, 1.0, torque], atol=1e-6)
        assert float(step.reward) == pytest.approx(reward)


def test_a_whole_turn_more_is_paid_the_same():
    world = placed([0.5, 0.0], [0.5 - 2 * math.pi, 0.0], length=1.0)
    a, b = world.step(torch.zeros(2, 1)).reward.tolist()
    assert a == pytest.approx(b) == pytest.approx(-0.25)


def test_actions_are_a_torque_within_2():
    env = gymnasium.make("PendulumVariableLength-v0")
    assert (env.action_space.low, env.action_space.high) == (-2, 2)
    env.reset(seed=0)
    obs, *_ = env.step(np.array([1.5], np.float32))
    assert obs[4] == pytest.approx(1.5)


def test_starts_have_any_angle_a_speed_within_one_and_either_length_as_often():
    world = PendulumVariableLength(20000)
    world.reset(0)
    body, length = world.state["body"], world.state["length"]
    torch.testing.assert_close(body.amax(1), torch.tensor([math.pi, 1.0]), rtol=0.01, atol=0)
    torch.testing.assert_close(body.amin(1), torch.tensor([-math.pi, -1.0]), rtol=0.01, atol=0)
    assert set(length.tolist()) == {torch.tensor(0.2).item(), 1.0}
    assert float((length > 0.5).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_the_pendulum_of_one_length_is_gymnasiums_over_whole_episodes_of_random_torques():
    random = np.random.default_rng(0)
    world = Pendulum(3, dtype="float64")
    world.reset(0)
    envs = [gymnasium.make("Pendulum-v1") for _ in range(3)]
    for env_index, env in enumerate(envs):
        env.reset(seed=env_index)
        env.unwrapped.state = world.state["body"][:, env_index].numpy().copy()
    clipped = False
    for _ in range(200):
        torque = random.uniform(-2, 2, (3, 1))
        step = world.step(torch.tensor(torque / 2))
        theirs = [env.step(action) for env, action in zip(envs, torque)]
        states = np.stack([env.unwrapped.state for env in envs], 1)
        np.testing.assert_allclose(world.state["body"].numpy(), states, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(step.obs.numpy(), np.stack([their[0] for their in theirs]), atol=1e-6)
        np.testing.assert_allclose(step.reward.numpy(), [their[1] for their in theirs], rtol=1e-9)
        assert step.truncated.tolist() == [their[3] for their in theirs] and not step.terminated.any()
        clipped |= bool((abs(states[1]) == 8).any())
    assert step.truncated.all() and clipped  # the limit of speed was met too


def test_gymnasiums_angle_moves_by_the_clipped_speed():
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    env.state = np.array([math.pi / 2, 7.9])
    world = Pendulum(1, dtype="float64")
    world.reset(0)
    world.state["body"].copy_(torch.tensor([[math.pi / 2], [7.9]]))
    env.step(np.array([2.0]))
    world.step(torch.ones(1, 1))
    # 7.9 + 0.05 (15 + 6) = 8.95 is clipped to 8, and the angle grows by 0.4
    assert world.state["body"][:, 0].tolist() == pytest.approx([math.pi / 2 + 0.4, 8.0]) == env.state.tolist()


@pytest.mark.parametrize(("id", "rows"), [("P", [0, 1]), ("V", [2]), ("VA", [2, 3])])
def test_what_is_seen_of_the_pendulum(id: str, rows: list[int]):
    world = WORLDS[f"Pendulum{id}-v0"](1)
    world.reset(0)
    world.state["body"].copy_(torch.tensor([[0.0], [1.0]]))
    # Upright at speed 1 with a torque of 2: speed 1 + 0.05 * 6 = 1.3, angle 0.065
    everything = [math.cos(0.065), math.sin(0.065), 1.3, 2.0]
    assert world.step(torch.ones(1, 1)).obs[0].tolist() == pytest.approx([everything[i] for i in rows])
