"""QuadInvPendulum-v0: what is seen, what is paid, when it ends, and measured returns."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import whorl
from whorl.core.errors import ConfigError
from whorl.envs.make import find
from whorl.envs.native.quad_pendulum import LEVEL_RANGE, NOISE, QuadInvPendulum, reward, swing_up


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


def linearised() -> tuple[np.ndarray, np.ndarray]:
    """A [10, 10] and B [10, 1] of a step at upright, by central differences."""
    size = 1e-5
    states = size * torch.cat([torch.eye(10), -torch.eye(10), torch.zeros(2, 10)]).double()
    world = placed(*states.tolist())
    world.step(torch.tensor([0.0] * 20 + [size, -size])[:, None])
    after = world.state["body"].numpy()
    return (after[:, :10] - after[:, 10:20]) / (2 * size), (after[:, 20:21] - after[:, 21:]) / (2 * size)


def regulator() -> Tensor:
    """The gain [1, 10] that is optimal for a quadratic cost, by iterating the Riccati equation."""
    a, b = linearised()
    cost = value = np.diag([1.0] * 5 + [0.1] * 5)
    for _ in range(2000):
        gain = np.linalg.solve(10 + b.T @ value @ b, b.T @ value @ a)
        value = cost + a.T @ value @ (a - b @ gain)
    return torch.tensor(gain)


def test_a_linear_controller_holds_the_chain_upright():
    gain, generator = regulator(), torch.Generator().manual_seed(0)
    start = 0.003 * torch.randn(8, 10, generator=generator, dtype=torch.float64)
    world = placed(*start.tolist())
    total = torch.zeros(8, dtype=torch.float64)
    for _ in range(300):
        step = world.step((-gain @ world.state["body"]).T)
        total += step.reward
        assert not step.terminated.any()
    assert (total > 0.98 * 300).all()
    assert world.state["body"][1:5].abs().max() < 1e-3  # and brings it to rest


def test_upright_a_deviation_grows_by_half_in_every_step():
    a, _ = linearised()
    found = np.sort(np.abs(np.linalg.eigvals(a)))[::-1]
    np.testing.assert_allclose(found[:4], [1.560, 1.297, 1.187, 1.082], atol=1e-3)
    world = placed([1e-6] * 10)
    for _ in range(40):
        world.step(torch.zeros(1, 1))
    assert world.state["body"][1:5].abs().max() > 0.5


def test_random_starts_lie_around_upright_at_all_distances():
    world = QuadInvPendulum(20000, random_starts=0.75)
    world.reset(0)
    angles = world.state["body"][1:5]
    hanging = ((angles - math.pi).abs() < 0.06).all(0)
    assert float(hanging.float().mean()) == pytest.approx(0.25, abs=0.02)
    tilt = angles[:, ~hanging].mean(0).abs()
    # log-uniform from pi to 0.003 pi: a factor of ten holds ln 10 / ln 333 = 40 % of them
    near, far = (tilt < 0.0314).float().mean(), (tilt < 0.314).float().mean()
    assert float(far - near) == pytest.approx(math.log(10) / math.log(1 / 0.003), abs=0.03)
    assert world.state["body"].abs().amax(1)[0] <= 0.4


def test_the_recorded_actions_lead_from_each_state_of_the_swing_up_to_the_next():
    states, actions = swing_up()[:, :10], swing_up()[:, 10]
    world = placed(*states[:-1].tolist())
    step = world.step(torch.from_numpy(actions[:-1, None]))
    assert not step.terminated.any()
    after = world.state["body"].numpy().T
    np.testing.assert_allclose(after, states[1:], rtol=0, atol=2e-3)  # the table is rounded
    np.testing.assert_allclose(states[0], [0, *[math.pi] * 4, *[0] * 5], atol=1e-4)


def test_a_linear_controller_catches_the_end_of_the_swing_up():
    gain = regulator()
    world = placed(swing_up()[-1, :10].tolist())
    for _ in range(300):
        step = world.step((-gain @ world.state["body"]).T.clamp(-1, 1))
        assert not step.terminated.any()
    assert world.state["body"].abs().max() < 1e-3


def test_a_curriculum_starts_earlier_on_the_swing_up_after_success_and_later_after_failure():
    world = QuadInvPendulum(4000, random_starts=1.0, training_steps=2, curriculum=True)
    world.reset(0)
    assert not world.state["level"].any()
    end = torch.from_numpy(swing_up()[-1, :10]).float()
    assert (world.state["body"].T - end).std(0).numpy() == pytest.approx(NOISE, rel=0.1)
    assert (end.abs() < 0.05).all()  # upright, and almost at rest
    action = torch.zeros(4000, 1)
    for _ in range(60):  # 20 episodes of two steps and a reset
        body = world.state["body"]
        body[:, :1000], body[1:5, 1000:2000], body[0, 2000:3000] = 0, math.pi, 2
        world.step(action)
        assert ((world.state["level"] >= 0) & (world.state["level"] <= 1)).all()
    held, hanging, outside, free = world.state["level"][0].view(4, 1000).mean(1).tolist()
    assert held == pytest.approx(1) and hanging == outside == 0 and 0.3 < free < 1
    while world.steps.any():
        world.step(action)
    # Levels from 0.88 to 1 are the first 0.12 of 151 rows.
    starts, states = world.state["body"][:, :1000].T.double(), torch.from_numpy(swing_up()[:, :10])
    distance, row = torch.cdist(starts, states).min(1)
    assert distance.max() < 10 * NOISE
    assert row.min() == 0 and row.max() == round(LEVEL_RANGE * 150)
    assert float(row.double().mean()) == pytest.approx(LEVEL_RANGE * 75, rel=0.05)
    world.step(action)  # episodes are under way, at levels of their own
    again = QuadInvPendulum(4000, random_starts=1.0, training_steps=2, curriculum=True)
    assert torch.equal(world.reset(3), again.reset(3))  # a reset starts at level 0


@pytest.mark.parametrize(
    ("place", "speed", "change"),
    [
        (0.0, 0.0, 0.05),
        (0.7, 0.0, 0.05),  # a reward of .855 for an action of 0, of .684 for one of 1
        (0.8, 0.0, -0.05),  # a reward of .819, but outside of the rail
        (0.0, 3.0, -0.05),  # too fast: .5 + .5 * exp(-.2 * 9) = .583
    ],
)
def test_an_episode_that_ends_upright_and_inside_is_a_success(place: float, speed: float, change: float):
    world = QuadInvPendulum(5, random_starts=1.0, curriculum=True)
    world.reset(0)
    world.steps.fill_(9)
    world.state["body"].zero_()
    world.state["body"][0], world.state["body"][6], world.state["level"][:] = place, speed, 0.5
    levels = world.initial(world.generator)["level"]
    torch.testing.assert_close(levels, torch.full((1, 5), 0.5 + change))


def test_a_curriculum_keeps_hanging_starts():
    world = QuadInvPendulum(20000, random_starts=0.75, curriculum=True)
    world.reset(0)
    hanging = (world.state["body"][1:5] > 3).all(0)
    assert float(hanging.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(world.state["body"][0, hanging].std()) == pytest.approx(0.01, rel=0.05)


def test_a_curriculum_goes_on_after_a_restore():
    worlds = [QuadInvPendulum(50, random_starts=0.9, training_steps=2, curriculum=True) for _ in range(2)]
    first, second = worlds
    first.reset(0)
    for _ in range(30):
        first.step(torch.zeros(50, 1))
    assert first.state["level"].mean() > 0.2
    second.restore(first.snapshot())
    for _ in range(9):
        a, b = (world.step(torch.zeros(50, 1)) for world in worlds)
        assert torch.equal(a.obs, b.obs)
    assert torch.equal(first.state["level"], second.state["level"])


def test_wrong_options_of_training_are_named():
    with pytest.raises(ConfigError, match="curriculum is true, but random_starts is 0"):
        QuadInvPendulum(1, curriculum=True)
    with pytest.raises(ConfigError, match="random_starts is 2; it is a share"):
        QuadInvPendulum(1, random_starts=2)
    with pytest.raises(ConfigError, match="training_steps is 0"):
        QuadInvPendulum(1, training_steps=0)


def test_evaluations_start_hanging_and_last_1000_steps_whatever_training_does(tmp_path):
    options = {"random_starts": 1.0, "training_steps": 7, "curriculum": True, "friction": False}
    assert dict(find("QuadInvPendulum-v0", options).evaluated.options) == {"friction": False}
    settings = {"total_timesteps": 80, "num_envs": 2, "num_steps": 10, "runs": str(tmp_path), "quiet": True}
    with pytest.warns(UserWarning, match="truncated 1 of 1 episodes after 30 steps"):  # after 30 steps, not 7
        result = whorl.train(
            *("QuadInvPendulum-v0", "sac"),
            env_options=options,
            eval_freq=80,
            n_eval_episodes=1,
            eval_max_steps=30,
            learning_starts=1000,
            **settings,
        )
    assert result.episodes >= 8
    assert result.mean_return < 0.1
    with pytest.warns(UserWarning, match="truncated 1 of 1 episodes after 30 steps"):
        assert whorl.evaluate(result.run_dir, 1).mean_return < 0.1
    again = whorl.evaluate(result.run_dir, 1, env_options={"training_steps": 5})
    assert again.mean_length == 5  # unless they are asked for


def test_options_of_training_are_left_out_of_evaluations_of_a_world_made_by_a_function(tmp_path):
    class Mine(QuadInvPendulum):
        id = "Mine-v0"  # of which nobody else knows

    def world(training_steps: int = 0, random_starts: float = 0.0) -> QuadInvPendulum:
        lasting = {"training_steps": training_steps} if training_steps else {}
        return Mine(2, random_starts=random_starts, **lasting)

    options = {"training_steps": 7, "random_starts": 1.0}
    assert dict(find(world, options).evaluated.options) == {}
    settings = {"total_timesteps": 40, "num_steps": 10, "runs": str(tmp_path), "quiet": True, "eval": False}
    result = whorl.train(world, "ppo", settings, env_options=options)
    assert whorl.evaluate(result, 1, env=world, max_steps=30).lengths == [30]
    assert whorl.evaluate(result, 1, env=world, env_options={"training_steps": 5}).mean_length == 5
