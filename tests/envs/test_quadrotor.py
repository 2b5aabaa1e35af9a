"""Quadrotor-v0 against a scalar re-derivation written from its definition, and against measured returns."""

import math

import pytest
import torch
from torch import Tensor

from whorl.core.cuda_graphs import Recorded
from whorl.core.errors import ConfigError
from whorl.envs.native import quadrotor
from whorl.envs.native.quadrotor import Quadrotor

HOVER = -0.69538


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def place(world: Quadrotor, env_index: int = 0, **values: list[float]) -> None:
    """Put a environment into a known state."""
    rows = {"position": (0, 3), "angles": (3, 6), "velocity": (6, 9), "rates": (9, 12)}
    world.state["body"][:, env_index] = 0
    world.state["body"][:3, env_index] = torch.tensor(quadrotor.GOAL)
    for key, value in values.items():
        world.state["body"][slice(*rows[key]), env_index] = torch.tensor(value, dtype=world.dtype)


def slope(
    s: list[float], f: list[float], mass: float, arm: float, kt: float, inertia: float, kq: float
) -> list[float]:
    """Time derivative of the 12 states: the Newton-Euler equations with Euler angles."""
    ix, iy, iz = 0.00728 * inertia, 0.00728 * inertia, 0.00993 * inertia
    _, _, _, phi, theta, psi, vx, vy, vz, p, q, r = s
    total = sum(f)
    c, n = math.cos, math.sin
    return [
        vx,
        vy,
        vz,
        p + (q * n(phi) + r * c(phi)) * math.tan(theta),
        q * c(phi) - r * n(phi),
        (q * n(phi) + r * c(phi)) / c(theta),
        -(c(phi) * n(theta) * c(psi) + n(phi) * n(psi)) * total / mass,
        -(c(phi) * n(theta) * n(psi) - n(phi) * c(psi)) * total / mass,
        -c(phi) * c(theta) * total / mass + 9.8066,
        ((iy - iz) * q * r + arm * (f[1] - f[0])) / ix,
        ((iz - ix) * p * r + arm * (f[2] - f[3])) / iy,
        ((ix - iy) * p * q + kq / kt * (f[0] + f[1] - f[2] - f[3])) / iz,
    ]


def reference_step(
    s: list[float], rotor: list[float], noise: list[float], params: list[float], action: list[float]
) -> tuple[list[float], list[float], float, bool]:
    """One control step of one vehicle: ten classical RK4 substeps of 1 ms."""
    *vehicle, lag = params
    arm, kt = vehicle[1], vehicle[2]
    command = [(min(max(a, -1.0), 1.0) + 1) / 2 for a in action]
    h = 0.001
    for _ in range(10):
        rotor = [u + 0.04 / lag * (math.sqrt(target) - u) for u, target in zip(rotor, command)]
        f = [kt * 14945.4**2 * min(max((u + n) ** 2, 0.0), 1.0) for u, n in zip(rotor, noise)]
        k1 = slope(s, f, *vehicle)
        k2 = slope([x + h / 2 * k for x, k in zip(s, k1)], f, *vehicle)
        k3 = slope([x + h / 2 * k for x, k in zip(s, k2)], f, *vehicle)
        k4 = slope([x + h * k for x, k in zip(s, k3)], f, *vehicle)
        s = [x + h / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip(s, k1, k2, k3, k4)]
    x, y, z, phi, theta, psi, *motion = s
    error = math.hypot(x, y, z - 2)
    value = math.exp(-2 * error) * (0.7 + 0.3 * math.exp(-0.4 * math.hypot(*motion[:3])))
    value *= (
        (0.5 + 0.25 * (1 + math.cos(phi))) * (0.5 + 0.25 * (1 + math.cos(theta))) * (1 + math.cos(psi)) / 2
    )
    value *= (0.7 + 0.3 * math.exp(-0.4 * math.hypot(*motion[3:]))) * (0.9 + 0.13 * max(command))
    over = z <= -4 + arm or abs(phi) > math.pi / 2 or abs(theta) > math.pi / 2
    return s, rotor, value, over or max(abs(x), abs(y), abs(z)) > 5


def reference_frame(s: list[float]) -> list[float]:
    x, y, z, phi, theta, psi, *motion = s
    turned = [fn(a) for a in (phi, theta, psi) for fn in (math.sin, math.cos)]
    return [-x, -y, 2 - z, *motion[:3], *turned, *motion[3:]]


@pytest.mark.parametrize("random", [False, True])
def test_it_matches_a_scalar_float64_rederivation(random: bool):
    world = Quadrotor(3, randomize=random, noise=random, dtype="float64")
    obs = world.reset(7)
    generator = torch.Generator().manual_seed(0)
    bodies, rotors, params = (world.state[key].T.tolist() for key in ("body", "rotor", "params"))
    frames = [[reference_frame(body)] * 3 for body in bodies]
    torch.testing.assert_close(obs, torch.tensor(frames, dtype=torch.float64).flatten(1), atol=1e-12, rtol=0)
    alive = [True] * 3
    for _ in range(12):
        action = (
            torch.rand(3, 4, generator=generator, dtype=torch.float64) * 2.4 - 1.2
        )  # some beyond the bounds
        step = world.step(action)
        noise = world.state["noise"].T.tolist()  # as drawn for this step
        for env_index in range(3):
            if not alive[env_index]:
                continue
            bodies[env_index], rotors[env_index], reward, over = reference_step(
                bodies[env_index],
                rotors[env_index],
                noise[env_index],
                params[env_index],
                action[env_index].tolist(),
            )
            frames[env_index] = [reference_frame(bodies[env_index]), *frames[env_index][:2]]
            expected = torch.tensor(frames[env_index], dtype=torch.float64).flatten()
            assert (step.obs[env_index] - expected).abs().max() < 1e-10
            assert abs(float(step.reward[env_index]) - reward) < 1e-10
            assert bool(step.terminated[env_index]) == over
            alive[env_index] = not over
    assert any(alive)
    assert random == (len({tuple(p) for p in params}) == 3)


def test_float32_stays_close_to_float64():
    single, double = Quadrotor(64, noise=False), Quadrotor(64, noise=False, dtype="float64")
    single.reset(0), double.reset(0)
    for key, value in double.state.items():
        value.copy_(single.state[key])
    for _ in range(5):
        a, b = single.step(torch.full((64, 4), -0.5)), double.step(torch.full((64, 4), -0.5))
    torch.testing.assert_close(a.obs.double(), b.obs, atol=1e-3, rtol=1e-3)


def episodes(action: Tensor | None, num_envs: int = 2048) -> tuple[float, float]:
    """Mean return and length of each environment's first episode; random actions where none is given."""
    world = Quadrotor(num_envs)
    world.reset(1)
    generator = torch.Generator().manual_seed(2)
    returns, lengths = torch.zeros(num_envs), torch.zeros(num_envs)
    alive = torch.ones(num_envs, dtype=torch.bool)
    while alive.any():
        step = world.step(
            action if action is not None else torch.rand(num_envs, 4, generator=generator) * 2 - 1
        )
        returns += step.reward * alive
        lengths += alive
        alive &= ~(step.terminated | step.truncated)
    return float(returns.mean()), float(lengths.mean())


def test_a_random_policy_earns_what_was_measured():
    total, length = episodes(None)
    assert total == pytest.approx(0.18, abs=0.03)
    assert length == pytest.approx(35, abs=2)


def test_constant_hover_thrust_earns_what_was_measured():
    total, length = episodes(torch.full((2048, 4), HOVER))
    assert total == pytest.approx(0.285, abs=0.04)
    assert length == pytest.approx(53, abs=3)


def test_a_level_vehicle_at_the_goal_hovers_and_earns_about_0_92_a_step():
    world = Quadrotor(1, randomize=False, noise=False, dtype="float64")
    world.reset(0)
    place(world)
    world.state["rotor"].fill_(math.sqrt((HOVER + 1) / 2))
    for _ in range(50):
        step = world.step(torch.full((1, 4), HOVER, dtype=torch.float64))
    # all factors are 1 but the last, 0.9 + 0.13 * 0.15231
    assert float(step.reward) == pytest.approx(0.9198, abs=1e-3)
    assert float(step.obs[0, :3].norm()) < 1e-3


@pytest.mark.parametrize(
    "start",
    [
        {"position": [0.0, 0.0, -3.85], "velocity": [0.0, 0.0, -5.0]},  # the ceiling is z = -4 + 0.14
        {"angles": [1.56, 0.0, 0.0], "rates": [6.0, 0.0, 0.0]},
        {"angles": [0.0, -1.56, 0.0], "rates": [0.0, -6.0, 0.0]},
        {"position": [4.99, 0.0, 2.0], "velocity": [5.0, 0.0, 0.0]},
        {"position": [0.0, -4.99, 2.0], "velocity": [0.0, -5.0, 0.0]},
        {"position": [0.0, 0.0, 4.99], "velocity": [0.0, 0.0, 5.0]},
    ],
    ids=["ceiling", "roll", "pitch", "x", "y", "floor"],
)
def test_leaving_the_envelope_terminates(start: dict[str, list[float]]):
    world = Quadrotor(2, randomize=False, noise=False)
    world.reset(0)
    place(world, 0, **start)
    place(world, 1)
    step = world.step(torch.full((2, 4), HOVER))
    assert step.terminated.tolist() == [True, False]
    assert not step.truncated.any()


def test_a_broken_state_terminates():
    world = Quadrotor(1)
    world.reset(0)
    place(world, velocity=[float("nan"), 0.0, 0.0])
    assert bool(world.step(torch.zeros(1, 4)).terminated)


def test_an_episode_is_truncated_at_1000_steps():
    world = Quadrotor(1, randomize=False, noise=False)
    world.reset(0)
    world.steps.fill_(998)
    place(world)
    assert not bool(world.step(torch.full((1, 4), HOVER)).truncated)
    assert bool(world.step(torch.full((1, 4), HOVER)).truncated)


def test_failed_rotors_give_no_thrust_whatever_is_commanded():
    world = Quadrotor(1, faults=(0, 0, 0, 0), randomize=False, dtype="float64")  # noise stays on
    world.reset(0)
    place(world)
    world.step(torch.ones(1, 4))
    expected = torch.zeros(12, dtype=torch.float64)
    expected[2], expected[8] = 2 + 9.8066 * 0.01**2 / 2, 9.8066 * 0.01  # free fall, no turning
    torch.testing.assert_close(world.state["body"][:, 0], expected, atol=1e-12, rtol=0)


def test_one_failed_rotor_tips_the_vehicle_towards_it():
    world = Quadrotor(1, faults=(0, 1, 1, 1), randomize=False, noise=False)
    world.reset(0)
    place(world)
    for _ in range(5):
        world.step(torch.full((1, 4), HOVER))
    assert world.state["body"][9] > 0.1  # p' = L (f2 - f1) / Ix with f1 = 0


def test_yaw_counts_only_while_all_rotors_are_sound():
    body = torch.zeros(12, 1)
    body[2], body[5] = 2, math.pi  # at the goal, facing backwards
    goal, command = torch.tensor([[0.0], [0.0], [2.0]]), torch.zeros(4, 1)
    assert float(quadrotor.reward(body, goal, command, yaw=True)) == pytest.approx(0, abs=1e-6)
    assert float(quadrotor.reward(body, goal, command, yaw=False)) == pytest.approx(0.9)


def test_rotors_and_noise_start_again_each_episode():
    world = Quadrotor(1)
    world.reset(0)
    while not bool(world.step(torch.ones(1, 4)).terminated):
        pass
    assert world.state["noise"].abs().max() > 0
    step = world.step(torch.ones(1, 4))
    assert bool(step.reset)
    assert (world.state["rotor"] == torch.tensor(0.1)).all() and (world.state["noise"] == 0).all()
    frame = step.obs[0].view(3, 15)
    assert torch.equal(frame[0], frame[1]) and torch.equal(frame[0], frame[2])


def test_starts_and_vehicles_are_drawn_within_their_ranges():
    world = Quadrotor(20000)
    world.reset(0)
    body, (mass, *_, lag) = world.state["body"], world.state["params"]
    half = body.sub(body.mean(1, keepdim=True)).abs().amax(1)
    expected = [3, 3, 1.5, math.pi / 4, math.pi / 4, math.pi, 1, 1, 1, *[2 * math.pi] * 3]
    torch.testing.assert_close(half, torch.tensor(expected), rtol=0.03, atol=0)
    assert 0.608 <= mass.min() < 0.61 and 0.67 < mass.max() <= 0.672
    assert 0.05 <= lag.min() < 0.051 and 0.199 < lag.max() <= 0.2
    nominal = Quadrotor(2, randomize=False)
    nominal.reset(0)
    assert nominal.state["params"][:, 0].tolist() == pytest.approx([0.64, 0.14, 4.612e-8, 1, 6.411e-10, 0.1])


def test_one_env_flies_like_the_same_env_of_many():
    many, one = Quadrotor(5, noise=False), Quadrotor(1, noise=False)
    many.reset(3), one.reset(0)
    for key, value in one.state.items():
        value.copy_(many.state[key][..., 3:4])
    action = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    for _ in range(3):
        a, b = many.step(action), one.step(action[3:4])
    torch.testing.assert_close(a.obs[3:4], b.obs, atol=1e-5, rtol=1e-5)


def test_snapshots_continue_bit_for_bit_and_runs_repeat_by_seed():
    world, action = Quadrotor(8), torch.full((8, 4), 0.1)
    world.reset(4)
    for _ in range(20):
        world.step(action)
    snapshot, addresses = world.snapshot(), [x.data_ptr() for x in world.state.values()]

    def run(of: Quadrotor, steps: int) -> Tensor:
        return torch.stack(
            [torch.cat([s.obs.flatten(), s.reward]) for s in (of.step(action) for _ in range(steps))]
        )

    expected = run(world, 40)  # long enough for every environment to be reset
    other = Quadrotor(8)
    other.restore(snapshot)
    assert torch.equal(run(other, 40), expected)
    other.reset(4)
    assert torch.equal(run(other, 60)[20:], expected)
    assert [x.data_ptr() for x in world.state.values()] == addresses


def test_frames_are_drawn_and_the_trail_belongs_to_the_view():
    world = Quadrotor(2, faults=(1, 0, 1, 1))
    world.reset(0)
    first = world.render(1)
    world.step(torch.zeros(2, 4))
    second = world.render(1)
    assert first.shape == (360, 480, 3) and (first != second).any()
    assert len(world._views[1].trail) == 2
    assert set(world.state) == {"body", "rotor", "noise", "params", "frames"}
    world.reset(1)
    world.render(1)
    assert len(world._views[1].trail) == 1


def test_compile_without_a_compiler_warns_once_and_flies_eagerly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.warns(UserWarning, match="C\\+\\+ compiler"):
        world = Quadrotor(1, compile=True)
    world.reset(0)
    assert world.step(torch.zeros(1, 4)).obs.shape == (1, 45)


@pytest.mark.full
def test_the_compiled_integrator_agrees_with_the_eager_one():
    eager, fused = Quadrotor(16), Quadrotor(16, compile=True)
    eager.reset(0), fused.reset(0)
    for _ in range(5):
        a, b = eager.step(torch.zeros(16, 4)), fused.step(torch.zeros(16, 4))
    torch.testing.assert_close(a.obs, b.obs, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_replays_what_eager_steps_do(compile: bool):
    captured, eager = (Quadrotor(512, "cuda", compile=compile) for _ in range(2))
    action = torch.zeros(512, 4, device="cuda")
    captured.reset(0), eager.reset(0)
    recorded = Recorded(lambda: captured.step(action), [], [captured.generator])
    captured.reset(5), eager.reset(5)
    for _ in range(60):
        step = recorded.replay()
        expected = eager.step(action)
        assert torch.equal(step.reset, expected.reset)
        torch.testing.assert_close(step.obs, expected.obs)


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match="four numbers"):
        Quadrotor(1, faults=(1, 1, 2, 1))
    with pytest.raises(ConfigError, match="float64"):
        Quadrotor(1, dtype="half")
