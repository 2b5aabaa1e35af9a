"""Losses and statistics, per element or over unmasked rows.

A mask is 0 on rows that are not transitions and covers the last axes of what it masks; axes before them (an ensemble of
critics) share it. If several learners share a batch, counts and statistics include all of its rows
(`whorl.core.collectives`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.core import collectives

MAX_LOG_RATIO = 30.0
"""exp(30) is 1e13, beyond any meaningful ratio of two policies; exp(89) overflows single precision"""


def blank(value: Tensor, mask: Tensor) -> Tensor:
    """`value` with 0 where `mask` is 0, even for nan; these entries receive no gradient.

    `masked_mean` does this to what it averages. Do it also to the *inputs* of a formula whose derivative is not finite
    on masked rows (the square of nan, the log of 0): that derivative times a zero gradient is nan.
    """
    _check_mask(value, mask)
    return torch.where(mask > 0, value, 0.0)


def per_stream(mask: Tensor, value: Tensor) -> Tensor:
    """The mask [T, B] of `value` [T, B], or expanded to that of `value` [T, B, S] with an axis of reward streams."""
    return mask if value.dim() == mask.dim() else mask.unsqueeze(-1).expand(*mask.shape, value.shape[-1])


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean of `value` [..., T, B] over the entries where `mask` [T, B] is above 0; 0 if there are none.

    Masked entries do not affect the mean or its gradient, even if they are nan or infinite. With several learners, the
    mean of their results is the mean over all rows.
    """
    return blank(value, mask).sum() / _count(value, mask)


def contrast(logits: Tensor, mask: Tensor) -> Tensor:
    """InfoNCE (van den Oord et al. 2018, arXiv:1807.03748) of logits [N, N]: -log softmax(logits[i])[i] for each row i.

    Columns whose `mask` [N] is 0 are no negatives of other rows.
    """
    if logits.dim() != 2 or logits.shape != (len(mask), len(mask)):
        raise ValueError(f"logits {tuple(logits.shape)} and mask {tuple(mask.shape)}; need [N, N] and [N]")
    here = torch.eye(len(mask), dtype=torch.bool, device=mask.device)
    counted = torch.where((mask > 0) | here, logits, -1e9)
    return -counted.log_softmax(-1).diagonal()


def row_weight(mask: Tensor) -> Tensor:
    """Weights [T, B] that turn a plain mean over all rows, or over a minibatch of them, into one over unmasked rows.

    weight = mask / mean(mask). Computed once per rollout, it replaces a masked mean per minibatch; the weighted columns
    must be finite on masked rows (`blank` them first).
    """
    return mask / collectives.mean(mask.mean()).clamp(min=torch.finfo(mask.dtype).tiny)


def masked_normalize(value: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """(x - mean) / (std + eps) with mean and population std of the unmasked entries; 0 where masked."""
    centred = blank(value - _joint_mean(value, mask), mask)
    std = _joint_mean(centred.square(), mask).sqrt()
    return centred / (std + eps)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """PPO's objective, to be maximised (Schulman et al. 2017, arXiv:1707.06347, eq. 7), per element.

    min(r * A, clamp(r, 1 - clip, 1 + clip) * A) = min(r * A, A + clip * |A|),   r = exp(log_ratio)
    """
    _check_same(log_ratio=log_ratio, advantage=advantage)
    # Clamp before exp: an overflow would make inf - inf of the gradient.
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    # The right-hand form reads the ratio only once: its bound is a constant per row.
    return torch.minimum(ratio * advantage, advantage + clip * advantage.abs())


def squared(value: Tensor, target: Tensor) -> Tensor:
    """1/2 * (V - G)^2, per element."""
    return 0.5 * (value - target).square()


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    clip: float | Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] = squared,
) -> Tensor:
    """PPO's value clipping, per element.

    max(loss(V, G), loss(V_old + clamp(V - V_old, -clip, clip), G))
    """
    _check_same(value=value, old_value=old_value, target=target)
    near = old_value + _within(value - old_value, clip)
    return torch.maximum(loss(value, target), loss(near, target))


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """1/2 * e^2 up to |e| = delta, then delta * (|e| - delta / 2) (Huber 1964), per element."""
    return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def expectile_loss(error: Tensor, tau: float) -> Tensor:
    """|tau - 1(u < 0)| * u^2 of u = sample - estimate, per element (Newey and Powell 1987)."""
    return torch.where(error < 0, 1 - tau, tau) * error.square()


def quantile_huber(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """`quantile_loss` with the Huber loss (Dabney et al. 2018, arXiv:1710.10044, eq. 10), which is not divided by
    kappa; kappa 0 means |d_ij|."""

    def size(value: Tensor, target: Tensor) -> Tensor:
        error = target - value
        return error.abs() if kappa == 0 else huber(error, kappa)

    return quantile_loss(quantile, tau, target, size)


def quantile_loss(
    quantile: Tensor, tau: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Quantile regression with any loss per element, over all pairs: [...].

    sum_i mean_j |tau_i - 1{d_ij < 0}| * loss(quantile_i, target_j),   d_ij = target_j - quantile_i

    `quantile` [..., N], `tau` [N] or [..., N], `target` [..., M]. Gradients flow into `target` too unless it is
    detached.
    """
    if min(quantile.dim(), tau.dim(), target.dim()) == 0 or tau.shape[-1] != quantile.shape[-1]:
        raise ValueError(
            f"quantile {tuple(quantile.shape)}, tau {tuple(tau.shape)} and target {tuple(target.shape)} "
            "need the shapes [..., N], [..., N] and [..., M]"
        )
    if (
        target.dim() > quantile.dim()
        or target.shape[:-1] != quantile.shape[quantile.dim() - target.dim() : -1]
    ):
        raise ValueError(
            f"target {tuple(target.shape)} does not match quantile {tuple(quantile.shape)}; "
            "all axes except the last must agree, counted from the end"
        )
    value, other = torch.broadcast_tensors(quantile.unsqueeze(-1), target.unsqueeze(-2))  # [..., N, M]
    weight = (tau.unsqueeze(-1) - (other < value).to(tau.dtype)).abs()
    return (weight * loss(value, other)).mean(-1).sum(-1)


def sorted_quantile_huber(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """`quantile_huber` for targets that are sorted along their last axis, without the tensor of all pairs.

    The contributions of targets below, near and above a quantile follow from prefix sums: O((N + M) log M) per row
    instead of O(N M). `quantile` [..., N], `tau` [N], `target` [..., M] ascending; no gradient flows into `target`.
    """
    if quantile.shape[:-1] != target.shape[:-1] or tau.shape != quantile.shape[-1:] or kappa <= 0:
        raise ValueError(
            f"quantile {tuple(quantile.shape)}, tau {tuple(tau.shape)} and target {tuple(target.shape)} need the "
            f"shapes [..., N], [N] and [..., M], and kappa {kappa} must be above 0"
        )
    return _SortedQuantileHuber.apply(quantile, tau, target, kappa).sum(-1)


class _SortedQuantileHuber(torch.autograd.Function):
    """Loss per quantile [..., N]; the forward pass also computes its derivative, so that backward is one product."""

    @staticmethod
    def forward(ctx: Any, quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
        count, places = target.shape[-1], quantile.shape[-1]
        # Relative to one of the targets: sums of squares of large values would lose precision.
        middle = target[..., count // 2 : count // 2 + 1]
        z, x = (target - middle).double(), (quantile - middle).double()
        edges = torch.cat((x - kappa, x, x + kappa), -1)
        below = torch.searchsorted(z.contiguous(), edges)  # [..., 3N] targets under each edge
        nothing = z.new_zeros(*z.shape[:-1], 1)
        sums = torch.cat((nothing, z.cumsum(-1)), -1).gather(-1, below)
        squares = torch.cat((nothing, z.square().cumsum(-1)), -1).gather(-1, below)
        far_left, left, near = below.double().split(places, -1)
        sum_left, sum_here, sum_right = sums.split(places, -1)
        square_left, square_here, square_right = squares.split(places, -1)

        def half_square(n: Tensor, total: Tensor, square: Tensor) -> Tensor:
            """sum (z - x)^2 / 2 over n targets"""
            return 0.5 * (square - 2 * x * total + n * x.square())

        n_under, n_over = left - far_left, near - left
        total_under, total_over = sum_here - sum_left, sum_right - sum_here
        n_beyond = count - near
        total_beyond = z.sum(-1, keepdim=True) - sum_right
        under = half_square(n_under, total_under, square_here - square_left)
        under = under + kappa * (far_left * (x - kappa / 2) - sum_left)
        over = half_square(n_over, total_over, square_right - square_here)
        over = over + kappa * (total_beyond - n_beyond * (x + kappa / 2))
        slope_under = n_under * x - total_under + kappa * far_left
        slope_over = total_over - n_over * x + kappa * n_beyond
        slope = ((1 - tau) * slope_under - tau * slope_over) / count
        ctx.save_for_backward(slope.to(quantile.dtype))
        return (((1 - tau) * under + tau * over) / count).to(quantile.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over unmasked entries: 1 is perfect, 0 no better than a constant.

    0 if the target is constant.
    """
    _check_same(value=value, target=target)
    spread = _masked_variance(target, mask)
    left = _masked_variance(target - value, mask)
    varies = spread > 0
    return torch.where(varies, 1 - left / torch.where(varies, spread, 1.0), 0.0)


def _within(value: Tensor, limit: float | Tensor) -> Tensor:
    return value.clamp(-limit, limit)  # type: ignore[arg-type]  # the stubs require both numbers or both tensors


def _masked_variance(value: Tensor, mask: Tensor) -> Tensor:
    return _joint_mean((value - _joint_mean(value, mask)).square(), mask)


def _joint_mean(value: Tensor, mask: Tensor) -> Tensor:
    return collectives.mean(masked_mean(value, mask))


def _count(value: Tensor, mask: Tensor) -> Tensor:
    """Number of unmasked entries of `value`, at least 1, as a 0-dim tensor without host sync.

    With several learners, their total divided by their number.
    """
    shared = value.numel() // max(mask.numel(), 1)
    count = collectives.total((mask > 0).sum()).clamp(min=1) * shared
    return count if collectives.learners() == 1 else count / collectives.learners()


def _check_mask(value: Tensor, mask: Tensor) -> None:
    if mask.dim() > value.dim() or value.shape[value.dim() - mask.dim() :] != mask.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}; it must equal the last axes of value {tuple(value.shape)}"
        )


def _check_same(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
