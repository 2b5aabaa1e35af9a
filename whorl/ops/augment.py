"""Random changes of images by name (shift, crop, colour, intensity), and which observations are images.

Environments return images as [H, W, C], frame stacks are [C, H, W]. Encoders and augmentation both use `picture` to
tell them apart.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import channels_first
from whorl.core.spec import Array, SpecTree
from whorl.core.tree import Tree

Channels: TypeAlias = Literal["auto", "first", "last"]
LEAST_SIDE = 4
"""pixels; smaller arrays are treated as vectors"""


@dataclass(frozen=True)
class Picture:
    """An observation leaf that is an image."""

    height: int
    width: int
    channels: int
    first: bool
    """whether it is [C, H, W] instead of [H, W, C]"""


def picture(leaf: Array, channels: Channels = "auto") -> Picture | None:
    """The layout of `leaf` as an image, or None if it does not have three axes and sides of at least 4 pixels.

    With `auto`, the channel axis is inferred from the shape (`whorl.core.arrays`).
    """
    if channels not in ("auto", "first", "last"):
        raise ValueError(f"channels is {channels!r}; choose one of: auto, first, last")
    if len(leaf.shape) != 3:
        return None
    first = channels_first(leaf.shape) if channels == "auto" else channels == "first"
    count, height, width = leaf.shape if first else (leaf.shape[2], *leaf.shape[:2])
    return Picture(height, width, count, first) if min(height, width) >= LEAST_SIDE else None


def random_shift(
    images: Tensor, pad: int, noise: Tensor, channels: Literal["first", "last"] = "first"
) -> Tensor:
    """Pad images by repeating their border `pad` times, then crop each at random (Kostrikov et al. 2020, DrQ).

    out[y, x] = in[clamp(y + dy), clamp(x + dx)] with (dy, dx) = floor(noise * (2 * pad + 1)) - pad

    Args:
        images: [..., C, H, W], or [..., H, W, C] with channels last; any dtype.
        noise: [..., 2] uniform in [0, 1). Missing leading axes share a shift: [B, 2] shifts all rows of an environment
        in [T, B, C, H, W] equally.
    """
    if pad < 0 or noise.dim() == 0 or noise.shape[-1] != 2 or images.dim() < 3:
        raise ValueError(
            f"images {tuple(images.shape)}, pad {pad}, noise {tuple(noise.shape)}; need [..., C, H, W], "
            "0 or more pixels, and [..., 2]"
        )
    height, width = _sides(images, channels)
    # In single precision, noise just below 1 can round up to the end of the range.
    offset = (noise * (2 * pad + 1)).long().clamp(max=2 * pad) - pad
    y = (torch.arange(height, device=images.device) + offset[..., :1]).clamp(0, height - 1)
    x = (torch.arange(width, device=images.device) + offset[..., 1:]).clamp(0, width - 1)
    return _pixels(images, y, x, channels)


def random_crop(
    images: Tensor, share: float, noise: Tensor, channels: Literal["first", "last"] = "first"
) -> Tensor:
    """A random window of each image, enlarged to the image's own size by repeating pixels.

    out[y, x] = in[y0 + floor(y * side / H), x0 + floor(x * side' / W)], with sides of at least (1 - share) of the image

    Args:
        share: largest fraction of each side that is removed, in [0, 1).
        noise: [..., 3] uniform in [0, 1): size of the window, then its place.
    """
    if not 0 <= share < 1 or noise.dim() == 0 or noise.shape[-1] != 3 or images.dim() < 3:
        raise ValueError(
            f"images {tuple(images.shape)}, share {share}, noise {tuple(noise.shape)}; need [..., C, H, W], "
            "a share from 0 to below 1, and [..., 3]"
        )
    kept = 1 - share * noise[..., :1]  # [..., 1]

    def window(side: int, place: Tensor) -> Tensor:
        size = (kept * side).floor().clamp(min=1)
        first = (place * (side - size + 1)).floor().minimum(side - size)
        steps = torch.arange(side, device=images.device)
        return (first + (steps * size / side).floor()).long().clamp(max=side - 1)  # [..., side]

    height, width = _sides(images, channels)
    return _pixels(images, window(height, noise[..., 1:2]), window(width, noise[..., 2:3]), channels)


def random_colour(
    images: Tensor, share: float, noise: Tensor, frames: int = 1, channels: Literal["first", "last"] = "first"
) -> Tensor:
    """Each colour times 1 + share * (2 * noise - 1); images that are not RGB have one factor for all channels.

    Args:
        noise: [..., 3] uniform in [0, 1), for red, green and blue.
        frames: frames in the stack, which share the factors of their colours.
    """
    count = images.shape[-3 if channels == "first" else -1]
    factor = 1 + share * (2 * noise - 1)
    each = factor[..., :3] if count == 3 * frames else factor[..., :1]
    each = each.repeat(*[1] * (each.dim() - 1), count // each.shape[-1])  # [..., C]
    return images * (each.unsqueeze(-1).unsqueeze(-1) if channels == "first" else each[..., None, None, :])


def random_intensity(images: Tensor, share: float, noise: Tensor) -> Tensor:
    """The whole image times 1 + share * (2 * noise - 1), with noise [..., 1] uniform in [0, 1)."""
    return images * (1 + share * (2 * noise - 1)).unsqueeze(-1).unsqueeze(-1)


def _sides(images: Tensor, channels: Literal["first", "last"]) -> tuple[int, int]:
    height, width = images.shape[-2:] if channels == "first" else images.shape[-3:-1]
    return height, width


def _pixels(images: Tensor, y: Tensor, x: Tensor, channels: Literal["first", "last"]) -> Tensor:
    """out[i, j] = in[y[i], x[j]] with rows y [..., H] and columns x [..., W] of each image."""
    leading = images.shape[:-3]
    height, width = _sides(images, channels)
    pixel = (y.unsqueeze(-1) * width + x.unsqueeze(-2)).flatten(-2).expand(*leading, -1)  # [..., H * W]
    if channels == "first":
        flat = images.flatten(-2)  # [..., C, H * W]
        return flat.gather(-1, pixel.unsqueeze(-2).expand(flat.shape)).reshape(images.shape)
    # The channels of a pixel are adjacent in memory: copying whole pixels takes a third of the time of a gather.
    start = torch.arange(leading.numel(), device=images.device).reshape(*leading, 1) * (height * width)
    flat = images.reshape(-1, images.shape[-1])  # [... * H * W, C]
    return flat.index_select(0, (pixel + start).flatten()).reshape(images.shape)


NOISE = 9
"""uniform numbers that `Augmentation` reads per row: 2 for the shift, 3 for the crop, 3 for colours, 1 for intensity"""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images; a strength of 0 leaves one out."""

    shift: int = 0
    """largest shift, in pixels"""
    crop: float = 0.0
    """largest fraction of each side that is removed"""
    colour: float = 0.0
    """largest relative change of each colour"""
    intensity: float = 0.0
    """largest relative change of all pixels"""

    def __call__(self, obs: Tree, observation: SpecTree, noise: Tensor, channels: Channels = "auto") -> Tree:
        """The image leaves of an observation tree changed by `noise` [..., 9], the same way for all images of a row.

        Colours and intensities need floats: images in bytes keep theirs in [0, 1] once an agent has scaled them.
        """

        def leaf(spec: Array, value: Tensor) -> Tensor:
            found = picture(spec, channels)
            return (
                value
                if found is None
                else self._image(spec, value, noise, "first" if found.first else "last")
            )

        return tree.map(leaf, observation, obs)

    def _image(self, spec: Array, value: Tensor, noise: Tensor, at: Literal["first", "last"]) -> Tensor:
        if self.shift:
            value = random_shift(value, self.shift, noise[..., :2], at)
        if self.crop:
            value = random_crop(value, self.crop, noise[..., 2:5], at)
        if self.colour:
            value = random_colour(value, self.colour, noise[..., 5:8], spec.stack, at)
        if self.intensity:
            value = random_intensity(value, self.intensity, noise[..., 8:9])
        changed = self.colour or self.intensity
        return value.clamp(0, 1) if changed and spec.dtype == "uint8" else value
