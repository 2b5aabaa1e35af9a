"""Quadrotor-v0: fly to a goal from a tumbling start, with rotor lag, noisy thrust and a random vehicle per episode.

z points down, so gravity is +z and the ceiling is the smallest z. Sensed: goal - position, velocity, sine and cosine of
roll, pitch and yaw, body rates; three such frames, newest first. The action is the thrust per rotor, from none (-1) to
full (1). Differs from the original: rotors and noise are reset in each episode, and a failed rotor has no thrust.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Continuous, Spec
from whorl.envs.native.world import State, World, compiled
from whorl.envs.rendering.quadrotor import QuadrotorView

MASS, ARM, KT, INERTIA, KQ, LAG = 0.640, 0.14, 4.612e-8, 1.0, 6.411e-10, 0.1
"""kg, m, N/rpm², a factor on the moments of inertia, N·m/rpm², s: the nominal vehicle, in the order of `params`"""
IX, IZ = 0.00728, 0.00993
"""kg·m²; the vehicle is symmetric, Iy = Ix"""
MAX_RPM, GRAVITY = 14945.4, 9.8066
SUBSTEPS, DT = 10, 0.001
TOGETHER = 5
"""substeps per call of the integrator: more take fewer operations, fewer fit the cache and compile faster"""
GOAL = (0.0, 0.0, 2.0)
START_ROTOR = 0.1
NOISE_THETA, NOISE_SIGMA = 0.15, 0.05
FRAMES, FRAME = 3, 15


class Quadrotor(World):
    """State: `body` [12, B] (position, Euler angles, velocity, rates), `rotor`, `noise` [4, B], `params`, `frames`.

    Args:
        faults: 0 for a rotor without thrust; the reward then ignores yaw, which can't be controlled.
        randomize: draw mass, arm, kt, inertia, kq within 5 % and the rotor lag within [0.05, 0.2] s per episode.
        noise: add Ornstein-Uhlenbeck noise to the rotors.
        compile: fuse the integrator with torch.compile (a slow first call of up to a minute, then 2 to 5 times faster).
        dtype: float32 or float64, for physics and observations.
    """

    id = "Quadrotor-v0"
    max_steps = 1000
    fps = 100

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        faults: tuple[int, int, int, int] = (1, 1, 1, 1),
        randomize: bool = True,
        noise: bool = True,
        compile: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(num_envs, device)
        if len(faults) != 4 or not set(faults) <= {0, 1}:
            raise ConfigError(
                f"faults is {faults!r}; it must hold four numbers, 1 for a working rotor and 0 for a failed one"
            )
        if dtype not in ("float32", "float64"):
            raise ConfigError(f"dtype is {dtype!r}; choose float32 or float64")
        self.spec = Spec(
            observation=Array((FRAMES * FRAME,), dtype),
            action=Continuous((4,), (-1.0,) * 4, (1.0,) * 4),
            num_envs=num_envs,
        )
        self.dtype = torch.float64 if dtype == "float64" else torch.float32
        self.faults = tuple(faults)
        self.sigma = NOISE_SIGMA if noise else 0.0
        self.returns = self.returns.to(self.dtype)
        self._integrate = compiled(integrate) if compile else integrate
        self._views: dict[int, QuadrotorView] = {}

        def constant(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=self.dtype, device=self.device)

        low, high = zip(*_start_ranges(randomize))
        self._low = constant(low)[:, None]  # [18, 1]
        self._span = constant(high)[:, None] - self._low
        self._goal = constant(GOAL)[:, None]
        self._sound = constant(faults)[:, None]
        self._half = 0.5 * self._sound
        self._idle = constant([START_ROTOR]).expand(4, num_envs)
        self._quiet = constant([0.0]).expand(4, num_envs)

    def initial(self, generator: torch.Generator) -> State:
        drawn = torch.rand(18, self.num_envs, generator=generator, dtype=self.dtype, device=self.device)
        start = torch.addcmul(self._low, drawn, self._span)
        frames = self._frame(start[:12]).expand(FRAMES, -1, -1)
        return {
            "body": start[:12],
            "rotor": self._idle,
            "noise": self._quiet,
            "params": start[12:],
            "frames": frames,
        }

    def advance(self, state: State, action: tree.Tree) -> tuple[State, Tensor, Tensor]:
        normal = torch.randn(4, self.num_envs, generator=self.generator, dtype=self.dtype, device=self.device)
        noise = torch.add((1 - NOISE_THETA) * state["noise"], normal, alpha=self.sigma)
        # Normalised thrust [4, B]; contiguous, because a transposed operand slows down all that follows.
        command = (action.to(self.dtype).T.contiguous().clamp(-1, 1) + 1) * self._half
        body, rotor = fly(
            state["body"], state["rotor"], noise, state["params"], command, self._sound, self._integrate
        )
        frames = torch.cat([self._frame(body), state["frames"][:-1]])
        new = {"body": body, "rotor": rotor, "noise": noise, "params": state["params"], "frames": frames}
        # Comparisons with NaN are false, so a state that is not finite terminates, too.
        near = body[:3].abs().amax(0) <= 5
        upright = body[3:5].abs().amax(0) <= math.pi / 2
        inside = near & upright & (body[2] > state["params"][1] - 4)
        return new, reward(body, self._goal, command, yaw=all(self.faults)), ~inside

    def observe(self, state: State) -> Tensor:
        return state["frames"].flatten(0, 1).T.clone(memory_format=torch.contiguous_format)

    def render(self, env_index: int = 0) -> np.ndarray:
        """One RGB frame; call it after each step, because the view draws the path of earlier calls."""
        view = self._views.setdefault(env_index, QuadrotorView(GOAL, self.faults))
        rotor, noise, body = (self.state[key][:, env_index].tolist() for key in ("rotor", "noise", "body"))
        thrust = [s * min((u + n) ** 2, 1) for s, u, n in zip(self.faults, rotor, noise)]
        return view.draw(
            body[:3], body[3:6], thrust, step=int(self.steps[env_index]), total=float(self.returns[env_index])
        )

    def traces(self, env_index: int) -> dict[str, dict[str, float]]:
        body = self.state["body"][:6, env_index].tolist()
        angles = [math.degrees(math.remainder(angle, 2 * math.pi)) for angle in body[3:]]
        return {
            "position, m": dict(zip("xyz", body)),
            "attitude, degrees": dict(zip(("roll", "pitch", "yaw"), angles)),
        }

    def _frame(self, body: Tensor) -> Tensor:
        """One frame of the observation [1, 15, B]."""
        angles = body[3:6]
        turned = torch.stack([angles.sin(), angles.cos()], 1).flatten(0, 1)
        return torch.cat([self._goal - body[:3], body[6:9], turned, body[9:]])[None]


def reward(body: Tensor, goal: Tensor, command: Tensor, yaw: bool) -> Tensor:
    """Product of terms for distance, velocities and attitude, in (0, 1.03]; the last grows with the largest command."""
    offset = torch.stack([body[:3] - goal, body[6:9], body[9:]])  # [3, 3, B] position error, velocity, rates
    error, speed, spin = offset.square().sum(1).sqrt()
    roll, pitch, turn = body[3:6].cos()
    value = (-2 * error).exp() * (0.7 + 0.3 * (-0.4 * speed).exp()) * (0.7 + 0.3 * (-0.4 * spin).exp())
    value = value * (0.75 + 0.25 * roll) * (0.75 + 0.25 * pitch) * (0.9 + 0.13 * command.amax(0))
    return value * (0.5 + 0.5 * turn) if yaw else value


def fly(
    body: Tensor,
    rotor: Tensor,
    noise: Tensor,
    params: Tensor,
    command: Tensor,
    sound: Tensor,
    integrate: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:
    """Body [12, B] and rotors [4, B] one control step later: rotor lag, thrust, then the rigid body."""
    mass, arm, kt, inertia, kq, lag = params
    target, rate = command.sqrt(), 0.04 / lag
    rotors = []
    for _ in range(SUBSTEPS):
        rotor = torch.lerp(rotor, target, rate)
        rotors.append(rotor)
    thrust = (torch.stack(rotors) + noise).square().clamp(max=1) * (kt * MAX_RPM**2 * sound)  # [10, 4, B]
    first, second, third, fourth = thrust.unbind(1)
    side, front = first + second, third + fourth
    moment = arm / (IX * inertia)
    drives = [
        (side + front) / mass,
        (second - first) * moment,
        (third - fourth) * moment,
        (side - front) * (kq / (kt * IZ * inertia)),
    ]
    for part in zip(*(drive.split(TOGETHER) for drive in drives)):
        body = integrate(body, *part)
    return body, rotor


def integrate(
    body: Tensor, lift: Tensor, roll_drive: Tensor, pitch_drive: Tensor, yaw_drive: Tensor
) -> Tensor:
    """S RK4 substeps of the rigid body [12, B] under the rotors' specific force and angular accelerations [S, B].

    Classical RK4 in the order of dependence: yaw rate -> roll and pitch rate -> roll and pitch -> yaw -> velocity ->
    position. Only roll, pitch and their rates are computed stage by stage; the rest are wide tensors.
    """
    roll, pitch, yaw = body[3:6]
    p, q, r = body[9:]
    # Iy = Ix, so torque alone drives the yaw rate, and it is linear within a substep.
    after = torch.add(r, yaw_drive.cumsum(0), alpha=DT)  # [S, B]
    before = torch.sub(after, yaw_drive, alpha=DT)
    middle = 0.5 * (before + after)
    yaw_rate = torch.stack([before, middle, middle, after], 1).flatten(0, 1)  # [4 S, B]
    coupled = zip(yaw_rate, yaw_rate * ((IZ - IX) / IX))

    seen: tuple[list[Tensor], ...] = ([], [], [], [], [])
    for roll_push, pitch_push in zip(roll_drive, pitch_drive):
        start = at = end = [p, q, roll, pitch]
        for ahead, share in ((DT / 2, DT / 6), (DT / 2, DT / 3), (DT, DT / 3), (0.0, DT / 6)):
            p, q, roll, pitch = at
            r, twist = next(coupled)
            sin_roll, cos_roll, sin_pitch, cos_pitch = roll.sin(), roll.cos(), pitch.sin(), pitch.cos()
            swing = torch.addcmul(q * sin_roll, r, cos_roll)
            slope = [
                torch.addcmul(roll_push, twist, q, value=-1),
                torch.addcmul(pitch_push, twist, p),
                torch.addcmul(p, swing, sin_pitch / cos_pitch),
                torch.addcmul(q * cos_roll, r, sin_roll, value=-1),
            ]
            for values, value in zip(seen, (sin_roll, cos_roll, sin_pitch, cos_pitch, swing)):
                values.append(value)
            if ahead:
                at = [torch.add(x, dx, alpha=ahead) for x, dx in zip(start, slope)]
            end = [torch.add(x, dx, alpha=share) for x, dx in zip(end, slope)]
        p, q, roll, pitch = end

    sin_roll, cos_roll, sin_pitch, cos_pitch, swing = (torch.stack(x).unflatten(0, (-1, 4)) for x in seen)
    turn = swing / cos_pitch
    gain = _rk4(turn)  # [S, B]
    ends = yaw + gain.cumsum(0)
    yaw = (ends - gain)[:, None]  # at the start of each substep
    yaws = torch.cat(
        [yaw, torch.add(yaw, turn[:, :2], alpha=DT / 2), torch.add(yaw, turn[:, 2:3], alpha=DT)], 1
    )

    sin_yaw, cos_yaw, tilt = yaws.sin(), yaws.cos(), cos_roll * sin_pitch
    lift = lift[:, None]
    fall = [
        (tilt * cos_yaw + sin_roll * sin_yaw) * -lift,
        (sin_roll * cos_yaw - tilt * sin_yaw) * lift,
        GRAVITY - cos_roll * cos_pitch * lift,
    ]
    acceleration = torch.stack(fall, 2)  # [S, 4, 3, B]
    gain = _rk4(acceleration)
    velocity = body[6:9] + gain.cumsum(0)  # [S, 3, B] after each substep
    drift = torch.add(velocity - gain, acceleration[:, :3].sum(1), alpha=DT / 6)
    position = torch.add(body[:3], drift.sum(0), alpha=DT)
    return torch.cat(
        [position, torch.stack([roll, pitch, ends[-1]]), velocity[-1], torch.stack([p, q, after[-1]])]
    )


def _rk4(slope: Tensor) -> Tensor:
    """The increment of each substep from the slopes [S, 4, ...] at its four stages."""
    first, second, third, fourth = slope.unbind(1)
    return (first + 2 * (second + third) + fourth) * (DT / 6)


def _start_ranges(randomize: bool) -> list[tuple[float, float]]:
    """Lowest and highest initial values of the 12 body states, then of the 6 parameters."""
    half = (3.0, 3.0, 1.5, math.pi / 4, math.pi / 4, math.pi, 1.0, 1.0, 1.0) + (2 * math.pi,) * 3
    centre = GOAL + (0.0,) * 9
    body = [(c - h, c + h) for c, h in zip(centre, half)]
    nominal = (MASS, ARM, KT, INERTIA, KQ, LAG)
    if not randomize:
        return body + [(value, value) for value in nominal]
    return body + [(0.95 * value, 1.05 * value) for value in nominal[:5]] + [(0.05, 0.2)]
