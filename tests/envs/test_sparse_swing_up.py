"""The sparse swing-up against a scalar re-derivation of bsuite's rule and rewards worked by hand."""

import math

import pytest
import torch

from whorl.core.errors import ConfigError
from whorl.envs.native.sparse_swing_up import SparseCartPoleSwingUp

LEFT, STAY, RIGHT = range(3)


def placed(*rows: list[float], **options: float) -> SparseCartPoleSwingUp:
    """Environments in known states: place, speed, angle, angular speed."""
    world = SparseCartPoleSwingUp(len(rows), dtype="float64", **options)
    world.reset(0)
    world.state["body"].copy_(torch.tensor(rows, dtype=torch.float64).T)
    return world


def reference(row: list[float], action: int) -> list[float]:
    """One Euler step by the definition."""
    x, v, theta, w = row
    force, sin, cos = 10.0 * (action - 1), math.sin(theta), math.cos(theta)
    pull = (force + 0.1 * 0.5 * w**2 * sin) / 1.1
    turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return [x + 0.01 * v, v + 0.01 * (pull - 0.05 * turn * cos / 1.1), theta + 0.01 * w, w + 0.01 * turn]


def test_it_matches_a_scalar_float64_rederivation():
    row = [0.3, -0.8, 2.0, 1.5]
    world = placed(row)
    for action in (RIGHT, LEFT, STAY, RIGHT):
        step = world.step(torch.tensor([action]))
        row = reference(row, action)
        x, v, theta, w = row
        expected = [x / 3, v / 3, math.sin(theta), math.cos(theta), w, 1.0, 1.0 if abs(w) < 1 else -1.0]
        assert step.obs[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("row", "paid"),
    [
        ([0.0, 0.0, 0.0, 0.0], True),
        ([0.0, 0.0, 2 * math.pi + 1.0, 0.0], True),  # cos 1 = 0.54
        ([0.0, 0.0, 1.1, 0.0], False),  # cos 1.1 = 0.45
        ([0.0, 0.0, math.pi, 0.0], False),
        ([0.99, 0.0, 0.0, 0.0], True),
        ([-1.01, 0.0, 0.0, 0.0], False),  # too far from the middle
        ([0.0, 0.0, 0.0, 1.05], False),  # too fast
    ],
)
def test_a_step_is_paid_where_the_pole_is_upright_slow_and_near(row: list[float], paid: bool):
    still, pushed = placed(row), placed(row)
    assert float(still.step(torch.tensor([STAY])).reward) == paid
    # A push of 10 N turns the pole by 0.14 rad/s, which changes none of these answers.
    assert float(pushed.step(torch.tensor([LEFT])).reward) == pytest.approx(paid - 0.1)


def test_beyond_three_metres_it_terminates_and_after_a_thousand_steps_it_is_truncated():
    world = placed([2.99, 2.0, math.pi, 0.0], [2.97, 2.0, math.pi, 0.0])
    step = world.step(torch.tensor([STAY, STAY]))
    assert step.terminated.tolist() == [True, False]
    world.steps.fill_(999)
    world.ended.zero_()
    world.state["body"][0] = 0
    step = world.step(torch.tensor([STAY, STAY]))
    assert step.truncated.all() and not step.terminated.any()


def test_staying_still_returns_nothing_and_pushing_at_random_pays():
    world = SparseCartPoleSwingUp(50)
    world.reset(0)
    assert (torch.stack([world.step(torch.ones(50).long()).reward for _ in range(300)]) == 0).all()
    world.reset(0)
    generator = torch.Generator().manual_seed(0)
    paid = [world.step(torch.randint(3, (50,), generator=generator)).reward for _ in range(100)]
    assert float(torch.stack(paid).sum(0).mean()) == pytest.approx(-0.1 * 100 * 2 / 3, abs=0.5)


def test_starts_hang_within_a_twentieth():
    world = SparseCartPoleSwingUp(5000)
    world.reset(0)
    off = world.state["body"] - torch.tensor([0.0, 0.0, math.pi, 0.0])[:, None]
    assert float(off.abs().max()) <= 0.0501
    torch.testing.assert_close(off.std(1), torch.full((4,), 0.1 / 12**0.5), rtol=0.05, atol=0)


def test_harder_versions_ask_for_a_higher_pole_nearer_to_the_middle():
    row = [0.3, 0.0, 0.5, 0.0]  # cos 0.5 = 0.88
    assert float(placed(row, height=0.95).step(torch.tensor([STAY])).reward) == 0
    assert float(placed(row, near=0.2).step(torch.tensor([STAY])).reward) == 0
    assert float(placed(row, move_cost=0.5).step(torch.tensor([RIGHT])).reward) == 0.5
    with pytest.raises(ConfigError, match="height is 1"):
        SparseCartPoleSwingUp(1, height=1.0)
