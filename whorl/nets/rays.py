"""The encoder of observations with ray sensors: 1-D convolutions over neighbouring rays.

Each leaf [rays, channels] (distance, and for example what was hit, one-hot) goes through two convolutions over the
rays, 32 and 64 channels wide, kernels of 5 and 3 with a stride of 2, and a linear layer; all others are flattened.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, SpecTree
from whorl.core.tree import Tree
from whorl.nets.layers import orthogonal_

GAIN = 2**0.5


class Rays(nn.Module):
    """Encodes each leaf of rays by convolutions, flattens all others, and concatenates them per row.

    Args:
        rays: a vector whose length is a multiple of this is read as that many rays, one after the other; 0: only leaves
            with two axes are rays.
        features: outputs per leaf of rays.
        circular: whether the last ray is a neighbour of the first.
    """

    def __init__(
        self, observation: SpecTree, rays: int = 0, features: int = 64, circular: bool = False
    ) -> None:
        super().__init__()
        if rays < 0 or features < 1:
            raise ConfigError(f"rays is {rays} and features {features}; give at least 0 and at least 1")
        self.nets = nn.ModuleList()
        self.shapes: dict[str, tuple[int, int]] = {}
        """rays and channels of each leaf of rays, by path"""
        self.ranks: dict[str, int] = {}
        self.size = 0
        for path, leaf in tree.items(observation):
            if path.rpartition(".")[2] == MASK_KEY:
                continue
            self.ranks[path] = len(leaf.shape)
            found = _rays(leaf, rays)
            if found is not None:
                self.shapes[path] = found
                self.nets.append(_network(*found, features, circular))
            self.size += leaf.size if found is None else features
        if not self.shapes:
            shapes = ", ".join(str(leaf.shape) for leaf in tree.leaves(observation))
            raise ConfigError(
                "the encoder rays needs an observation [rays, channels] of at least 5 rays, or a vector and the "
                f"option rays; the environment has {shapes}"
            )

    def forward(self, obs: Tree) -> Tensor:
        nets: Any = dict(zip(self.shapes, self.nets))
        parts = []
        for path, value in tree.items(obs):
            if path not in self.ranks:
                continue
            leading = value.shape[: value.dim() - self.ranks[path]]
            if path in self.shapes:
                rows = value.float().reshape(-1, *self.shapes[path]).mT  # [N, channels, rays]
                parts.append(nets[path](rows).reshape(*leading, -1))
            else:
                parts.append(value.float().reshape(*leading, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _rays(leaf: Array, rays: int) -> tuple[int, int] | None:
    """Number of rays and channels of a leaf, or None."""
    if len(leaf.shape) == 2 and leaf.shape[0] >= 5:
        return leaf.shape[0], leaf.shape[1]
    if len(leaf.shape) == 1 and rays >= 5 and leaf.size % rays == 0:
        return rays, leaf.size // rays
    return None


def _network(rays: int, channels: int, features: int, circular: bool) -> nn.Module:
    mode: Literal["circular", "zeros"] = "circular" if circular else "zeros"
    layers: list[nn.Module] = []
    for inputs, outputs, kernel in ((channels, 32, 5), (32, 64, 3)):
        layer = nn.Conv1d(inputs, outputs, kernel, stride=2, padding=kernel // 2, padding_mode=mode)
        nn.init.orthogonal_(layer.weight, GAIN)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
        rays = (rays + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), orthogonal_(nn.Linear(64 * rays, features)), nn.ReLU())
