"""QuadInvPendulum-v0: what is seen, what is paid, when it ends, and measured returns."""

import math

import pytest
import torch
from torch import Tensor

from whorl.envs.native.quad_pendulum import QuadInvPendulum, reward


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def placed(*rows: list[float], dtype: str = "float64") -> QuadInvPendulum:
    """Environments in known states: cart, four angles, cart's speed, four speeds."""
    world = QuadInvPendulum(len(rows), dtype=dtype)
    world.reset(0)
    world.state["body"].copy_(torch.tensor(rows, dtype=world.dtype).T)
    return world


def body(x: float = 0.0, angles: tuple[float, ...] = (0.0,) * 4, speed: float = 0.0) -> list[float]:
    return [x, *angles, speed, 0.0, 0.0, 0.0, 0.0]


def test_seen_are_the_cart_and_each_link_relative_to_the_one_below():
    world = placed([0.1, 0.5, 0.7, 0.4, 0.4, -0.2, 1.0, 2.0, 3.0, 4.0])
    expected = [0.1, -0.2]
    for bend, speed in ((0.5, 1.0), (0.2, 2.0), (-0.3, 3.0), (0.0, 4.0)):
        expected += [math.sin(bend), math.cos(bend), speed]
    assert world.observe(world.state)[0].tolist() == pytest.approx(expected)


def test_the_reward_is_the_product_of_its_factors():
    def paid(row: list[float], action: float) -> float:
        return float(reward(torch.tensor(row, dtype=torch.float64)[:, None], torch.tensor([action]).double()))

    assert paid(body(), 0.0) == pytest.approx(1)
    assert paid(body(angles=(math.pi,) * 4), 0.0) == pytest.approx(0)
    assert paid(body(), 1.0) == pytest.approx(0.8)
    assert paid(body(), 0.5) == pytest.approx(0.95)  # 0.8 + 0.2 (1 - 0.25)
    assert paid(body(x=0.5), 0.0) == pytest.approx(0.5 + 0.5 * math.exp(-0.175))
    # One joint bent by 90 degrees and so 0.5; the other way in the next, 0.5 again.
    assert paid(body(angles=(0.0, math.pi / 2, 0.0, 0.0)), 0.0) == pytest.approx(0.25)
    fast = [*[0.0] * 6, 1.0, -2.0, 0.0, 0.0]
    assert paid(fast, 0.0) == pytest.approx(0.5 + 0.5 * math.exp(-0.8))  # of the fastest alone


def test_the_cart_follows_the_acceleration_exactly():
    world = placed(body(x=0.1, speed=0.3))
    world.step(torch.tensor([[0.5]]))
    # 20 m/s² for 0.02 s: 0.1 + 0.3 * 0.02 + 20 * 0.0002, and 0.3 + 0.4
    assert float(world.state["body"][0]) == pytest.approx(0.11)
    assert float(world.state["body"][5]) == pytest.approx(0.7)


def test_the_rail_and_the_speed_limit_end_an_episode():
    spin = [*[0.0] * 6, *[-36.0] * 4]  # straight, and so as one
    world = placed(body(), body(x=0.749, speed=1.0), body(x=-0.749, speed=-1.0), spin, body(x=math.nan))
    step = world.step(torch.zeros(5, 1))
    assert step.terminated.tolist() == [False, True, True, True, True]
    assert not step.truncated.any()


def test_a_state_that_is_no_longer_finite_ends_the_episode_and_earns_nothing():
    broken = body()
    broken[2] = math.nan
    for num_envs in (1, 20):
        world = placed(*[broken] * num_envs)
        step = world.step(torch.zeros(num_envs, 1))
        assert step.terminated.all() and (step.reward == 0).all()


def test_it_starts_hanging_almost_at_rest():
    world = QuadInvPendulum(10000)
    world.reset(0)
    start = world.state["body"]
    torch.testing.assert_close(start.std(1), torch.full((10,), 0.01), rtol=0.05, atol=0)
    mean = torch.tensor([0.0, *[math.pi] * 4, *[0.0] * 5])
    torch.testing.assert_close(start.mean(1), mean, rtol=0, atol=1e-3)


def test_a_random_policy_earns_what_was_measured():
    num_envs = 256
    world, generator = QuadInvPendulum(num_envs), torch.Generator().manual_seed(2)
    world.reset(1)
    returns, lengths, alive = (
        torch.zeros(num_envs),
        torch.zeros(num_envs),
        torch.ones(num_envs, dtype=torch.bool),
    )
    while alive.any():
        step = world.step(torch.rand(num_envs, 1, generator=generator) * 2 - 1)
        returns += step.reward * alive
        lengths += alive
        alive &= ~(step.terminated | step.truncated)
    assert float(returns.mean()) == pytest.approx(0.70, abs=0.1)
    assert float(lengths.mean()) == pytest.approx(41, abs=4)


def test_doing_nothing_earns_next_to_nothing_for_all_of_1000_steps():
    world, action = QuadInvPendulum(1), torch.zeros(1, 1)
    world.reset(0)
    ends: list[Tensor] = []
    total = 0.0
    for _ in range(1000):
        step = world.step(action)
        total += float(step.reward)
        ends.append(step.terminated | step.truncated)
    assert [bool(end) for end in ends] == [False] * 999 + [True]
    assert 1e-5 < total < 0.03  # 0.004 on average, as widely spread
