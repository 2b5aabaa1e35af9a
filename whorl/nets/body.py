"""What stands before every head: encoder, optional memory, torso.

A body reads `Rows` for learning and one row for acting. Without memory it evaluates just the rows asked for; with
memory it unrolls all rows once from the stored state and slices. Algorithm files never need to know which.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from whorl import tree
from whorl.errors import ConfigError
from whorl.experience.batch import Rows
from whorl.nets.images import Images, has_images
from whorl.nets.layers import MLP, Residual, layered, width_of
from whorl.nets.memory import Recurrent
from whorl.nets.noisy import NoisyMLP
from whorl.ops.augment import Channels
from whorl.registry import Part, construct, register
from whorl.spec import MASK_KEY, SpecTree
from whorl.tree import Tree


@dataclass(frozen=True)
class BodySettings:
    """How to build one body."""

    hidden: tuple[int, ...]
    activation: str
    network: Part
    encoder: Part
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: int = 64
    noisy: bool = False


class Flat(nn.Module):
    """The plainest encoder: every leaf but an action mask, flattened and joined into one vector per row."""

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


def auto(
    observation: SpecTree,
    kind: str = "auto",
    features: int | Literal["flat"] = 0,
    channels: Channels = "auto",
    width: int = 1,
    spectral_norm: bool = False,
    pool: int = 0,
) -> nn.Module:
    """The encoder `images` where there is an image of at least 8 pixels a side, else `flat`."""
    if has_images(observation, 8, channels):
        return Images(observation, kind, features, channels, width, spectral_norm, pool)
    return Flat(observation)


register("encoder", "flat", Flat)
register("encoder", "images", Images)
register("encoder", "auto", auto)
register("network", "layers", layered)
register("network", "residual", Residual)


class Body(nn.Module):
    """Features [R, B, size] of rows of observations."""

    def __init__(self, name: str, observation: SpecTree, settings: BodySettings) -> None:
        super().__init__()
        self.name = name
        self.encoder = construct("encoder", settings.encoder, observation)
        width = int(self.encoder.size)
        self.memory: Recurrent | None = None
        if settings.memory != "none":
            self.memory = Recurrent(settings.memory, width, settings.memory_size)
            width = settings.memory_size
        self.torso, self.size = torso(settings, width)
        self.random = hasattr(self.torso, "draw")

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass, where the torso is noisy; an empty dict otherwise."""
        return self.torso.draw(generator) if self.random else {}  # type: ignore[operator]

    def forward(self, rows: Rows, noise: Tree | None = None) -> Tensor:
        if self.memory is None:
            return self.read(self.encoder(rows.selected), noise)
        encoded = self.encoder(rows.obs)
        summary = self.memory(encoded, rows.reset, rows.memory.get(self.name), rows.burn_in)
        return self.read(summary[rows.start : rows.stop], noise)

    def step(self, obs: Tree, memory: Tree, reset: Tensor, noise: Tree | None = None) -> tuple[Tensor, Tree]:
        """One row of every lane: features [B, size], and this body's share of the memory after it."""
        encoded = self.encoder(obs)
        if self.memory is None:
            return self.read(encoded, noise), {}
        summary, state = self.memory.step(encoded, reset, memory[self.name])
        return self.read(summary, noise), {self.name: state}

    def read(self, encoded: Tensor, noise: Tree | None = None) -> Tensor:
        """The torso alone, on what encoder and memory made of rows."""
        return self.torso(encoded, noise) if self.random else self.torso(encoded)

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """Only the memory after one row, for a net that is not read while acting."""
        if self.memory is None:
            return {}
        return {self.name: self.memory.step(self.encoder(obs), reset, memory[self.name])[1]}

    def initial_memory(self, lanes: int, device: torch.device) -> Tree:
        return {} if self.memory is None else {self.name: self.memory.initial(lanes, device)}


def torso(settings: BodySettings, inputs: int) -> tuple[nn.Module, int]:
    """The hidden layers that settings describe, and how many columns come out of them."""
    network, hidden = settings.network, settings.hidden
    if network.name == "mlp":
        if network.options:
            raise ConfigError(
                f"the network 'mlp' takes no options here, but {', '.join(network.options)} was given; widths and "
                "activation are settings of their own, and layers one by one are a list"
            )
        kind = NoisyMLP if settings.noisy else MLP
        return kind(inputs, hidden, settings.activation), hidden[-1] if hidden else inputs
    if settings.noisy:
        raise ConfigError(f"noisy layers come with the network 'mlp' only, not with {network.name!r}")
    net = construct("network", network, inputs)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"network {network.name!r} built a {type(net).__name__}, not a Module")
    return net, width_of(net, inputs)
