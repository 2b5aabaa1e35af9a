"""Losses with numbers worked by hand, and what masks promise."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from whorl.ops import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    huber,
    masked_mean,
    masked_normalize,
    quantile_huber,
    row_weight,
    sorted_quantile_huber,
)

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1.0, 0.0], [1.0, 1.0]])


def test_masked_mean_ignores_masked_nan_and_infinity_in_value_and_gradient() -> None:
    for poison in (NAN, INF, -INF):
        value = torch.tensor([[1.0, poison], [2.0, 6.0]], requires_grad=True)
        mean = masked_mean(value, MASK)
        mean.backward()
        assert mean.item() == 3.0  # (1 + 2 + 6) / 3
        assert value.grad is not None
        torch.testing.assert_close(value.grad, torch.tensor([[1 / 3, 0.0], [1 / 3, 1 / 3]]))
        assert value.grad[0, 1] == 0


def test_blank_keeps_a_masked_nan_out_of_the_gradient_of_a_formula() -> None:
    # d/dw (w * x - y)^2 at w = 1 over (x, y) = (1, 3), (nan, nan), (2, 0), (0, 0): (2*-2*1 + 2*2*2) / 3 = 4/3
    weight = torch.tensor(1.0, requires_grad=True)
    x, y = torch.tensor([[1.0, NAN], [2.0, 0.0]]), torch.tensor([[3.0, NAN], [0.0, 0.0]])
    masked_mean((weight * blank(x, MASK) - blank(y, MASK)).square(), MASK).backward()
    assert weight.grad is not None and float(weight.grad) == pytest.approx(4 / 3)


def test_masked_mean_shares_the_mask_among_leading_axes() -> None:
    value = torch.stack((torch.tensor([[1.0, NAN], [2.0, 6.0]]), torch.tensor([[3.0, NAN], [4.0, 8.0]])))
    assert float(masked_mean(value, MASK)) == 4.0  # (9 + 15) / 6


def test_masked_mean_of_nothing_is_zero() -> None:
    assert float(masked_mean(torch.tensor([NAN, INF]), torch.zeros(2))) == 0.0


def test_masked_normalize_uses_unmasked_entries_only() -> None:
    # (1, 2, 6): mean 3, population variance (4 + 1 + 9) / 3 = 14/3
    got = masked_normalize(torch.tensor([[1.0, NAN], [2.0, 6.0]]), MASK)
    std = (14 / 3) ** 0.5
    torch.testing.assert_close(got, torch.tensor([[-2 / std, 0.0], [-1 / std, 3 / std]]))


def test_masked_normalize_of_a_constant_is_zero() -> None:
    assert torch.equal(masked_normalize(torch.full((2, 2), 7.0), MASK), torch.zeros(2, 2))


def test_clipped_surrogate_matches_the_published_case() -> None:
    # Ratios 1, 1, exp(-2), advantages ±(.3, .2, .1): mean of (.3, .2, .0135335), and of (-.3, -.2, -.08).
    # The first is printed as .171175, itself from a ratio in single precision; by hand it is .1711778.
    log_ratio, advantage = torch.tensor([0.0, 0.0, -2.0]), torch.tensor([0.3, 0.2, 0.1])
    assert float(-clipped_surrogate(log_ratio, advantage, 0.2).mean()) == pytest.approx(-0.1711778, abs=1e-6)
    assert float(-clipped_surrogate(log_ratio, -advantage, 0.2).mean()) == pytest.approx(0.193333, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.5, 2.0, 2.4, 0.0),  # above the range and good: clipped, no gradient
        (1.5, -2.0, -3.0, -3.0),  # above and bad: unclipped, d/dlog r = r * A
        (0.5, -2.0, -1.6, 0.0),  # below and bad: clipped
        (0.5, 2.0, 1.0, 1.0),  # below and good: unclipped
    ],
)
def test_clipped_surrogate_clips_only_the_side_that_helps(
    ratio: float, advantage: float, objective: float, slope: float
) -> None:
    log_ratio = torch.tensor(log(ratio), requires_grad=True)
    got = clipped_surrogate(log_ratio, torch.tensor(advantage), torch.tensor(0.2))
    got.backward()
    assert got.item() == pytest.approx(objective, abs=1e-6)
    assert log_ratio.grad is not None and float(log_ratio.grad) == pytest.approx(slope, abs=1e-6)


def test_clipped_surrogate_does_not_overflow() -> None:
    log_ratio = torch.tensor([500.0], requires_grad=True)
    got = clipped_surrogate(log_ratio, torch.tensor([-1.0]), 0.2)
    got.sum().backward()
    assert got.item() == pytest.approx(-exp(30), rel=1e-5)
    assert log_ratio.grad is not None and log_ratio.grad.isfinite().all()


def test_clipped_value_loss_by_hand() -> None:
    # V 3, old 1, clip .5, target 2: 1/2 * max(1, (1.5 - 2)^2) = .5; target 5: 1/2 * max(4, 3.5^2) = 6.125
    value, old = torch.tensor([3.0, 3.0]), torch.tensor([1.0, 1.0])
    got = clipped_value_loss(value, old, torch.tensor([2.0, 5.0]), 0.5)
    torch.testing.assert_close(got, torch.tensor([0.5, 6.125]))
    # V 1.2 is within .5 of old 1 and stays: 1/2 * 1.2^2
    near = clipped_value_loss(torch.tensor([1.2]), torch.tensor([1.0]), torch.tensor([0.0]), 0.5)
    torch.testing.assert_close(near, torch.tensor([0.72]))


def test_huber_by_hand() -> None:
    # delta 2: .5 * 1; at the seam .5 * 4 = 2; beyond 2 * (5 - 1) = 8
    error = torch.tensor([-1.0, 2.0, -5.0], requires_grad=True)
    got = huber(error, 2.0)
    torch.testing.assert_close(got, torch.tensor([0.5, 2.0, 8.0]))
    got.sum().backward()
    torch.testing.assert_close(error.grad, torch.tensor([-1.0, 2.0, -2.0]))


@pytest.mark.parametrize(
    ("tau", "kappa", "expected"),
    [
        # d = (-2, 5, 3; -6, 1, -1), |tau - 1{d < 0}| = (.8, .2, .2; .3, .7, .3): (1.6+1+.6+1.8+.7+.3) / 3
        ((0.2, 0.7), 0.0, 2.0),
        # huber 1: (1.5, 4.5, 2.5; 5.5, .5, .5) weighted: (1.2+.9+.5+1.65+.35+.15) / 3
        ((0.2, 0.7), 1.0, 1.583333),
        # huber 2: (2, 8, 4; 10, .5, .5) weighted: (1.6+1.6+.8+3+.35+.15) / 3
        ((0.2, 0.7), 2.0, 2.5),
        ((0.0, 0.4), 0.0, 2.2),
        ((0.0, 0.4), 2.0, 8.5 / 3),
    ],
)
def test_quantile_huber_matches_the_published_case(
    tau: tuple[float, ...], kappa: float, expected: float
) -> None:
    got = quantile_huber(torch.tensor([-1.0, 3.0]), torch.tensor(tau), torch.tensor([-3.0, 4.0, 2.0]), kappa)
    assert float(got) == pytest.approx(expected, abs=1e-6)


def test_quantile_huber_serves_an_ensemble_with_one_target() -> None:
    quantile, target = torch.randn(5, 3, 2, 7), torch.randn(3, 2, 4)
    tau = (torch.arange(7) + 0.5) / 7
    got = quantile_huber(quantile, tau, target)
    assert got.shape == (5, 3, 2)
    torch.testing.assert_close(got[4, 1], quantile_huber(quantile[4, 1], tau, target[1]))


def test_the_minimum_of_quantile_regression_is_the_quantile() -> None:
    # Targets 0..100: the quantile at tau = .25 is 25, where the slope changes sign
    target, tau = torch.arange(101.0), torch.tensor([0.25])

    def loss(at: float) -> Tensor:
        return quantile_huber(torch.tensor([at]), tau, target, 0.0)

    assert loss(25) < loss(24) and loss(25) < loss(26)


def both_quantile_losses(quantile: Tensor, target: Tensor, kappa: float) -> list[tuple[Tensor, Tensor]]:
    """Value [...] and gradient [..., N] of the loss from prefix sums, and of that over all pairs in double."""
    tau = (torch.arange(quantile.shape[-1]) + 0.5) / quantile.shape[-1]
    found = []
    for loss, dtype in ((sorted_quantile_huber, quantile.dtype), (quantile_huber, torch.float64)):
        at = quantile.detach().to(dtype).requires_grad_()
        value = loss(at, tau.to(dtype), target.to(dtype), kappa)
        # rows that count differently: a gradient that forgets what is behind it would show
        weight = torch.linspace(0.5, 1.5, value.numel(), dtype=dtype).reshape(value.shape)
        found.append((value.detach(), torch.autograd.grad((value * weight).sum(), at)[0]))
    return found


def pairs() -> dict[str, tuple[Tensor, Tensor]]:
    """Quantiles [..., N] and targets [..., M] of every kind, targets unsorted."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "random": (random(4, 3, 7), random(4, 3, 10)),
        "near": (random(5, 7) / 10, random(5, 10) / 10),
        "far apart": (random(5, 7) * 1e3, random(5, 10) * 1e3),
        "targets above": (random(5, 7) - 50, random(5, 10) + 50),
        "targets below": (random(5, 7) + 50, random(5, 10) - 50),
        "tied": (random(5, 7).round(), random(5, 10).round()),
        # After a terminal state every target is the reward.
        "targets alike": (random(5, 7), torch.full((5, 10), 0.5)),
        "on the edges": (torch.zeros(1, 3), torch.tensor([[-4.0, -2, -1, -0.5, 0, 0, 0.5, 1, 2, 4]])),
        "one target": (random(5, 7), random(5, 1)),
        "one quantile": (random(5, 1), random(5, 10)),
        "a large offset": (random(5, 7) + 1e4, random(5, 10) + 1e4),
        "a large offset below": (random(5, 7) - 1e4, random(5, 10) - 1e4),
    }


PAIRS = pairs()


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", PAIRS)
def test_sorted_quantile_huber_is_the_loss_over_all_pairs_and_so_is_its_gradient(
    kind: str, dtype: torch.dtype, kappa: float
) -> None:
    quantile, target = (t.to(dtype) for t in PAIRS[kind])
    (value, slope), (wanted, wanted_slope) = both_quantile_losses(quantile, target.sort(-1).values, kappa)
    assert value.dtype == slope.dtype == dtype
    close = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(value.double(), wanted, rtol=close, atol=close)
    torch.testing.assert_close(slope.double(), wanted_slope, rtol=close, atol=close)


def test_sorted_quantile_huber_matches_the_published_case() -> None:
    tau = torch.tensor([0.2, 0.7])
    for kappa, expected in ((1.0, 1.583333), (2.0, 2.5)):
        got = sorted_quantile_huber(torch.tensor([-1.0, 3.0]), tau, torch.tensor([-3.0, 2.0, 4.0]), kappa)
        assert float(got) == pytest.approx(expected, abs=1e-6)


def test_sorted_quantile_huber_has_the_slope_of_its_values() -> None:
    torch.manual_seed(0)
    quantile = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randn(3, 8, dtype=torch.float64).sort(-1).values
    tau = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda q: sorted_quantile_huber(q, tau, target, 0.7), quantile)


def test_sorted_quantile_huber_sends_no_gradient_into_its_targets() -> None:
    quantile, target = torch.randn(3, requires_grad=True), torch.randn(4).sort().values.requires_grad_()
    sorted_quantile_huber(quantile, torch.full((3,), 0.5), target).backward()
    assert quantile.grad is not None and target.grad is None


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([[1.0, NAN], [2.0, 6.0]])
    assert float(explained_variance(target, target, MASK)) == 1.0
    assert float(explained_variance(torch.full((2, 2), 5.0), target, MASK)) == pytest.approx(0.0, abs=1e-6)
    # errors (1, 0, 2): variance 2/3 against 14/3
    value = torch.tensor([[0.0, INF], [2.0, 4.0]])
    assert float(explained_variance(value, target, MASK)) == pytest.approx(1 - 2 / 14, abs=1e-6)
    assert float(explained_variance(value, torch.ones(2, 2), MASK)) == 0.0


def test_shapes_are_checked_on_entry() -> None:
    with pytest.raises(ValueError, match=r"mask has shape \(2, 1\).*\(2, 2\)"):
        masked_mean(torch.zeros(2, 2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="shapes differ"):
        clipped_surrogate(torch.zeros(2, 2), torch.zeros(2), 0.2)
    with pytest.raises(ValueError, match=r"need the shapes"):
        quantile_huber(torch.zeros(2, 3), torch.zeros(4), torch.zeros(2, 5))
    with pytest.raises(ValueError, match="does not match"):
        quantile_huber(torch.zeros(2, 3), torch.zeros(3), torch.zeros(4, 5))
    with pytest.raises(
        ValueError, match=r"quantile \(2, 3\), tau \(4,\) and target \(2, 5\) need the shapes"
    ):
        sorted_quantile_huber(torch.zeros(2, 3), torch.zeros(4), torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"kappa 0.0 must be above 0"):
        sorted_quantile_huber(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 5), 0.0)


def test_row_weights_make_a_plain_mean_count_only_unmasked_rows() -> None:
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    value = torch.tensor([[3.0, 100.0], [6.0, 9.0]])
    weight = row_weight(mask)  # 1 / (3/4) on three rows
    assert weight.tolist() == [[pytest.approx(4 / 3), 0.0], [pytest.approx(4 / 3)] * 2]
    assert float((value * weight).mean()) == pytest.approx(6.0)  # (3 + 6 + 9) / 3
    assert row_weight(torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
