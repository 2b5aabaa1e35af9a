"""What stands before every head: encoder, optional memory, torso.

A body reads `Rows` for learning and one row for acting. Without memory it evaluates just the rows asked for; with
memory it unrolls all rows once from the stored state and selects. Algorithm files never need to know which.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, register
from whorl.core.spec import MASK_KEY, SpecTree
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch, Rows
from whorl.nets.images import Images, has_images
from whorl.nets.layers import MLP, Residual, layered, width_of
from whorl.nets.memory import LastStep, MemorySettings, build_memory, unroll_all
from whorl.nets.noisy import NoisyMLP
from whorl.ops.augment import Channels


@dataclass(frozen=True)
class BackboneSettings:
    """How to build one body."""

    hidden: tuple[int, ...]
    activation: str
    network: Part
    encoder: Part
    memory: MemorySettings = MemorySettings()
    noisy: bool = False
    reward_clip: float = 0.0
    """where the rewards that a memory reads are clipped; 0: nowhere"""


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


class Backbone(nn.Module):
    """Features [R, B, size] of rows of observations.

    Args:
        action: what the environment takes, where a memory reads the action before.
        members: with more than one, so many memories stand side by side: features [members, R, B, size].
    """

    def __init__(
        self,
        name: str,
        observation: SpecTree,
        settings: BackboneSettings,
        action: SpecTree | None = None,
        members: int = 1,
    ) -> None:
        super().__init__()
        self.name = name
        self.encoder = construct("encoder", settings.encoder, observation)
        width, memory = int(self.encoder.size), settings.memory
        self.last: LastStep | None = None
        self.memories = nn.ModuleList()
        if memory.kind != "none":
            if memory.inputs:
                self.last = LastStep(action, memory.inputs, settings.reward_clip)
                width += self.last.size
            self.memories.extend(build_memory(memory, width) for _ in range(members))
            width = memory.size
        self.torso, self.size = torso(settings, width)
        self.random = hasattr(self.torso, "draw")

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass, where the torso is noisy; an empty dict otherwise."""
        return self.torso.draw(generator) if self.random else {}  # type: ignore[operator]

    def forward(self, rows: Rows, noise: Tree | None = None, members: int = 0) -> Tensor:
        """With `members`, of so many memories alone."""
        return self.features(lambda: self.encode(rows), rows, noise, members)

    def encode(self, rows: Rows) -> Tensor:
        """What the encoder makes of all rows, where there is memory, else of those asked for."""
        return self.encoder(rows.obs if self.memories else rows.selected)

    def features(
        self, encode: Callable[[], Tensor], rows: Rows, noise: Tree | None = None, members: int = 0
    ) -> Tensor:
        """What memory and torso make of rows, which are encoded only where memory has not read them yet."""
        if not self.memories:
            return self.read(encode(), noise)
        known = rows.summaries.get(id(self))  # not by name, which a target has too
        parts = self.summarise(encode(), rows, members) if known is None else known[: members or None]
        found = [rows.select(part) for part in parts]
        return self.read(found[0] if len(self.memories) == 1 else torch.stack(found), noise)

    def summarise(self, encoded: Tensor, rows: Rows, members: int = 0) -> list[Tensor]:
        """What each memory makes of all rows [R, B, ...]: [R, B, size]."""
        if self.last is not None:
            encoded = torch.cat((encoded, self.last(rows.last, rows.reset)), -1)
        states = self._states(rows.memory.get(self.name))
        memories: list[Any] = list(self.memories)[: members or None]
        return unroll_all(memories, encoded, rows.reset, states, rows.burn_in)

    def unrolled(self, batch: Batch, encode: Callable[[Rows], Tensor] | None = None) -> Batch:
        """The batch with what each memory makes of its rows, so that all who ask share one pass.

        `encode` stands in for this body's own, where rows are read through another one.
        """
        if not self.memories:
            return batch
        summaries = self.summarise((encode or self.encode)(batch.all), batch.all)
        return batch.replace(summaries={**batch.summaries, id(self): summaries})

    def states(self, batch: Batch, stride: int, encode: Callable[[Rows], Tensor] | None = None) -> Tree:
        """What the memory holds before every `stride`-th row but the first, by its name: [K, B, ...]."""
        rows = batch.all
        if not self.memories or self.name not in rows.memory:
            return {}
        encoded = (encode or self.encode)(rows)
        memory, found = {self.name: rows.memory[self.name]}, []
        for row in range((len(encoded) - 1) // stride * stride):
            last = {} if self.last is None else {LAST: tree.index(rows.last, row)}
            memory = self.follow(encoded[row], {**memory, **last}, rows.reset[row])[1]
            if (row + 1) % stride == 0:
                found.append({self.name: memory[self.name]})
        return tree.stack(found) if found else {}

    def step(self, obs: Tree, memory: Tree, reset: Tensor, noise: Tree | None = None) -> tuple[Tensor, Tree]:
        """One row of every environment: features [B, size], and this body's share of the memory after it."""
        encoded = self.encoder(obs)
        if not self.memories:
            return self.read(encoded, noise), {}
        summary, after = self.follow(encoded, memory, reset)
        return self.read(summary[0], noise), after

    def read(self, encoded: Tensor, noise: Tree | None = None) -> Tensor:
        """The torso alone, on what encoder and memory made of rows."""
        return self.torso(encoded, noise) if self.random else self.torso(encoded)

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """Only the memory after one row, for a net that is not read while acting."""
        return self.follow(self.encoder(obs), memory, reset)[1] if self.memories else {}

    def follow(self, encoded: Tensor, memory: Tree, reset: Tensor) -> tuple[list[Tensor], Tree]:
        """One encoded row of every environment: what each memory says [B, size], and the memory after it."""
        if self.last is not None:
            encoded = torch.cat((encoded, self.last(memory[LAST], reset)), -1)
        states = self._states(memory[self.name])
        memories: list[Any] = list(self.memories)
        found = [one.step(encoded, reset, state) for one, state in zip(memories, states)]
        after = {self.name: self._joined([state for _, state in found])}
        return [summary for summary, _ in found], {**after, **_only(memory, LAST)}

    def initial_memory(self, num_envs: int, device: torch.device) -> Tree:
        if not self.memories:
            return {}
        memories: list[Any] = list(self.memories)
        states = [memory.initial(num_envs, device) for memory in memories]
        last = {} if self.last is None else {LAST: self.last.initial(num_envs, device)}
        return {self.name: self._joined(states), **last}

    def _joined(self, states: list[Tree]) -> Tree:
        """The states of all memories as one tree."""
        return states[0] if len(states) == 1 else {str(number): state for number, state in enumerate(states)}

    def _states(self, memory: Tree | None) -> list[Tree | None]:
        if memory is None or len(self.memories) == 1:
            return [memory] * len(self.memories)
        return [memory[str(number)] for number in range(len(self.memories))]


def _only(memory: Tree, key: str) -> Tree:
    return {key: memory[key]} if key in memory else {}


def torso(settings: BackboneSettings, inputs: int) -> tuple[nn.Module, int]:
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
