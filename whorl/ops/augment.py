"""Random shifts of images, and which observations are images.

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
    leading = images.shape[:-3]
    height, width = images.shape[-2:] if channels == "first" else images.shape[-3:-1]
    # In single precision, noise just below 1 can round up to the end of the range.
    offset = (noise * (2 * pad + 1)).long().clamp(max=2 * pad) - pad
    y = (torch.arange(height, device=images.device) + offset[..., :1]).clamp(0, height - 1)
    x = (torch.arange(width, device=images.device) + offset[..., 1:]).clamp(0, width - 1)
    pixel = (y.unsqueeze(-1) * width + x.unsqueeze(-2)).flatten(-2).expand(*leading, -1)  # [..., H * W]
    if channels == "first":
        flat = images.flatten(-2)  # [..., C, H * W]
        return flat.gather(-1, pixel.unsqueeze(-2).expand(flat.shape)).reshape(images.shape)
    # The channels of a pixel are adjacent in memory: copying whole pixels takes a third of the time of a gather.
    start = torch.arange(leading.numel(), device=images.device).reshape(*leading, 1) * (height * width)
    flat = images.reshape(-1, images.shape[-1])  # [... * H * W, C]
    return flat.index_select(0, (pixel + start).flatten()).reshape(images.shape)


def shift_images(
    obs: Tree, observation: SpecTree, pad: int, noise: Tensor, channels: Channels = "auto"
) -> Tree:
    """`random_shift` of the image leaves of an observation tree, the same for all images of a row."""

    def leaf(spec: Array, value: Tensor) -> Tensor:
        found = picture(spec, channels)
        if found is None:
            return value
        return random_shift(value, pad, noise, "first" if found.first else "last")

    return tree.map(leaf, observation, obs)
