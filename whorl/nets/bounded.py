"""Networks whose weights, features and gradients have bounded norms (FlashSAC, arXiv:2604.04539).

`learn` normalises by the statistics of its batch and returns them, and `merge_` updates the running ones, so that a
loss stays a pure function of tensors. `project_` bounds the weights; call it after each step of the optimizer.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.ops.products import batched_product

EPSILON = 1e-5
ROUNDING = 2e-6
"""error of a squared norm in single precision"""
MOMENTUM = 0.01
"""share of a batch in the running statistics"""
Moments: TypeAlias = tuple[Tensor, Tensor]
"""mean and unbiased variance of a batch, each [members, 1, columns]"""


class BatchNorm(nn.Module):
    """Normalises the columns of [members, rows, columns], separately for each member, then scales and shifts them."""

    mean: Tensor
    var: Tensor

    def __init__(self, members: int, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, columns))
        self.shift = nn.Parameter(torch.zeros(members, 1, columns))
        self.register_buffer("mean", torch.zeros(members, 1, columns))
        self.register_buffer("var", torch.ones(members, 1, columns))

    def forward(self, value: Tensor) -> Tensor:
        """By running statistics: no row depends on another."""
        factor = self.scale * (self.var + EPSILON).rsqrt()
        return torch.addcmul(self.shift - self.mean * factor, value, factor)

    def learn(self, value: Tensor) -> tuple[Tensor, Moments]:
        """By the statistics of the rows, and these statistics."""
        flat = value.transpose(0, 1).flatten(1)  # [rows, members * columns], the layout of batch norm kernels
        with torch.no_grad():
            var, mean = torch.var_mean(flat, 0)
        scale, shift = self.scale.flatten(), self.shift.flatten()
        normed = F.batch_norm(flat, None, None, scale, shift, training=True, eps=EPSILON)
        found = mean.view_as(self.mean), var.view_as(self.var)
        return normed.unflatten(1, (len(value), -1)).transpose(0, 1), found

    @torch.no_grad()
    def merge_(self, moments: Moments) -> None:
        """Update the running statistics with those of a batch."""
        self.mean.lerp_(moments[0], MOMENTUM)
        self.var.lerp_(moments[1], MOMENTUM)

    @torch.no_grad()
    def project_(self) -> None:
        """Scale and shift together to the norm sqrt(columns)."""
        factor = _to_one((self.scale.square() + self.shift.square()).mean(-1, keepdim=True))
        self.scale.mul_(factor)
        self.shift.mul_(factor)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2)) * scale of [members, rows, columns]: every row has at most the norm of the scale's maximum
    times sqrt(columns)."""

    def __init__(self, members: int, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, columns))

    def forward(self, value: Tensor) -> Tensor:
        return F.rms_norm(value, value.shape[-1:], eps=EPSILON) * self.scale

    @torch.no_grad()
    def project_(self) -> None:
        """The scale to the norm sqrt(columns)."""
        self.scale.mul_(_to_one(self.scale.square().mean(-1, keepdim=True)))


class BoundedNet(nn.Module):
    """`members` networks of inverted residual blocks: values [..., inputs] -> [members, ..., outputs].

    x <- W norm(x);  x <- x + relu(norm(W2 relu(norm(W1 x)))) for each block;  W rms_norm(x) + b
    norm is batch normalisation, W1 widens by the factor `expand` and W2 narrows. The weights of every unit have the
    norm 1, scale and shift of a norm together sqrt(columns).
    """

    def __init__(
        self, members: int, inputs: int, width: int, blocks: int, outputs: int, expand: int = 4
    ) -> None:
        super().__init__()
        self.members, self.blocks = members, blocks
        wide = expand * width
        sizes = [(inputs, width), *[(width, wide), (wide, width)] * blocks, (width, outputs)]
        self.weights = nn.ParameterList(_unit_weights(members, before, after) for before, after in sizes)
        columns = [inputs, *[wide, width] * blocks]
        self.norms = nn.ModuleList(BatchNorm(members, size) for size in columns)
        self.rms = RMSNorm(members, width)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))
        self.project_()

    def forward(self, value: Tensor) -> Tensor:
        """Outputs with running statistics: no row depends on another."""
        return self._through(value, learn=False)[0]

    def learn(self, value: Tensor) -> tuple[Tensor, list[Moments]]:
        """Outputs with the statistics of all rows of `value`, and these statistics per norm."""
        return self._through(value, learn=True)

    def _through(self, value: Tensor, *, learn: bool) -> tuple[Tensor, list[Moments]]:
        lead, found = value.shape[:-1], list[Moments]()

        def normed(number: int, value: Tensor) -> Tensor:
            norm: BatchNorm = self.norms[number]  # type: ignore[assignment]  # a ModuleList of these
            if not learn:
                return norm(value)
            value, moments = norm.learn(value)
            found.append(moments)
            return value

        value = value.flatten(0, -2).expand(self.members, -1, -1)
        value = batched_product(normed(0, value), self.weights[0])  # [members, rows, columns]
        for block in range(self.blocks):
            first = 2 * block + 1
            inner = normed(first, batched_product(value, self.weights[first])).relu()
            inner = normed(first + 1, batched_product(inner, self.weights[first + 1])).relu()
            value = value + inner
        value = batched_product(self.rms(value), self.weights[-1], self.bias)
        return value.unflatten(1, lead), found

    def merge_(self, moments: list[Moments]) -> None:
        """Update the running statistics with those that `learn` returned."""
        for norm, found in zip(self.norms, moments, strict=True):
            norm.merge_(found)  # type: ignore[operator]  # a ModuleList of `BatchNorm`

    @torch.no_grad()
    def project_(self) -> None:
        """Bound all weights, in place."""
        for weight in self.weights:
            weight.mul_(_to_one(weight.square().sum(1, keepdim=True)))
        for norm in (*self.norms, self.rms):
            norm.project_()


def _to_one(square: Tensor) -> Tensor:
    """The factor that makes a squared norm 1; exactly 1 where it is but for rounding, so that projecting again changes
    nothing."""
    return torch.where((square - 1).abs() < ROUNDING, 1.0, square.clamp(min=1e-8).rsqrt())


def _unit_weights(members: int, before: int, after: int) -> nn.Parameter:
    """Orthogonal weights [members, before, after]."""
    weight = torch.empty(members, before, after)
    for member in weight:
        nn.init.orthogonal_(member.T, 1.0)
    return nn.Parameter(weight)
