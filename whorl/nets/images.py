"""The encoder of observations with images, alone or in a dict with other images and vectors.

    nature  8x8/4 32, 4x4/2 64, 3x3/1 64, linear 512             (Mnih et al. 2015)
    impala  three stages of two residual blocks, linear 256      (Espeholt et al. 2018, arXiv:1802.01561, fig. 3)
    small   3x3/1 16, linear 128, for grids of a few cells       (Young and Tian 2019, arXiv:1903.03176); with pool 1 it
            learns once what to do beside a wall, not again at every place of a maze
    drq     3x3/2 32, 3 times 3x3/1 32, linear 50, LayerNorm, tanh (Yarats et al. 2019, arXiv:1910.01741)
    vit     a small vision transformer over patches of 8 pixels, linear 256 (`whorl.nets.vit`)

Initialisation is orthogonal, for drq's convolutions only at the centre of the kernel (delta-orthogonal). The last layer
of an impala block starts with smaller weights than in the paper, because six blocks would make features of size 15.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError, nearest
from whorl.core.spec import MASK_KEY, SpecTree
from whorl.core.tree import Tree
from whorl.nets.layers import Linear, orthogonal_
from whorl.nets.vit import VisionTransformer
from whorl.ops.augment import LEAST_SIDE, Channels, Picture, picture

GAIN = 2**0.5
"""keeps the size of activations through a ReLU"""


@dataclass(frozen=True)
class Wide:
    """Options of impala and small."""

    width: int = 1
    spectral_norm: bool = False
    pool: int = 0
    layers: int = 1


PLAIN = Wide()


class Images(nn.Module):
    """Encodes each image leaf by a convolutional network, flattens all others, and concatenates them per row.

    Args:
        kind: nature, impala, small, drq, vit; auto takes nature for images that are large enough, else small.
        features: outputs per image; 0: the default of the kind; flat: no linear layer after the convolutions.
        channels: position of the channel axis: first, last, or auto (from the shape).
        width, spectral_norm, pool: options of impala from Beyond the Rainbow (Clark et al. 2024, arXiv:2411.03820):
        factor of the number of channels, spectral normalisation of residual convolutions, side of the final max pooling
        (0: none; 1: the largest value of each channel). Width and pool are also options of small.
        layers: convolutions of small; those before the last keep the size of the image.
    """

    def __init__(
        self,
        observation: SpecTree,
        kind: str = "auto",
        features: int | Literal["flat"] = 0,
        channels: Channels = "auto",
        width: int = 1,
        spectral_norm: bool = False,
        pool: int = 0,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.nets = nn.ModuleList()
        self.images: dict[str, int] = {}
        """index of the network of each image, by path"""
        self.ranks: dict[str, int] = {}
        """number of flattened axes of each other leaf, by path"""
        self.size = 0
        for path, leaf in tree.items(observation):
            if path.rpartition(".")[2] == MASK_KEY:
                continue
            found = picture(leaf, channels)
            if found is None:
                self.ranks[path] = len(leaf.shape)
                self.size += leaf.size
            else:
                net = Convolutions(found, kind, features, Wide(width, spectral_norm, pool, layers))
                self.images[path] = len(self.nets)
                self.nets.append(net)
                self.size += net.size

    def forward(self, obs: Tree) -> Tensor:
        parts = []
        for path, value in tree.items(obs):
            if path in self.images:
                parts.append(self.nets[self.images[path]](value))
            elif path in self.ranks:
                parts.append(value.float().reshape(*value.shape[: value.dim() - self.ranks[path]], -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class Convolutions(nn.Module):
    """One image [..., H, W, C] or [..., C, H, W] -> features [..., size].

    The memory format is channels last: compared with contiguous images it takes about 0.8 (nature) and 0.6 (drq) of the
    time on a CPU, 0.75 and 0.9 on an H200 with TF32, and [H, W, C] needs no conversion.
    """

    def __init__(
        self, found: Picture, kind: str, features: int | Literal["flat"], wide: Wide = PLAIN
    ) -> None:
        super().__init__()
        chosen = _choose(found, kind)
        if wide != PLAIN and chosen.trunk not in (_impala, _small):
            raise ConfigError(
                "width, spectral_norm, pool and layers are options of kinds impala and small; leave them out"
            )
        if wide.layers != 1 and chosen.trunk is not _small:
            raise ConfigError("layers is an option of kind small only; leave it out")
        if wide.spectral_norm and chosen.trunk is not _impala:
            raise ConfigError("spectral_norm is an option of kind impala only; leave it out")
        if min(wide.width, wide.layers) < 1 or wide.pool < 0:
            raise ConfigError(
                f"width is {wide.width}, layers {wide.layers} and pool {wide.pool}; give at least 1, 1 and 0"
            )
        if features != "flat" and (not isinstance(features, int) or features < 0):
            raise ConfigError(f"features is {features!r}; give a width, 0 for {chosen.features}, or flat")
        self.first = found.first
        self.trunk = chosen.trunk(found.channels, wide)
        with torch.no_grad():
            width = self.trunk(torch.zeros(1, found.channels, found.height, found.width)).numel()
        self.size = width if features == "flat" else features or chosen.features
        self.head = nn.Identity() if features == "flat" else chosen.head(width, self.size)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave this form out

    def forward(self, value: Tensor) -> Tensor:
        image = value.reshape(-1, *value.shape[-3:])
        if not self.first:
            image = image.permute(0, 3, 1, 2)
        image = image.contiguous(memory_format=torch.channels_last).float()
        if value.dtype == torch.uint8:  # agents with a preprocessor have scaled it already
            image = image / 255
        found = self.trunk(image).permute(0, 2, 3, 1)  # [N, h, w, c], as it lies in memory
        return self.head(found.flatten(1)).reshape(*value.shape[:-3], self.size)


def has_images(observation: SpecTree, side: int = LEAST_SIDE, channels: Channels = "auto") -> bool:
    """Whether some leaf is an image with sides of at least `side` pixels."""
    found = (picture(leaf, channels) for leaf in tree.leaves(observation))
    return any(image is not None and min(image.height, image.width) >= side for image in found)


@dataclass(frozen=True)
class Kind:
    """A named convolutional architecture."""

    trunk: Callable[[int, "Wide"], nn.Module]
    """channels, options of impala -> [N, C, H, W] to [N, c, h, w]"""
    head: Callable[[int, int], nn.Module]
    """flattened inputs, features -> the last layers"""
    features: int
    least: int
    """smallest image side that the trunk accepts"""


def _choose(found: Picture, kind: str) -> Kind:
    side = min(found.height, found.width)
    if kind == "auto":
        kind = "nature" if side >= KINDS["nature"].least else "small"
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; {nearest(kind, ['auto', *KINDS])}")
    if side < KINDS[kind].least:
        raise ConfigError(
            f"image {found.height}x{found.width} is too small for {kind}; use kind=small "
            f"({kind} needs sides of at least {KINDS[kind].least} pixels)"
        )
    return KINDS[kind]


def _nature(channels: int, wide: Wide) -> nn.Module:
    return nn.Sequential(
        _convolution(channels, 32, 8, stride=4),
        nn.ReLU(inplace=True),
        _convolution(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        _convolution(64, 64, 3),
        nn.ReLU(inplace=True),
    )


def _small(channels: int, wide: Wide) -> nn.Module:
    layers: list[nn.Module] = []
    widths = [channels] + [16 * wide.width] * wide.layers
    for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
        padding = 1 if number < wide.layers else 0
        layers += [_convolution(inputs, outputs, 3, padding=padding), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *_pooling(wide.pool))


def _drq(channels: int, wide: Wide) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, stride in ((channels, 2), (32, 1), (32, 1), (32, 1)):
        convolution = _convolution(inputs, 32, 3, stride)
        nn.init.zeros_(convolution.weight)
        nn.init.orthogonal_(convolution.weight.data[:, :, 1, 1], GAIN)
        layers += [convolution, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _impala(channels: int, wide: Wide) -> nn.Module:
    layers: list[nn.Module] = []
    widths = [channels, *(wide.width * count for count in (16, 32, 32))]
    for inputs, outputs in pairwise(widths):
        layers += [_convolution(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [ResidualBlock(outputs, wide.spectral_norm), ResidualBlock(outputs, wide.spectral_norm)]
    return nn.Sequential(*layers, nn.ReLU(), *_pooling(wide.pool))


def _pooling(side: int) -> list[nn.Module]:
    if side == 1:
        return [Largest()]
    return [Pooled(side)] if side else []


def _vit(channels: int, wide: Wide) -> nn.Module:
    return VisionTransformer(channels)


class Largest(nn.Module):
    """The largest value of each channel, [N, C, H, W] -> [N, C, 1, 1].

    A reduction is fast on a GPU, where adaptive pooling to one pixel reads a whole channel in a single thread.
    """

    def forward(self, value: Tensor) -> Tensor:
        return value.amax((2, 3), keepdim=True)


class Pooled(nn.Module):
    """The largest values of windows, [N, C, H, W] -> [N, C, side, side], as adaptive max pooling has them.

    Windows overlap, and torch's layer adds up their gradients in varying order on a GPU.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, value: Tensor) -> Tensor:
        for axis in (2, 3):
            size = value.shape[axis]
            bounds = [(i * size // self.side, -(-(i + 1) * size // self.side)) for i in range(self.side)]
            parts = [value.narrow(axis, start, stop - start).amax(axis) for start, stop in bounds]
            value = torch.stack(parts, axis)
        return value


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))"""

    def __init__(self, channels: int, spectral_norm: bool) -> None:
        super().__init__()
        self.opening: nn.Module = _convolution(channels, channels, 3, padding=1)
        # All six blocks together then add about as much variance as the input has.
        self.closing: nn.Module = _convolution(channels, channels, 3, padding=1, gain=6**-0.5)
        if spectral_norm:
            self.opening, self.closing = SpectralConvolution(self.opening), SpectralConvolution(self.closing)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.closing(self.opening(value.relu()).relu_())


class SpectralConvolution(nn.Module):
    """A convolution whose weight is divided by its spectral norm, estimated by power iteration (Miyato et al. 2018,
    arXiv:1802.05957). `iterate_` is called after each optimizer step: acting and evaluation change nothing.
    """

    left: Tensor
    right: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        matrix = layer.weight.detach().flatten(1)
        self.register_buffer("left", torch.ones(matrix.shape[0]) / matrix.shape[0] ** 0.5)
        self.register_buffer("right", torch.ones(matrix.shape[1]) / matrix.shape[1] ** 0.5)
        for _ in range(15):
            self.iterate_()

    @torch.no_grad()
    def iterate_(self) -> None:
        """One round of power iteration."""
        matrix = self.layer.weight.flatten(1)
        self.right.copy_(F.normalize(matrix.T @ self.left, dim=0))
        self.left.copy_(F.normalize(matrix @ self.right, dim=0))

    def forward(self, value: Tensor) -> Tensor:
        layer = self.layer
        norm = torch.dot(self.left, layer.weight.flatten(1) @ self.right)
        return F.conv2d(value, layer.weight / norm, layer.bias, layer.stride, layer.padding)


def spectral_layers(net: nn.Module) -> list[SpectralConvolution]:
    """The layers whose spectral norm is to be estimated again when the weights of `net` have changed."""
    return [layer for layer in net.modules() if isinstance(layer, SpectralConvolution)]


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, gain: float = GAIN
) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _relu_head(inputs: int, features: int) -> nn.Module:
    return nn.Sequential(orthogonal_(Linear(inputs, features)), nn.ReLU())


def _tanh_head(inputs: int, features: int) -> nn.Module:
    return nn.Sequential(orthogonal_(Linear(inputs, features), 1.0), nn.LayerNorm(features), nn.Tanh())


KINDS = {
    "nature": Kind(_nature, _relu_head, 512, 36),
    "impala": Kind(_impala, _relu_head, 256, LEAST_SIDE),
    "small": Kind(_small, _relu_head, 128, LEAST_SIDE),
    "drq": Kind(_drq, _tanh_head, 50, 15),
    "vit": Kind(_vit, _relu_head, 256, 16),
}
