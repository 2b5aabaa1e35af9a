"""CartPoleSwingUpVariableLength-v0 against a scalar re-derivation and numbers worked by hand."""

import math

import pytest
import torch

from whorl.envs.native.swing_up import CartPoleSwingUpVariableLength


def placed(*rows: list[float], length: float = 0.6) -> CartPoleSwingUpVariableLength:
    """Environments in known states: place, speed, angle, angular speed."""
    world = CartPoleSwingUpVariableLength(len(rows), dtype="float64", lengths=(length,))
    world.reset(0)
    world.state["body"].copy_(torch.tensor(rows, dtype=torch.float64).T)
    return world


def reference(row: list[float], length: float, action: float) -> list[float]:
    """One Euler step by the definition."""
    x, v, theta, w = row
    g, cart, pole, b, dt = 9.82, 0.5, 0.5, 0.1, 0.01
    total, force, s, c = cart + pole, 10 * action, math.sin(theta), math.cos(theta)
    a = (-2 * pole * length * w**2 * s + 3 * pole * g * s * c + 4 * force - 4 * b * v) / (
        4 * total - 3 * pole * c**2
    )
    turn = (-3 * pole * length * w**2 * s * c + 6 * total * g * s + 6 * (force - b * v) * c) / (
        4 * length * total - 3 * pole * length * c**2
    )
    return [x + dt * v, v + dt * a, theta + dt * w, w + dt * turn]


@pytest.mark.parametrize("length", [0.1, 0.6])
def test_it_matches_a_scalar_float64_rederivation(length: float):
    row = [0.3, -0.8, 2.0, 1.5]
    world = placed(row, length=length)
    for action in (0.4, -1.0, 0.9, 0.0):
        step = world.step(torch.tensor([[action]], dtype=torch.float64))
        row = reference(row, length, action)
        x, v, theta, w = row
        expected = [x, v, math.cos(theta), math.sin(theta), w, length, action]
        assert step.obs[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_push_on_a_hanging_pole_worked_by_hand():
    world = placed([0.0, 0.0, math.pi, 0.0])
    step = world.step(torch.tensor([[1.0]]))
    # 10 N, sin 0, cos -1: x'' = 40 / (4 - 1.5) = 16; turn = -60 / (0.6 * 2.5) = -40.
    assert step.obs[0].tolist() == pytest.approx([0.0, 0.16, -1.0, 0.0, -0.4, 0.6, 1.0])
    # after the step: -0.1 (pi² + 0.01 * 0.16)
    assert float(step.reward) == pytest.approx(-0.1 * (math.pi**2 + 0.0016))


def test_the_cart_stays_and_turns_back_at_the_end_of_the_rail():
    world = placed([2.395, 1.0, math.pi, 0.0], [-2.395, -1.0, math.pi, 0.0])
    step = world.step(torch.zeros(2, 1))
    # Friction takes 4 * 0.1 / 2.5 * 0.01 of the speed before it is reversed.
    assert step.obs[:, 0].tolist() == pytest.approx([2.395, -2.395])
    assert step.obs[:, 1].tolist() == pytest.approx([-0.9984, 0.9984])
    assert not step.terminated.any()


def test_an_angle_of_more_than_a_turn_is_paid_like_its_remainder():
    world = placed([0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.5 + 4 * math.pi, 0.0])
    a, b = world.step(torch.zeros(2, 1)).reward.tolist()
    assert a == pytest.approx(b)


def test_starts_hang_spread_by_0_2_with_either_pole_as_often():
    world = CartPoleSwingUpVariableLength(20000)
    world.reset(0)
    body, length = world.state["body"], world.state["length"]
    torch.testing.assert_close(body.std(1), torch.full((4,), 0.2), rtol=0.03, atol=0)
    torch.testing.assert_close(body.mean(1), torch.tensor([0.0, 0.0, math.pi, 0.0]), rtol=0, atol=0.01)
    assert set(length.tolist()) == {torch.tensor(0.1).item(), torch.tensor(0.6).item()}
    assert float((length > 0.3).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert (world.state["action"] == 0).all()
