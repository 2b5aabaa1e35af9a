"""Small building blocks: named activations, orthogonal initialisation, and nets described layer by layer."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from whorl.errors import ConfigError
from whorl.registry import Part, resolve

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "identity": nn.Identity,
}


def orthogonal_(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights and zero biases in every linear layer of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def mlp(inputs: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of the given widths, an activation after each, orthogonally initialised."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), ACTIVATIONS[activation]()]
        inputs = width
    net = nn.Sequential(*layers)
    orthogonal_(net)
    return net


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
