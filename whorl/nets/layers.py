"""Small building blocks: named activations, orthogonal initialisation, and nets described layer by layer."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.errors import ConfigError, nearest
from whorl.registry import Part, resolve

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}


def orthogonal_(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights and zero biases in every linear layer of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class MLP(nn.Module):
    """Linear layers of the given widths, an activation after each, orthogonally initialised.

    On a CPU a small net costs more in module calls than in arithmetic, so the layers are applied as functions.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation is {activation!r}; {nearest(activation, ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        sizes = [inputs, *hidden]
        layers = [nn.Linear(before, after) for before, after in zip(sizes, hidden)]
        self.layers = nn.ModuleList(layers)
        orthogonal_(self)
        self._parts = [(layer.weight, layer.bias) for layer in layers]

    def forward(self, value: Tensor) -> Tensor:
        activation = self.activation
        for weight, bias in self._parts:
            value = activation(F.linear(value, weight, bias))
        return value


OPEN_SIZES = ("in_features", "input_size", "num_features", "normalized_shape", "in_channels", "inputs")
OPEN = "undefined"
"""what a YAML file may write for a size that is left open"""


def layered(inputs: int, layers: Iterable[Mapping[str, Any] | str]) -> nn.Sequential:
    """A net described layer by layer; input sizes left out (or 'undefined') follow from the layer before."""
    built: list[nn.Module] = []
    for layer in layers:
        part = Part.of(layer)
        cls = resolve("layer", part.name)
        options = {key: value for key, value in part.options.items() if value != OPEN}
        if isinstance(cls, type):
            open_sizes = [name for name in inspect.signature(cls).parameters if name in OPEN_SIZES]
            for name in open_sizes:
                options.setdefault(name, inputs)
        try:
            module = cls(**options)
        except TypeError as error:
            raise ConfigError(f"layer {part.name!r} can't be built with {options}: {error}") from None
        built.append(module)
        inputs = width_of(module, inputs)
    net = nn.Sequential(*built)
    orthogonal_(net)
    return net


def width_of(module: nn.Module, inputs: int) -> int:
    """The number of output columns of `module` for `inputs` input columns, found by trying."""
    training = module.training
    module.eval()
    with torch.no_grad():
        width = module(torch.zeros(2, inputs)).shape[-1]
    module.train(training)
    return int(width)
