"""Small building blocks: named activations, orthogonal initialisation, and nets described layer by layer."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part, construct, register, resolve
from whorl.ops.products import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "relu": torch.relu_,  # in place: half the memory traffic of a small net on a CPU
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The activation called `name`; it may work in place, so pass it only fresh outputs of a layer."""
    if name.lower() not in ACTIVATIONS:
        raise ConfigError(f"activation is {name!r}; {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name.lower()]


def orthogonal_(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights and zero biases in every linear layer of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class Linear(nn.Linear):
    """torch's layer, multiplied by `whorl.ops.products`."""

    def forward(self, value: Tensor) -> Tensor:
        return linear(value, self.weight, self.bias)


class MLP(nn.Module):
    """Linear layers of the given widths with activations, optionally with layer norms, and orthogonal initialisation.

    On a CPU, module calls of a small network cost more than its arithmetic, so layers are applied as functions.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], activation: str, layer_norm: bool = False) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        sizes = [inputs, *hidden]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None
        layers = [Linear(before, after) for before, after in zip(sizes, hidden)]
        self.layers = nn.ModuleList(layers)
        orthogonal_(self)
        self._parts = [(layer.weight, layer.bias) for layer in layers]

    def forward(self, value: Tensor) -> Tensor:
        activation, lead = self.activation, value.shape[:-1]
        # As a matrix: with more axes a layer returns a view, and in-place activations on views are copied.
        value = value.reshape(-1, value.shape[-1])
        for number, (weight, bias) in enumerate(self._parts):
            value = linear(value, weight, bias)
            value = activation(value if self.norms is None else self.norms[number](value))
        return value.reshape(*lead, value.shape[-1])


Last: TypeAlias = Callable[[int, int, float], nn.Module]
"""makes the last layers of a network: from its numbers of inputs and outputs, and the gain of initial weights"""


def linear_last(inputs: int, outputs: int, gain: float) -> nn.Module:
    """One linear layer."""
    return orthogonal_(Linear(inputs, outputs), gain)


def last_of(head: Part) -> Last:
    """What makes the last layers that a setting such as `actor_head` describes."""
    if head.name == "linear":
        if head.options:
            raise ConfigError(
                f"head 'linear' has no options, but {', '.join(head.options)} is given; leave it out"
            )
        return linear_last

    def build(inputs: int, outputs: int, gain: float) -> nn.Module:
        net = construct("head", head, inputs, outputs)
        if not isinstance(net, nn.Module):
            raise ConfigError(
                f"head {head.name!r} built a {type(net).__name__}; it must build a torch.nn.Module"
            )
        found = width_of(net, inputs)
        if found != outputs:
            raise ConfigError(
                f"head {head.name!r} has {found} outputs for {inputs} inputs; this action space needs {outputs}"
            )
        return net

    return build


class Residual(nn.Module):
    """SimBa's torso (Lee et al. 2024, arXiv:2410.09754): residual blocks with layer norms and a linear skip path.

    x <- W x;  x <- x + W2 relu(W1 norm(x)) for each block;  norm(x)
    The paper also normalises observations: set `normalize_obs`.
    """

    def __init__(self, inputs: int, width: int = 128, blocks: int = 1, expand: int = 4) -> None:
        super().__init__()
        _check_size("width", width, 1)
        _check_size("blocks", blocks, 0)
        _check_size("expand", expand, 1)
        self.enter = orthogonal_(Linear(inputs, width), 1.0)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.wide = nn.ModuleList(Linear(width, expand * width) for _ in range(blocks))
        self.narrow = nn.ModuleList(Linear(expand * width, width) for _ in range(blocks))
        for layer in (*self.wide, *self.narrow):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.leave = nn.LayerNorm(width)

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        for norm, wide, narrow in zip(self.norms, self.wide, self.narrow):
            value = value + narrow(torch.relu(wide(norm(value))))
        return self.leave(value)


def _check_size(name: str, size: int, least: int) -> None:
    if not isinstance(size, int) or size < least:
        raise ConfigError(f"{name} is {size!r}; it must be a whole number of at least {least}")


OPEN_SIZES = ("in_features", "input_size", "num_features", "normalized_shape", "in_channels", "inputs")
OPEN_OUTPUTS = ("out_features", "outputs")
OPEN = "undefined"
"""placeholder in YAML files for a size that is inferred"""


def layered(
    inputs: int, layers: Iterable[Mapping[str, Any] | str] | None, outputs: int | None = None
) -> nn.Sequential:
    """A network described layer by layer; missing or 'undefined' input sizes are inferred from the previous layer, and
    the output size of the last layer is `outputs`, if given."""
    # The keys of a mapping could be import paths, which `whorl.settings.trust` would not find.
    if not isinstance(layers, (list, tuple)):
        raise ConfigError(f"layers is {layers!r}; it must be a list of names or of mappings with 'class'")
    built: list[nn.Module] = []
    parts = [Part.of(layer) for layer in layers]
    for number, part in enumerate(parts):
        cls = resolve("layer", part.name)
        options = {key: value for key, value in part.options.items() if value != OPEN}
        if isinstance(cls, type):
            names = inspect.signature(cls).parameters
            for name in (name for name in names if name in OPEN_SIZES):
                options.setdefault(name, inputs)
            if outputs is not None and number == len(parts) - 1:
                for name in (name for name in names if name in OPEN_OUTPUTS):
                    options.setdefault(name, outputs)
        try:
            module = cls(**options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"layer {part.name!r} can't be built with {options}: {error}") from None
        if outputs is None and hasattr(module, "draw"):
            raise ConfigError(
                f"layer {part.name!r} is noisy, which only advantage_network and value_network take; use a plain one"
            )
        built.append(module)
        inputs = width_of(module, inputs)
    net = nn.Sequential(*built)
    orthogonal_(net)
    if outputs is not None and inputs != outputs:
        last = parts[-1].name if parts else "nothing"
        raise ConfigError(
            f"the last layer, {last!r}, has {inputs} outputs; leave its output size out, which is {outputs} here"
        )
    return net


@register("head", "tanh")
def tanh_last(inputs: int, outputs: int) -> nn.Module:
    """One linear layer and tanh. As the mean of a Gaussian it stays within the bounds of the actions, beyond which all
    actions are clipped to the same one, so that nothing is learned from them."""
    return nn.Sequential(orthogonal_(nn.Linear(inputs, outputs), 0.01), nn.Tanh())


@register("head", "layers")
def layered_head(inputs: int, outputs: int, layers: Iterable[Mapping[str, Any] | str]) -> nn.Module:
    """Hidden layers described one by one, then a linear layer."""
    net = layered(inputs, layers)
    net.append(orthogonal_(nn.Linear(width_of(net, inputs), outputs), 0.01))
    return net


def width_of(module: nn.Module, inputs: int) -> int:
    """The number of outputs of `module` for `inputs` inputs, from a trial run."""
    training, what = module.training, type(module).__name__
    module.eval()
    try:
        with torch.no_grad():
            found = module(torch.zeros(2, inputs))
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        raise ConfigError(f"{what} can't read rows of {inputs} columns: {error}") from error
    if not isinstance(found, Tensor) or found.dim() != 2 or not found.shape[-1]:
        shape = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{what} returns {shape} for 2 rows of {inputs} columns; it must return [2, columns]"
        )
    module.train(training)
    return found.shape[-1]
