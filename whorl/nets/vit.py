"""A small vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929): patches attend to each other.

Patches of 8 by 8 pixels are projected to 128 numbers and a fixed sinusoidal code of row and column is added; two layers
x <- x + attention(norm(x)), x <- x + mlp(norm(x)) follow, and the mean over all patches of the normalised result.
Differs from the paper: no class token, sinusoidal instead of learned positions, so that any image size fits.
"""

import math

import torch
from torch import Tensor, nn

from whorl.nets.attention import sinusoids
from whorl.nets.layers import orthogonal_

PATCH, WIDTH, LAYERS, HEADS = 8, 128, 2, 4


class VisionTransformer(nn.Module):
    """Images [N, C, H, W] -> [N, 128, 1, 1]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, WIDTH, PATCH, PATCH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, image: Tensor) -> Tensor:
        found = self.patches(image)  # [N, 128, h, w]
        height, width = found.shape[-2:]
        row, column = (torch.arange(n, device=image.device) for n in (height, width))
        rows, columns = (sinusoids(place, WIDTH // 2, found) for place in (row, column))
        code = torch.cat(
            (rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)), -1
        )  # [h, w, 128]
        x = found.flatten(2).mT + code.flatten(0, 1)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(1)[..., None, None]


class Layer(nn.Module):
    """Self-attention and a perceptron, each added to its input [N, patches, 128]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_wide = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # No bias: that of keys would have no influence.
        self.read = orthogonal_(nn.Linear(WIDTH, 3 * WIDTH, bias=False), 1.0)
        self.join = orthogonal_(nn.Linear(WIDTH, WIDTH), 0.5)
        self.wide = nn.Sequential(
            orthogonal_(nn.Linear(WIDTH, 2 * WIDTH)), nn.GELU(), orthogonal_(nn.Linear(2 * WIDTH, WIDTH), 0.5)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.read(self.norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        # Not torch's fused attention, which adds up gradients in varying order on a GPU.
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        found = (weights @ value).transpose(1, 2).flatten(2)
        x = x + self.join(found)
        return x + self.wide(self.norm_wide(x))
