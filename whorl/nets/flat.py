"""Encoders of vectors: as they are, or with small deviations magnified."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, SpecTree
from whorl.core.tree import Tree


class Flat(nn.Module):
    """All leaves except an action mask, flattened and concatenated into one vector per row."""

    def __init__(self, observation: SpecTree) -> None:
        super().__init__()
        self.sizes = {
            path: leaf.size for path, leaf in tree.items(observation) if path.rpartition(".")[2] != MASK_KEY
        }
        self.ranks = {path: len(leaf.shape) for path, leaf in tree.items(observation)}
        self.size = sum(self.sizes.values())
        self.vector = list(self.sizes) == [""] and self.ranks[""] == 1

    def forward(self, obs: Tree) -> Tensor:
        if self.vector:
            return obs
        parts = [
            value.float().reshape(*value.shape[: value.dim() - self.ranks[path]], -1)
            for path, value in tree.items(obs)
            if path in self.sizes
        ]
        return torch.cat(parts, -1)


class Magnified(nn.Module):
    """asinh(s x) / asinh(s) for each scale s, of the vector x of `Flat`.

    This keeps -1, 0 and 1. Its slope at 0 is s / asinh(s): 1.1 for 1, 3.3 for 10, 19 for 100; large values are
    compressed. So a small network can react to deviations of 0.01 as strongly as balancing needs.

    Args:
        scales: one copy of the vector for each of them.
        differences: pairs (i, j) of entries whose differences x_i - x_j are appended to x: those of large entries, such
            as velocities of parts that move together, are magnified too.
    """

    scales: Tensor
    pairs: Tensor

    def __init__(
        self,
        observation: SpecTree,
        scales: Sequence[float] = (1.0, 10.0, 100.0),
        differences: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        if not scales or not all(scale > 0 for scale in scales):
            raise ConfigError(f"scales is {list(scales)}; give at least one number, each above 0")
        self.flat = Flat(observation)
        entries = range(self.flat.size)
        if not all(
            isinstance(pair, Sequence) and len(pair) == 2 and set(pair) <= set(entries)
            for pair in differences
        ):
            raise ConfigError(
                f"differences is {list(differences)}; give pairs of entries from 0 to {self.flat.size - 1}"
            )
        self.size = (self.flat.size + len(differences)) * len(scales)
        pairs = torch.tensor(differences, dtype=torch.long).view(-1, 2).T  # [2, differences]
        self.register_buffer("pairs", pairs.contiguous(), persistent=False)
        self.register_buffer("scales", torch.tensor(scales, dtype=torch.float32)[:, None], persistent=False)

    def forward(self, obs: Tree) -> Tensor:
        vector = self.flat(obs)
        if self.pairs.numel():
            first, second = (vector.index_select(-1, entries) for entries in self.pairs)
            vector = torch.cat([vector, first - second], -1)
        value = vector.unsqueeze(-2) * self.scales  # [..., S, n]
        return (torch.asinh(value) / torch.asinh(self.scales)).flatten(-2)
