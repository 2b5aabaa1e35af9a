"""Rescaling and projection against published numbers."""

import pytest
import torch
from torch import Tensor

from whorl.ops import (
    categorical_projection,
    sorted_projection,
    value_rescale,
    value_rescale_inverse,
)


def test_value_rescale_published_numbers() -> None:
    got = value_rescale(torch.tensor([1.0, 3.0, 10.0, 100.0, 1000.0, 0.0, -3.0], dtype=torch.float64))
    expected = torch.tensor([0.415214, 1.003, 2.326625, 9.149876, 31.638584, 0.0, -1.003]).double()
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_value_rescale_inverse_published_numbers() -> None:
    got = value_rescale_inverse(torch.tensor([1.0, 10.0, 0.0, -10.0], dtype=torch.float64))
    expected = torch.tensor([2.988057, 117.430323, 0.0, -117.430323], dtype=torch.float64)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_a_rescaled_target_goes_through_the_inverse() -> None:
    # r 1, gamma .99, Q = h(50): h(1 + .99 * 50) = 6.226850; leaving out the inverse gives 7.129514
    q = value_rescale(torch.tensor(50.0, dtype=torch.float64))
    target = value_rescale(1 + 0.99 * value_rescale_inverse(q))
    assert float(target) == pytest.approx(6.226850, abs=1e-6)


def test_value_rescale_inverts_in_single_precision() -> None:
    value = torch.cat((torch.logspace(-6, 6, 100), -torch.logspace(-6, 6, 100), torch.zeros(1)))
    torch.testing.assert_close(value_rescale_inverse(value_rescale(value)), value, rtol=2e-6, atol=0)


def test_value_rescale_inverse_has_its_true_slope_at_zero() -> None:
    # h'(0) = 1/2 + epsilon, so the inverse has 1 / .501
    zero = torch.zeros(1, requires_grad=True)
    value_rescale_inverse(zero).backward()
    assert zero.grad is not None and float(zero.grad) == pytest.approx(1 / 0.501, rel=1e-5)


ATOMS = torch.arange(-2.0, 3.0)
PROB = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.3, 0.9, (0.05, 0.17, 0.36, 0.28, 0.14)),
        (1.0, 1.0, (0, 0.1, 0.2, 0.4, 0.3)),
        (0.0, 1.0, (0.1, 0.2, 0.4, 0.2, 0.1)),
        (5.0, 1.0, (0, 0, 0, 0, 1)),
        (-5.0, 1.0, (1, 0, 0, 0, 0)),
        (0.7, 0.0, (0, 0, 0.3, 0.7, 0)),
    ],
)
def test_projection_published_numbers(reward: float, discount: float, expected: tuple[float, ...]) -> None:
    got = categorical_projection(PROB, reward + discount * ATOMS, ATOMS)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


def test_projection_onto_the_same_fine_grid_changes_nothing() -> None:
    atoms = torch.linspace(-10, 10, 51)
    prob = torch.rand(8, 51, generator=torch.Generator().manual_seed(0)).softmax(-1)
    projected = categorical_projection(prob, atoms.expand(8, 51), atoms)
    torch.testing.assert_close(projected, prob, atol=1e-6, rtol=0)


def test_projection_is_a_distribution() -> None:
    atoms = torch.linspace(-10, 10, 51)
    noise = torch.randn(64, 52, generator=torch.Generator().manual_seed(0))
    got = categorical_projection(noise[:, 1:].mul(20).softmax(-1), 9 * noise[:, :1] + 0.99 * atoms, atoms)
    assert (got >= 0).all()
    torch.testing.assert_close(got.sum(-1), torch.ones(64))


def test_projection_keeps_the_mean_where_nothing_is_clipped() -> None:
    # mean of PROB is 0, so the Bellman mean is the reward
    got = categorical_projection(PROB, 0.1 + 0.9 * ATOMS, ATOMS)
    assert float((got * ATOMS).sum()) == pytest.approx(0.1, abs=1e-6)


def test_projection_matches_the_published_l2_case() -> None:
    # Source grid -1, -.75, ..., .75 with every other weight 0, onto -1, -.5, 0, .5
    source = torch.arange(-1, 1, 0.25)
    weight = source * torch.tensor([0.0, 1.0] * 4)  # signed, and the projection is linear in it
    grid = torch.arange(-1, 1, 0.5)
    got = categorical_projection(weight.relu(), source, grid)
    got = got - categorical_projection((-weight).relu(), source, grid)
    torch.testing.assert_close(got, torch.tensor([-0.375, -0.5, 0.0, 0.875]))


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


def test_projected_cross_entropy_matches_the_published_case() -> None:
    atoms = torch.tensor([0.5, 1.0, 1.5])
    logits = torch.tensor([[0, 9, 0], [9, 0, 9], [0, 9, 0], [9, 9, 0], [9, 0, 9]]).float()
    following = torch.tensor([[0, 0, 9], [1, 1, 1], [0, 0, 9], [1, 1, 1], [0, 9, 9]]).float()
    reward = torch.tensor([0.5, 0.0, 0.5, 0.8, -0.1]).unsqueeze(-1)
    discount = torch.tensor([0.8, 1.0, 0.8, 0.0, 1.0]).unsqueeze(-1)
    target = categorical_projection(following.softmax(-1), reward + discount * atoms, atoms)
    expected = torch.tensor([8.998915, 3.693209, 8.998915, 0.693209, 5.192931])
    torch.testing.assert_close(categorical_loss(logits, target), expected, atol=1e-5, rtol=1e-5)


def test_shapes_are_checked_on_entry() -> None:
    with pytest.raises(ValueError, match=r"atoms has shape \(1, 5\)"):
        categorical_projection(PROB, ATOMS, ATOMS.unsqueeze(0))
    with pytest.raises(ValueError, match=r"prob has shape \(5,\) and location \(2, 5\)"):
        categorical_projection(PROB, ATOMS.expand(2, 5), ATOMS)


# Projection of ascending locations


def test_the_sorted_projection_shares_mass_by_distance_and_gathers_it_at_the_edges() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    prob = torch.tensor([0.1, 0.2, 0.3, 0.4])
    # -3 goes to atom 0; 0.25 is three quarters atom 0, one quarter atom 1; 1 is atom 1 alone; 7 goes to atom 2
    found = sorted_projection(prob, torch.tensor([-3.0, 0.25, 1.0, 7.0]), atoms)
    assert found.tolist() == pytest.approx([0.1 + 0.15, 0.05 + 0.3, 0.4])


def test_the_sorted_projection_of_a_terminal_state_is_the_reward_alone() -> None:
    atoms = torch.linspace(-1, 1, 5)
    found = sorted_projection(torch.full((5,), 0.2), torch.full((5,), 0.125), atoms)
    assert found.tolist() == pytest.approx([0, 0, 0.75, 0.25, 0])


def test_the_sorted_projection_is_the_projection_over_all_pairs() -> None:
    torch.manual_seed(0)
    atoms, reward, discount = torch.linspace(-7, 9, 33), 6 * torch.randn(2, 50, 1), torch.rand(2, 50, 1)
    prob, location = torch.randn(2, 50, 33).softmax(-1), reward + discount * atoms
    found = sorted_projection(prob, location, atoms)
    torch.testing.assert_close(found, categorical_projection(prob, location, atoms), atol=2e-6, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 50))
    uneven = torch.tensor([-4.0, -1.0, 0.5, 5.0])
    found = sorted_projection(prob, location, uneven)
    torch.testing.assert_close(found, categorical_projection(prob, location, uneven), atol=2e-6, rtol=0)


def test_the_sorted_projection_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="prob has shape"):
        sorted_projection(torch.ones(3), torch.ones(2), torch.linspace(0, 1, 3))
