"""A chain of four links on a cart: the same equations in three forms, of which the fastest is chosen.

Angles q are absolute, 0 upright and pi hanging, with velocities w. With h_i = a_i m_i + l_i sum_{k>i} m_k,

    M_ii = J_i + a_i² m_i + l_i² sum_{k>i} m_k         M_ij = l_min(i,j) h_max(i,j) cos(q_i - q_j)
    C_ij = l_min(i,j) h_max(i,j) sin(q_i - q_j) w_j    M w' = -(C + D) w + g h sin q + h cos q x''

`accelerations` computes them entry by entry: torch.compile fuses it to one loop, and for few environments it runs on
floats. `Wide` uses few wide operations, which is fastest for uncompiled tensors. Both solve M w' = r by Gaussian
elimination: M is positive definite, so no pivoting is needed, and control flow does not depend on values.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whorl.envs.native.world import compiled

LENGTH = (0.190, 0.226, 0.262, 0.298)
CENTRE = (0.120, 0.145, 0.178, 0.140)
"""from a link's lower joint to its centre of mass"""
MASS = (0.5, 0.6, 0.6, 0.4)
FRICTION = (0.001547562611052, 0.0008598850094355782, 0.0006480318611403285, 0.000586515)
GRAVITY = 9.81
CARRIED = [sum(MASS[i + 1 :]) for i in range(4)]
H = [a * m + long * above for a, m, long, above in zip(CENTRE, MASS, LENGTH, CARRIED)]
INERTIA = [4 / 3 * a * a * m + long**2 * above for a, m, long, above in zip(CENTRE, MASS, LENGTH, CARRIED)]
"""M_ii, with the links' own J = a² m / 3"""
SUBSTEPS, DT = 10, 0.002
TOGETHER = 2
"""substeps per compiled call: more take longer to compile, fewer need more calls"""
FEW = 8
"""largest number of environments for which floats are faster than tensors on a CPU"""

Number: TypeAlias = Any
"""a float, or a tensor with one number per environment"""
Swing: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""angles [4, B] and velocities [4, B] after ten substeps under the cart's acceleration [B]"""


def swing(num_envs: int, device: torch.device, dtype: torch.dtype, friction: bool, compile: bool) -> Swing:
    """The fastest implementation for this number of environments and device."""
    damping = FRICTION if friction else (0.0,) * 4
    rows = partial(_substeps, damping=damping)
    fused = compiled(rows) if compile else rows
    if fused is not rows:  # equal without a compiler
        return partial(_by_rows, substeps=fused)
    if num_envs <= FEW and device.type == "cpu":
        return partial(_by_envs, damping=damping)
    return Wide(device, dtype, damping)


def integrate(
    angles: Sequence[Number],
    speeds: Sequence[Number],
    slope: Callable[[Sequence[Number], Sequence[Number]], Sequence[Number]],
    substeps: int,
) -> tuple[Sequence[Number], Sequence[Number]]:
    """Classical RK4 for second-order equations: the slope of an angle is its velocity."""
    h = DT
    for _ in range(substeps):
        first = slope(angles, speeds)
        middle = [q + h / 2 * w for q, w in zip(angles, speeds)]
        second = slope(middle, [w + h / 2 * a for w, a in zip(speeds, first)])
        bent = [q + h * h / 4 * a for q, a in zip(middle, first)]
        third = slope(bent, [w + h / 2 * a for w, a in zip(speeds, second)])
        ahead = [q + h * w for q, w in zip(angles, speeds)]
        bent = [q + h * h / 2 * a for q, a in zip(ahead, second)]
        fourth = slope(bent, [w + h * a for w, a in zip(speeds, third)])
        angles = [q + h * h / 6 * (a + b + c) for q, a, b, c in zip(ahead, first, second, third)]
        speeds = [
            w + h / 6 * (a + 2 * (b + c) + d) for w, a, b, c, d in zip(speeds, first, second, third, fourth)
        ]
    return angles, speeds


def accelerations(
    angles: Sequence[Number],
    speeds: Sequence[Number],
    push: Number,
    damping: Sequence[float],
    sin: Callable[[Number], Number] = torch.sin,
    cos: Callable[[Number], Number] = torch.cos,
) -> list[Number]:
    """w' of the four links while the cart accelerates by `push`."""
    sines, cosines = [sin(q) for q in angles], [cos(q) for q in angles]
    ls, lc = ([long * x for long, x in zip(LENGTH, turned)] for turned in (sines, cosines))
    hs, hc = ([h * x for h, x in zip(H, turned)] for turned in (sines, cosines))
    squares = [w * w for w in speeds]
    rubbed = [d * (w - below) for d, w, below in zip(damping, speeds, (0, *speeds))]
    right = [above - here for here, above in zip(rubbed, (*rubbed[1:], 0))]
    # With sin(q_i - q_j) = s_i c_j - c_i s_j the sums over j split: the links below add to gravity and push,
    fall, shove = GRAVITY, push
    for i in range(4):
        right[i] = right[i] + hs[i] * fall + hc[i] * shove
        fall, shove = fall - lc[i] * squares[i], shove + ls[i] * squares[i]
    # and the links above pull at the end.
    pull_s, pull_c = hs[3] * squares[3], hc[3] * squares[3]
    for i in (2, 1, 0):
        right[i] = right[i] + lc[i] * pull_s - ls[i] * pull_c
        pull_s, pull_c = pull_s + hs[i] * squares[i], pull_c + hc[i] * squares[i]
    rows = [[INERTIA[i], *(lc[i] * hc[j] + ls[i] * hs[j] for j in range(i + 1, 4))] for i in range(4)]
    return solve(rows, right)


def solve(rows: list[list[Number]], right: list[Number]) -> list[Number]:
    """x of M x = r for a symmetric M, given by its rows from the diagonal on; both lists are overwritten."""
    shares = []
    for k, (pivot, *row) in enumerate(rows):
        inverse = 1 / pivot
        share = [x * inverse for x in row]
        for i, factor in enumerate(share):
            rows[k + 1 + i] = [x - factor * y for x, y in zip(rows[k + 1 + i], row[i:])]
            right[k + 1 + i] = right[k + 1 + i] - factor * right[k]
        right[k] = right[k] * inverse
        shares.append(share)
    for k in reversed(range(len(right))):
        for factor, x in zip(shares[k], right[k + 1 :]):
            right[k] = right[k] - factor * x
    return right


class Wide:
    """The same in few wide operations on [4, B] and [4, 4, B]."""

    def __init__(self, device: torch.device, dtype: torch.dtype, damping: Sequence[float]) -> None:
        links = range(4)
        joints = [*damping, 0.0]
        coupling = [
            [INERTIA[i] if i == j else LENGTH[min(i, j)] * H[max(i, j)] for j in links] for i in links
        ]
        brake = [
            [-joints[i] - joints[i + 1] if i == j else joints[max(i, j)] * (abs(i - j) == 1) for j in links]
            for i in links
        ]
        constant = partial(torch.tensor, dtype=dtype, device=device)
        self.coupling, self.brake = constant(coupling)[..., None], constant(brake)[..., None]  # [4, 4, 1]
        self.h = constant(H)[:, None]  # [4, 1]
        self.weight = GRAVITY * self.h

    def __call__(self, angles: Tensor, speeds: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        drive = self.h * push  # [4, B]
        (angles,), (speeds,) = integrate(
            [angles], [speeds], lambda q, w: [self.accelerations(q[0], w[0], drive)], SUBSTEPS
        )
        return angles, speeds

    def accelerations(self, angles: Tensor, speeds: Tensor, drive: Tensor) -> Tensor:
        sin, cos, squares = angles.sin(), angles.cos(), speeds * speeds
        matrix = torch.addcmul(cos[:, None] * cos, sin[:, None], sin) * self.coupling  # [4, 4, B]
        right = (self.brake * speeds).sum(1)
        right = torch.addcmul(right, sin, self.weight - (self.coupling * (cos * squares)).sum(1))
        right = torch.addcmul(right, cos, drive + (self.coupling * (sin * squares)).sum(1))
        left = torch.cat([matrix, right[:, None]], 1)  # [4, 5, B], smaller by a row and a column each time
        shares = []
        for size in (3, 2, 1):
            row = left[0]
            share = row[1:] / row[0]
            left = torch.addcmul(left[1:, 1:], row[1 : size + 1, None], share, value=-1)
            shares.append(share)
        solution = [left[0, 1] / left[0, 0]]
        for share in reversed(shares):
            *factors, x = share
            for factor, known in zip(factors, solution):
                x = torch.addcmul(x, factor, known, value=-1)
            solution.insert(0, x)
        return torch.stack(solution)


def _by_rows(angles: Tensor, speeds: Tensor, push: Tensor, substeps: Swing) -> tuple[Tensor, Tensor]:
    for _ in range(SUBSTEPS // TOGETHER):
        angles, speeds = substeps(angles, speeds, push)
    return angles, speeds


def _substeps(
    angles: Tensor, speeds: Tensor, push: Tensor, damping: Sequence[float]
) -> tuple[Tensor, Tensor]:
    slope = partial(accelerations, push=push, damping=damping)
    q, w = integrate(angles.unbind(), speeds.unbind(), slope, TOGETHER)
    return torch.stack([*q]), torch.stack([*w])


def _by_envs(angles: Tensor, speeds: Tensor, push: Tensor, damping: Sequence[float]) -> tuple[Tensor, Tensor]:
    moved = []
    for env_index in zip(angles.T.tolist(), speeds.T.tolist(), push.tolist()):
        slope = partial(accelerations, push=env_index[2], damping=damping, sin=math.sin, cos=math.cos)
        try:
            moved.append(integrate(env_index[0], env_index[1], slope, SUBSTEPS))
        except ValueError:  # the sine of infinity, which is NaN for tensors
            moved.append(([math.nan] * 4, [math.nan] * 4))
    new = torch.tensor(moved, dtype=angles.dtype).permute(1, 2, 0)  # [2, 4, B]
    return new[0], new[1]
