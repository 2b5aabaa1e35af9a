"""Noisy layers: exploration by random weights whose size is learned (Fortunato et al. 2018, arXiv:1706.10295)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whorl.core.registry import register
from whorl.nets.layers import activation_of
from whorl.ops.products import linear


class NoisyLinear(nn.Module):
    """y = (W + S * f(e_out) f(e_in)^T) x + b + s * f(e_out), factorised noise f(e) = sign(e) * sqrt(|e|) (eq. 9-11).

    Without noise it is the plain layer y = W x + b.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_scale = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_scale = nn.Parameter(torch.full((outputs,), sigma * bound))

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """Fresh noise for one forward pass: f(e_in) and f(e_out), concatenated."""
        raw = torch.randn(sum(self.weight.shape), generator=generator, device=self.weight.device)
        return raw.sign() * raw.abs().sqrt()

    def forward(self, value: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            return linear(value, self.weight, self.bias)
        into, out = noise.split((self.weight.shape[1], self.weight.shape[0]))
        weight = torch.addcmul(self.weight, self.weight_scale, torch.outer(out, into))
        return linear(value, weight, torch.addcmul(self.bias, self.bias_scale, out))


class IndependentNoisyLinear(nn.Module):
    """y = (W + S * e_w) x + b + s * e_b, with noise of its own for every weight (eq. 9; initialisation of section 3.2).

    Without noise it is the plain layer y = W x + b.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.017) -> None:
        super().__init__()
        bound = (3 / inputs) ** 0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_scale = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_scale = nn.Parameter(torch.full((outputs,), sigma))

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """Fresh noise for one forward pass: e_w with e_b as its last column."""
        outputs, inputs = self.weight.shape
        return torch.randn(outputs, inputs + 1, generator=generator, device=self.weight.device)

    def forward(self, value: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            return linear(value, self.weight, self.bias)
        weight = torch.addcmul(self.weight, self.weight_scale, noise[:, :-1])
        return linear(value, weight, torch.addcmul(self.bias, self.bias_scale, noise[:, -1]))


class NoisyMLP(nn.Module):
    """Noisy layers of the given widths with activations, optionally with layer norms before them."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: str,
        sigma: float = 0.5,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        pairs = zip([inputs, *hidden], hidden)
        self.layers = nn.ModuleList(NoisyLinear(before, after, sigma) for before, after in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None

    def draw(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Fresh noise for one forward pass, layer by layer."""
        return {str(n): layer.draw(generator) for n, layer in enumerate(self.layers)}  # type: ignore[operator]

    def forward(self, value: Tensor, noise: dict[str, Tensor] | None = None) -> Tensor:
        for number, layer in enumerate(self.layers):
            value = layer(value, noise[str(number)] if noise else None)
            value = self.activation(value if self.norms is None else self.norms[number](value))
        return value


register("layer", "NoisyLinear", NoisyLinear)
register("layer", "IndependentNoisyLinear", IndependentNoisyLinear)
