"""Ensembles of MLPs with batch renormalisation (Ioffe 2017, arXiv:1702.03275) before every linear layer.

Learning normalises with batch statistics, acting with running ones. A forward pass changes nothing: `learn` returns the
statistics and `merge_` updates the running ones, so that a loss stays a pure function of tensors.
"""

from itertools import pairwise
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.nets.layers import activation_of
from whorl.ops.products import batched_product

EPSILON = 1e-3
R_MAX, D_MAX = 3.0, 5.0
Moments: TypeAlias = tuple[Tensor, Tensor]
"""mean and variance of a batch, each [members, 1, columns]"""


class BatchRenorm(nn.Module):
    """Normalises the columns of [members, rows, columns], separately for each member, then scales and shifts them.

    forward:  (x - mu) / sigma
    learn:    (x - mu_B) / sigma_B * r + d
              r = clip(sigma_B / sigma, 1/3, 3),  d = clip((mu_B - mu) / sigma, -5, 5)
    mu_B and sigma_B are the batch's, mu and sigma come from running means of its mean and variance; every sigma is
    sqrt(variance + 1e-3). Gradients flow through mu_B and sigma_B, while r and d are constants. Without clipping, both
    are equal.

    Args:
        momentum: fraction of the running statistics that is kept when a batch is merged.
        warmup: number of first batches with r = 1 and d = 0: plain batch normalisation (Ioffe & Szegedy 2015).
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, members: int, columns: int, momentum: float, warmup: int) -> None:
        super().__init__()
        self.momentum, self.warmup = momentum, warmup
        self.scale = nn.Parameter(torch.ones(members, 1, columns))
        self.shift = nn.Parameter(torch.zeros(members, 1, columns))
        self.register_buffer("mean", torch.zeros(members, 1, columns))
        self.register_buffer("var", torch.ones(members, 1, columns))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        factor = self.scale * (self.var + EPSILON).rsqrt()
        return torch.addcmul(self.shift - self.mean * factor, value, factor)

    def learn(self, value: Tensor) -> tuple[Tensor, Moments]:
        """Values normalised with batch statistics, and these statistics."""
        flat = value.transpose(0, 1).flatten(1)  # [rows, members * columns], the layout of batch norm kernels
        with torch.no_grad():
            mean = flat.mean(0)
            var = (flat - mean).square().mean(0)
            mean, var = mean.view_as(self.mean), var.view_as(self.var)
            running, warm = (self.var + EPSILON).sqrt(), self.count >= self.warmup
            r = ((var + EPSILON).sqrt() / running).clamp(1 / R_MAX, R_MAX)
            d = ((mean - self.mean) / running).clamp(-D_MAX, D_MAX)
            r, d = torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)
        scale, shift = self.scale * r, torch.addcmul(self.shift, self.scale, d)
        normed = F.batch_norm(flat, None, None, scale.flatten(), shift.flatten(), training=True, eps=EPSILON)
        return normed.unflatten(1, (len(value), -1)).transpose(0, 1), (mean, var)

    @torch.no_grad()
    def merge_(self, moments: Moments) -> None:
        """Update the running statistics with those of a batch."""
        self.mean.lerp_(moments[0], 1 - self.momentum)
        self.var.lerp_(moments[1], 1 - self.momentum)
        self.count.add_(1)


class RenormMLP(nn.Module):
    """`members` MLPs of the same shape: norm, then linear -> activation -> norm for each hidden layer, then linear.

    Values [..., inputs] -> [members, ..., outputs]. Weights are initialised with normal noise of variance 1 / inputs.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        activation: str,
        *,
        momentum: float,
        warmup: int,
    ) -> None:
        super().__init__()
        self.members, self.activation = members, activation_of(activation)
        sizes = [inputs, *hidden, outputs]
        norms = [BatchRenorm(members, size, momentum, warmup) for size in sizes[:-1]]
        self.norms = nn.ModuleList(norms)
        self.weights = nn.ParameterList(
            torch.randn(members, before, after) * before**-0.5 for before, after in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, after) for after in sizes[1:])
        self._layers = list(zip(norms, self.weights, self.biases))

    def forward(self, value: Tensor) -> Tensor:
        """Outputs with running statistics: no row depends on another."""
        return self._through(value, learn=False)[0]

    def learn(self, value: Tensor) -> tuple[Tensor, list[Moments]]:
        """Outputs with the statistics of all rows of `value`, and these statistics per layer."""
        return self._through(value, learn=True)

    def _through(self, value: Tensor, *, learn: bool) -> tuple[Tensor, list[Moments]]:
        lead, found = value.shape[:-1], []
        value = value.flatten(0, -2).expand(self.members, -1, -1)
        for number, (norm, weight, bias) in enumerate(self._layers):
            if number > 0:
                value = self.activation(value)
            if learn:
                value, moments = norm.learn(value)
                found.append(moments)
            else:
                value = norm(value)
            value = batched_product(value, weight, bias)  # [members, rows, columns]
        return value.unflatten(1, lead), found

    def merge_(self, moments: list[Moments]) -> None:
        """Update the running statistics with those that `learn` returned."""
        for (norm, _, _), found in zip(self._layers, moments, strict=True):
            norm.merge_(found)
