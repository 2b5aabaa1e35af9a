"""Networks of intrinsic rewards: an embedding, random network distillation, inverse dynamics, cells of observations."""

from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.arrays import MASK_KEY, Array, channels_first
from whorl.core.registry import Part, construct
from whorl.core.spec import Continuous, Discrete, SpecTree, flat_action_size
from whorl.core.tree import Tree
from whorl.nets.layers import MLP
from whorl.nets.normalize import Observations

UNBOUNDED = 1e6
"""bounds of observations that are further apart say nothing about their values"""


class Embedding(nn.Module):
    """Observations [..., ...] -> features [..., outputs]."""

    def __init__(self, observation: SpecTree, encoder: Part, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.encoder = construct("encoder", encoder, observation)
        width = int(self.encoder.size)
        self.hidden = MLP(width, hidden, "relu")
        self.last = nn.Linear(hidden[-1] if hidden else width, outputs)

    def forward(self, obs: Tree) -> Tensor:
        return self.last(self.hidden(self.encoder(obs)))


class Distillation(nn.Module):
    """Random network distillation (Burda et al. 2018): the error of a network that learns to imitate a random one.

    Observations are normalised by running statistics, images too, and clipped; of a frame stack only the newest counts.
    """

    def __init__(
        self, observation: SpecTree, encoder: Part, hidden: tuple[int, ...], features: int, clip: float
    ) -> None:
        super().__init__()
        self.stacked = observation
        # All leaves as float vectors, so that images and one-hots are normalised by running statistics too.
        observation = tree.map(lambda leaf: replace(leaf.frame, dtype="float32", binary=False), observation)
        self.observations = Observations(observation, True, clip)
        self.target = Embedding(observation, encoder, hidden, features).requires_grad_(False)
        self.predictor = Embedding(observation, encoder, (*hidden, *hidden[-1:]), features)

    def merge_(self, obs: Tree, mask: Tensor) -> None:
        """Add observations [T, B, ...] to the statistics, except where `mask` [T, B] is 0."""
        self.observations.merge_(self._newest(obs), mask)

    def forward(self, obs: Tree) -> Tensor:
        """Differences [..., features] between prediction and target."""
        seen = self.observations(self._newest(obs))
        return self.predictor(seen) - self.target(seen)

    def _newest(self, obs: Tree) -> Tree:
        return tree.map(lambda leaf, value: newest_frame(leaf, value).float(), self.stacked, obs)


class InverseDynamics(nn.Module):
    """Embeds observations so that the action between two of them can be told (Pathak et al. 2017).

    What the agent can't control does not help to predict the action and need not be in the embedding.
    """

    def __init__(
        self,
        observation: SpecTree,
        action: SpecTree,
        encoder: Part,
        hidden: tuple[int, ...],
        features: int,
        clip: float,
    ) -> None:
        super().__init__()
        self.action = action
        self.observations = Observations(observation, True, clip)
        self.embedding = Embedding(observation, encoder, hidden, features)
        self.hidden = MLP(2 * features, hidden[-1:] or (features,), "relu")
        self.last = nn.Linear(hidden[-1] if hidden else features, flat_action_size(action))

    def merge_(self, obs: Tree, mask: Tensor) -> None:
        """Add observations [T, B, ...] to the statistics, except where `mask` [T, B] is 0."""
        self.observations.merge_(obs, mask)

    def forward(self, obs: Tree) -> Tensor:
        """Embedded observations [..., features]."""
        return self.embedding(self.observations(obs))

    def loss(self, before: Tensor, after: Tensor, action: Tree) -> Tensor:
        """Loss [...] of the action between embedded observations: cross-entropy, or squared error if continuous."""
        outputs = self.last(self.hidden(torch.cat((before, after), -1)))
        total, used = outputs.new_zeros(outputs.shape[:-1]), 0
        for leaf, taken in zip(tree.leaves(self.action), tree.leaves(action)):
            if isinstance(leaf, Continuous):
                part = outputs[..., used : used + leaf.size]
                total, used = total + 0.5 * (part - taken).square().sum(-1), used + leaf.size
                continue
            sizes = (leaf.n,) if isinstance(leaf, Discrete) else leaf.nvec
            for size, choice in zip(sizes, [taken] if isinstance(leaf, Discrete) else taken.unbind(-1)):
                part = F.log_softmax(outputs[..., used : used + size], -1)
                total, used = total - part.gather(-1, choice.unsqueeze(-1)).squeeze(-1), used + size
        return total


def newest_frame(leaf: Array, value: Tensor) -> Tensor:
    """The newest frame of observations [..., *leaf.shape]; all of them where frames are not stacked."""
    if leaf.stack == 1:
        return value
    width = leaf.shape[leaf.axis] // leaf.stack
    lead = value.dim() - len(leaf.shape)
    return value.narrow(lead + leaf.axis, leaf.shape[leaf.axis] - width, width)


class Cells(nn.Module):
    """Numbers observations by the cell that they fall into, 0 to `count` - 1.

    Vectors are cut into `bins` per dimension (of its bounds if it has them, else per two units), large images are
    reduced to 8 x 11 blocks of 8 levels (Ecoffet et al. 2021), small ones are taken as they are; of a frame stack the
    newest frame counts. Cells are hashed: two of them may share a number.
    """

    def __init__(self, observation: SpecTree, bins: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.leaves: dict[str, Array] = {
            path: leaf for path, leaf in tree.items(observation) if path.rpartition(".")[2] != MASK_KEY
        }
        # The same in every process, and independent of the run's seed.
        generator = torch.Generator().manual_seed(0)
        for number, leaf in enumerate(self.leaves.values()):
            factors = torch.randint(1, 2**62, (self._size(leaf),), generator=generator) * 2 + 1
            self.register_buffer(f"factors{number}", factors, persistent=False)
            low, high = (torch.tensor(side) for side in (leaf.lows or leaf.low, leaf.highs or leaf.high))
            bounded = high - low < UNBOUNDED
            span = torch.where(bounded, high - low, 2.0).clamp(min=1e-12)
            self.register_buffer(f"low{number}", torch.where(bounded, low, 0.0), persistent=False)
            self.register_buffer(f"per_unit{number}", bins / span, persistent=False)

    @torch.no_grad()
    def forward(self, obs: Tree) -> Tensor:
        """Cell numbers [...] of observations [..., ...]."""
        total: Any = 0
        values = dict(tree.items(obs))
        for number, (path, leaf) in enumerate(self.leaves.items()):
            parts = self._reduced(leaf, values[path])  # [..., size]
            if parts.is_floating_point():
                low, per_unit = getattr(self, f"low{number}"), getattr(self, f"per_unit{number}")
                parts = ((parts - low) * per_unit).floor().long()
            total = total + (parts * getattr(self, f"factors{number}")).sum(-1)
        # The upper bits of the product depend on all lower ones.
        mixed = (total ^ (total >> 29)) * 0x5851F42D4C957F2D
        return ((mixed >> 31) & 0x7FFFFFFF) % self.count

    def _size(self, leaf: Array) -> int:
        return prod(self._reduced(leaf, torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype))).shape)

    def _reduced(self, leaf: Array, value: Tensor) -> Tensor:
        lead = value.dim() - len(leaf.shape)
        value = newest_frame(leaf, value)
        shape = value.shape[lead:]
        if leaf.dtype == "uint8" and len(shape) >= 2 and max(shape) >= 32:
            image = value.flatten(0, lead - 1) if lead else value.unsqueeze(0)
            if image.dim() == 3:
                image = image.unsqueeze(1)
            elif not channels_first(tuple(shape)):
                image = image.permute(0, 3, 1, 2)
            grey = image.float().mean(1, keepdim=True)
            blocks = F.adaptive_avg_pool2d(grey, (11, 8)).flatten(1)
            return (blocks / 32).floor().long().reshape(*value.shape[:lead], -1)
        flat = value.reshape(*value.shape[:lead], -1)
        return flat if value.is_floating_point() else flat.long()
