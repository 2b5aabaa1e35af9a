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
from whorl.nets.layers import MLP, layered, width_of
from whorl.nets.memory import Recurrent
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


class Flat(nn.Module):
    """The default encoder: every leaf but an action mask, flattened and joined into one vector per row."""

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


register("encoder", "flat", Flat)
register("network", "layers", layered)


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
        if settings.network.name == "mlp":
            self.torso: nn.Module = MLP(width, settings.hidden, settings.activation.lower())
            self.size = settings.hidden[-1] if settings.hidden else width
        else:
            self.torso = construct("network", settings.network, width)
            if not isinstance(self.torso, nn.Module):
                raise ConfigError(
                    f"network {settings.network.name!r} built a {type(self.torso).__name__}, not a Module"
                )
            self.size = width_of(self.torso, width)

    def forward(self, rows: Rows) -> Tensor:
        if self.memory is None:
            return self.torso(self.encoder(rows.selected))
        encoded = self.encoder(rows.obs)
        summary = self.memory(encoded, rows.reset, rows.memory.get(self.name), rows.burn_in)
        return self.torso(summary[rows.start : rows.stop])

    def step(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Tensor, Tree]:
        """One row of every lane: features [B, size], and this body's share of the memory after it."""
        encoded = self.encoder(obs)
        if self.memory is None:
            return self.torso(encoded), {}
        summary, state = self.memory.step(encoded, reset, memory[self.name])
        return self.torso(summary), {self.name: state}

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """Only the memory after one row, for a net that is not read while acting."""
        if self.memory is None:
            return {}
        return {self.name: self.memory.step(self.encoder(obs), reset, memory[self.name])[1]}

    def initial_memory(self, lanes: int, device: torch.device) -> Tree:
        return {} if self.memory is None else {self.name: self.memory.initial(lanes, device)}
