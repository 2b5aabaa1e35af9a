"""The four-link chain against numpy's solver, against its own energy, and in its three ways of running."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev

from whorl.envs.native import chain

LENGTH, CENTRE = np.array([0.190, 0.226, 0.262, 0.298]), np.array([0.120, 0.145, 0.178, 0.140])
MASS = np.array([0.5, 0.6, 0.6, 0.4])
FRICTION = np.array([0.001547562611052, 0.0008598850094355782, 0.0006480318611403285, 0.000586515])
H = np.array([0.364, 0.313, 0.2116, 0.056])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mass_matrix(q: np.ndarray) -> np.ndarray:
    above = np.array([MASS[i + 1 :].sum() for i in range(4)])
    matrix = np.diag(CENTRE**2 * MASS / 3 + CENTRE**2 * MASS + LENGTH**2 * above)
    for i in range(4):
        for j in range(4):
            if i != j:
                matrix[i, j] = LENGTH[min(i, j)] * H[max(i, j)] * math.cos(q[i] - q[j])
    return matrix


def reference(q: np.ndarray, w: np.ndarray, push: float) -> np.ndarray:
    """w' by the definition, term by term."""
    coriolis, damping = np.zeros((4, 4)), np.zeros((4, 4))
    for i in range(4):
        damping[i, i] = FRICTION[i] + (FRICTION[i + 1] if i < 3 else 0)
        if i < 3:
            damping[i, i + 1] = damping[i + 1, i] = -FRICTION[i + 1]
        for j in range(4):
            coriolis[i, j] = LENGTH[min(i, j)] * H[max(i, j)] * math.sin(q[i] - q[j]) * w[j]
    right = -(coriolis + damping) @ w + 9.81 * H * np.sin(q) + H * np.cos(q) * push
    return np.linalg.solve(mass_matrix(q), right)


def reference_swing(q: np.ndarray, w: np.ndarray, push: float) -> tuple[np.ndarray, np.ndarray]:
    """Ten textbook RK4 steps of 2 ms on the pair (q, w)."""
    h, y = 0.002, np.concatenate([q, w])

    def slope(y: np.ndarray) -> np.ndarray:
        return np.concatenate([y[4:], reference(y[:4], y[4:], push)])

    for _ in range(10):
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y[:4], y[4:]


def lagrangian(q: Tensor, w: Tensor, speed: Tensor) -> Tensor:
    """Kinetic minus potential energy, from where the links are: link i leans to -x by q_i, on top of those below."""
    joint, joint_speed = torch.zeros(2, dtype=q.dtype), torch.stack([speed, torch.zeros_like(speed)])
    energy = torch.zeros((), dtype=q.dtype)
    for length, centre, mass, angle, turning in zip(LENGTH, CENTRE, MASS, q, w):
        along, across = torch.stack([-angle.sin(), angle.cos()]), torch.stack([-angle.cos(), -angle.sin()])
        middle, middle_speed = joint + centre * along, joint_speed + centre * turning * across
        own = centre**2 * mass / 3 * turning**2
        energy = energy + 0.5 * (mass * middle_speed.square().sum() + own) - mass * 9.81 * middle[1]
        joint, joint_speed = joint + length * along, joint_speed + length * turning * across
    return energy


def derived(q: Tensor, w: Tensor, speed: Tensor, push: Tensor) -> Tensor:
    """w' by the equations of Lagrange, d/dt dL/dw - dL/dq = rub, where d/dt dL/dw = L_wq w + L_ww w' + L_wx' push."""
    momentum = grad(lagrangian, 1)
    turned, masses, carried = jacrev(momentum, (0, 1, 2))(q, w, speed)
    friction = torch.tensor(FRICTION)
    slip = friction * torch.diff(
        w, prepend=torch.zeros(1, dtype=w.dtype)
    )  # each joint brakes the link above it,
    rub = torch.cat([slip[1:], torch.zeros(1, dtype=w.dtype)]) - slip  # and drags the link below along
    right = grad(lagrangian, 0)(q, w, speed) - turned @ w - carried * push + rub
    return torch.linalg.solve(masses, right)


def drawn(num_envs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    q, w, u = (
        random.uniform(-4, 4, (4, num_envs)),
        random.uniform(-20, 20, (4, num_envs)),
        random.uniform(-40, 40, num_envs),
    )
    return torch.tensor(q), torch.tensor(w), torch.tensor(u)


def test_the_moments_are_those_of_the_definition():
    # h_1 = 0.12 * 0.5 + 0.19 * (0.6 + 0.6 + 0.4)
    np.testing.assert_allclose(chain.H, [0.364, 0.313, 0.2116, 0.056])
    # 4/3 * 0.12² * 0.5 + 0.19² * 1.6 and 4/3 * 0.14² * 0.4
    assert chain.INERTIA[0] == pytest.approx(0.0096 + 0.05776)
    assert chain.INERTIA[3] == pytest.approx(0.0104533, abs=1e-7)


def test_elimination_solves_a_system_worked_by_hand():
    # 4x + 2y = 8 and 2x + 5y = 12: x = 1, y = 2
    assert chain.solve([[4.0, 2.0], [5.0]], [8.0, 12.0]) == pytest.approx([1.0, 2.0])


def test_the_equations_follow_from_the_energies_alone():
    q, w, u = drawn(10)
    for env_index in range(10):
        angles, speeds, push = q[:, env_index], w[:, env_index], u[env_index]
        for speed in (0.0, 2.0):  # the cart's own speed makes no difference
            expected = derived(angles, speeds, torch.tensor(speed).double(), push)
            got = chain.accelerations(
                angles.tolist(), speeds.tolist(), float(push), FRICTION, math.sin, math.cos
            )
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-8)


def test_ten_steps_of_2_ms_are_accurate():
    q, w = torch.tensor([0.5, 0.2, -0.3, 0.8]).double(), torch.tensor([3.0, -4.0, 5.0, -6.0]).double()
    coarse = chain.swing(1, q.device, q.dtype, friction=True, compile=False)(
        q[:, None], w[:, None], torch.tensor([20.0])
    )
    exact, h, still = torch.stack([q, w]), 0.0002, torch.zeros((), dtype=q.dtype)
    push = torch.tensor(20.0).double()

    def slope(y: Tensor) -> Tensor:
        return torch.stack([y[1], derived(y[0], y[1], still, push)])

    for _ in range(100):  # steps of a tenth the size: the error of the midpoint rule is below 1e-5
        exact = exact + h * slope(exact + h / 2 * slope(exact))
    torch.testing.assert_close(coarse[0][:, 0], exact[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(coarse[1][:, 0], exact[1], rtol=0, atol=1e-3)


@pytest.mark.parametrize("num_envs", [3, 20], ids=["floats", "wide"])
def test_a_control_step_matches_numpy(num_envs: int):
    q, w, u = drawn(num_envs)
    swing = chain.swing(num_envs, torch.device("cpu"), torch.float64, friction=True, compile=False)
    angles, speeds = swing(q, w, u)
    for env_index in range(3):
        expected = reference_swing(q[:, env_index].numpy(), w[:, env_index].numpy(), float(u[env_index]))
        np.testing.assert_allclose(angles[:, env_index], expected[0], rtol=0, atol=1e-11)
        np.testing.assert_allclose(speeds[:, env_index], expected[1], rtol=0, atol=1e-9)


def test_what_is_compiled_matches_what_runs_wide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chain, "compiled", lambda fn: lambda *given: fn(*given))
    q, w, u = drawn(20)
    wide, rows = (chain.swing(20, q.device, q.dtype, True, compile) for compile in (False, True))
    for a, b in zip(wide(q, w, u), rows(q, w, u)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_float32_stays_close_to_float64():
    q, w, u = drawn(64)
    single, double = (
        chain.swing(64, q.device, dtype, True, False) for dtype in (torch.float32, torch.float64)
    )
    angles, speeds = single(q.float(), w.float(), u.float())
    expected = double(q, w, u)
    torch.testing.assert_close(angles.double(), expected[0], rtol=0, atol=2e-4)
    torch.testing.assert_close(speeds.double(), expected[1], rtol=1e-3, atol=1e-2)


def energy(q: np.ndarray, w: np.ndarray) -> float:
    return float(0.5 * w @ mass_matrix(q) @ w + 9.81 * H @ np.cos(q))


def test_without_friction_and_force_energy_is_kept():
    q, w = torch.tensor([[2.0], [2.5], [-3.0], [1.0]]).double(), torch.zeros(4, 1).double()
    before = energy(q[:, 0].numpy(), w[:, 0].numpy())
    swing = chain.swing(1, q.device, q.dtype, friction=False, compile=False)
    for _ in range(50):
        q, w = swing(q, w, torch.zeros(1))
    assert w.abs().max() > 3  # it did move, for a second
    assert energy(q[:, 0].numpy(), w[:, 0].numpy()) == pytest.approx(before, abs=1e-5)


def test_friction_takes_energy():
    q, w = torch.tensor([[2.0], [2.5], [-3.0], [1.0]]).double(), torch.zeros(4, 1).double()
    before = energy(q[:, 0].numpy(), w[:, 0].numpy())
    swing = chain.swing(1, q.device, q.dtype, friction=True, compile=False)
    for _ in range(50):
        q, w = swing(q, w, torch.zeros(1))
    assert energy(q[:, 0].numpy(), w[:, 0].numpy()) < before - 0.01


def test_an_upright_chain_is_pulled_over_by_an_accelerating_cart():
    # M w' = h push at q = 0; every link's foot is dragged, and the first leans the other way.
    upright, still = np.zeros(4), np.zeros(4)
    expected = np.linalg.solve(mass_matrix(upright), H * 10.0)
    got = chain.accelerations([0.0] * 4, [0.0] * 4, 10.0, FRICTION, math.sin, math.cos)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(got, reference(upright, still, 10.0), rtol=1e-12)


def test_an_infinite_state_becomes_nan_in_both_ways():
    for num_envs in (2, 20):
        q, w, u = drawn(num_envs)
        q[1, 0] = math.inf
        angles, speeds = chain.swing(num_envs, q.device, q.dtype, True, False)(q, w, u)
        assert speeds[:, 0].isnan().all()
        assert speeds[:, 1].isfinite().all() and angles[:, 1].isfinite().all()
