"""Rescaling of values, and projection of distributions onto a fixed grid of atoms."""

import torch
from torch import Tensor


def value_rescale(value: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h(x) = sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x (Pohlen et al. 2018, arXiv:1805.11593)."""
    size = value.abs()
    # sqrt(|x| + 1) - 1 in a form without cancellation near 0.
    return value / ((size + 1).sqrt() + 1) + epsilon * value


def value_rescale_inverse(value: Tensor, epsilon: float = 1e-3) -> Tensor:
    """The inverse of `value_rescale`.

    With m = sqrt(|y| + 1) - 1, h(y) = x is epsilon * m^2 + (1 + 2 * epsilon) * m = |x|, and |y| = m * (m + 2). The root
    is computed in a form without cancellation; the paper's form loses several digits in single precision.
    """
    size = value.abs()
    linear = 1 + 2 * epsilon
    m = (
        2 * value / (linear + (linear**2 + 4 * epsilon * size).sqrt())
    )  # carries the sign, so its slope at 0 is right
    return m * (m.abs() + 2)


def categorical_projection(prob: Tensor, location: Tensor, atoms: Tensor) -> Tensor:
    """Move the mass `prob` [..., J] at `location` [..., J] onto `atoms` [K]; returns [..., K].

    (Phi p)_k = sum_j p_j * hat_k(location_j), where hat_k is 1 at atom k and falls to 0 at its neighbours
    (Bellemare et al. 2017, arXiv:1707.06887, eq. 7). A C51 target has location = r + discount * atoms.

    The sum runs over all pairs instead of scattering into two neighbours: on a GPU a scatter adds in a different order
    in each run, and it easily loses the mass that falls exactly on an atom.
    """
    _check_atoms(atoms)
    if prob.shape != location.shape or prob.dim() == 0:
        raise ValueError(
            f"prob has shape {tuple(prob.shape)} and location {tuple(location.shape)}; both need [..., J]"
        )
    passed = (prob.unsqueeze(-2) @ _passed(location, atoms)).squeeze(
        -2
    )  # [..., K-1] mass that passes each gap
    whole = prob.sum(-1, keepdim=True)
    before, after = torch.cat((whole, passed), -1), torch.cat((passed, torch.zeros_like(whole)), -1)
    return (before - after).clamp(min=0)  # a rounding below 0 would be nan under a log


def sorted_projection(prob: Tensor, location: Tensor, atoms: Tensor) -> Tensor:
    """`categorical_projection` of ascending locations, with memory for J + K numbers per row instead of J * K.

    The mass that passes the gap from atom k to k+1 is that of all locations above the gap, plus that of the locations
    inside it by the share of the gap below them. Both are differences of prefix sums, taken in double precision. For
    batches of tens of thousands of rows the product over all pairs would take longer than the networks.
    """
    _check_atoms(atoms)
    if prob.shape != location.shape or prob.dim() == 0:
        raise ValueError(
            f"prob has shape {tuple(prob.shape)} and location {tuple(location.shape)}; both need [..., J]"
        )
    mass, place, grid = prob.double(), location.double(), atoms.double()
    below = torch.searchsorted(place, grid.expand(*place.shape[:-1], -1).contiguous(), right=True)  # [..., K]
    start = torch.zeros_like(mass[..., :1])
    mass_below, moment_below = (
        torch.cat((start, each.cumsum(-1)), -1).gather(-1, below) for each in (mass, mass * place)
    )
    inside = mass_below.diff(dim=-1)
    part = (moment_below.diff(dim=-1) - grid[:-1] * inside) / grid.diff()
    whole = mass.sum(-1, keepdim=True)
    passed = whole - mass_below[..., 1:] + part  # [..., K-1]
    before, after = torch.cat((whole, passed), -1), torch.cat((passed, start), -1)
    return (before - after).clamp(min=0).to(prob.dtype)


def _passed(location: Tensor, atoms: Tensor) -> Tensor:
    """[..., K-1]: the share of each gap between atoms that lies below each location [...]."""
    low = atoms[:-1]
    return (location.unsqueeze(-1) - low).div_(atoms[1:] - low).clamp_(0, 1)


def _check_atoms(atoms: Tensor) -> None:
    if atoms.dim() != 1 or atoms.shape[0] < 2:
        raise ValueError(
            f"atoms has shape {tuple(atoms.shape)}; it needs [K] with at least two ascending values"
        )
