"""The part of a network before its head: encoder, optional memory, hidden layers.

A backbone reads `Rows` for learning and one row per environment for acting. Without memory it evaluates only the
selected rows; with memory it unrolls all rows once from the stored state and then selects. Algorithm files need not
distinguish.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, register
from whorl.core.spec import SpecTree
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Batch, Rows
from whorl.nets.flat import Flat, Magnified
from whorl.nets.images import Images, has_images
from whorl.nets.layers import MLP, Residual, layered, width_of
from whorl.nets.memory import LastStep, MemorySettings, build_memory, unroll_all
from whorl.nets.noisy import NoisyMLP
from whorl.nets.rays import Rays
from whorl.ops.augment import Channels


@dataclass(frozen=True)
class BackboneSettings:
    """How to build one backbone."""

    hidden: tuple[int, ...]
    activation: str
    network: Part
    encoder: Part
    memory: MemorySettings = MemorySettings()
    noisy: bool = False
    reward_clip: float = 0.0
    """bound of the rewards that a memory reads; 0: not clipped"""


def auto(
    observation: SpecTree,
    kind: str = "auto",
    features: int | Literal["flat"] = 0,
    channels: Channels = "auto",
    width: int = 1,
    spectral_norm: bool = False,
    pool: int = 0,
    layers: int = 1,
) -> nn.Module:
    """The encoder `images` if there is an image with sides of at least 8 pixels, else `flat`."""
    if has_images(observation, 8, channels):
        return Images(observation, kind, features, channels, width, spectral_norm, pool, layers)
    return Flat(observation)


register("encoder", "flat", Flat)
register("encoder", "magnified", Magnified)
register("encoder", "images", Images)
register("encoder", "rays", Rays)
register("encoder", "auto", auto)
register("network", "layers", layered)
register("network", "residual", Residual)


class Backbone(nn.Module):
    """Features [R, B, size] of rows of observations.

    Args:
        action: the action space, needed if the memory reads the previous action.
        members: number of memories; with more than one, features are [members, R, B, size].
        beside: observations that only the hidden layers read, beside the output of encoder and memory: what a critic
            knows and a policy does not (`privileged_obs`). Memory and `step` need none of them.
    """

    def __init__(
        self,
        name: str,
        observation: SpecTree,
        settings: BackboneSettings,
        action: SpecTree | None = None,
        members: int = 1,
        beside: SpecTree | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.encoder = construct("encoder", settings.encoder, observation)
        width, memory = int(self.encoder.size), settings.memory
        self.last: LastStep | None = None
        self.memories = nn.ModuleList()
        if memory.kind != "none":
            if memory.inputs:
                self.last = LastStep(action, memory, settings.reward_clip)
                width += self.last.size
            self.memories.extend(build_memory(memory, width) for _ in range(members))
            width = memory.size
        self.summary_size = width
        self.beside = construct("encoder", settings.encoder, beside) if beside else None
        if self.beside is not None:
            width += int(self.beside.size)
        self.torso, self.size = torso(settings, width)
        self.random = hasattr(self.torso, "draw")

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass if the hidden layers are noisy; otherwise an empty dict."""
        return self.torso.draw(generator) if self.random else {}  # type: ignore[operator]

    def forward(self, rows: Rows, noise: Tree | None = None, members: int = 0) -> Tensor:
        """Features of the selected rows; with `members`, of the first `members` memories only."""
        return self.features(lambda: self.encode(rows), rows, noise, members)

    def encode(self, rows: Rows) -> Tensor:
        """Encoded observations: of all rows if there is memory, else of the selected rows."""
        return self.encoder(rows.obs if self.memories else rows.selected)

    def features(
        self, encode: Callable[[], Tensor], rows: Rows, noise: Tree | None = None, members: int = 0
    ) -> Tensor:
        """Features of rows; `encode` is called only if the memory has not been unrolled over them yet."""
        found = self.summary(encode, rows, members)
        if self.beside is not None:
            known = self.beside(rows.selected)
            found = torch.cat((found, known.expand(*found.shape[:-1], -1)), -1)
        return self.read(found, noise)

    def summary(self, encode: Callable[[], Tensor], rows: Rows, members: int = 0) -> Tensor:
        """The outputs of encoder and memory alone."""
        if not self.memories:
            return encode()
        known = rows.summaries.get(id(self))  # not by name, which target networks share
        parts = self.summarise(encode(), rows, members) if known is None else known[: members or None]
        found = [rows.select(part) for part in parts]
        return found[0] if len(self.memories) == 1 else torch.stack(found)

    def summarise(self, encoded: Tensor, rows: Rows, members: int = 0) -> list[Tensor]:
        """Outputs [R, B, size] of each memory for all rows [R, B, ...]."""
        if self.last is not None:
            encoded = torch.cat((encoded, self.last(rows.last, rows.reset)), -1)
        states = self._states(rows.memory.get(self.name))
        memories: list[Any] = list(self.memories)[: members or None]
        return unroll_all(memories, encoded, rows.reset, states, rows.burn_in)

    def unrolled(self, batch: Batch, encode: Callable[[Rows], Tensor] | None = None) -> Batch:
        """The batch with the outputs of each memory, so that all passes of an update share one unroll.

        `encode` replaces this backbone's own encoder.
        """
        if not self.memories:
            return batch
        summaries = self.summarise((encode or self.encode)(batch.all), batch.all)
        return batch.replace(summaries={**batch.summaries, id(self): summaries})

    def states(self, batch: Batch, stride: int, encode: Callable[[Rows], Tensor] | None = None) -> Tree:
        """The memory before every `stride`-th row except the first, keyed by name: [K, B, ...]."""
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
        """One row of every environment: features [B, size], and this backbone's memory after it."""
        encoded = self.encoder(obs)
        if not self.memories:
            return self.read(encoded, noise), {}
        summary, after = self.follow(encoded, memory, reset)
        return self.read(summary[0], noise), after

    def read(self, encoded: Tensor, noise: Tree | None = None) -> Tensor:
        """The hidden layers alone, on outputs of encoder and memory."""
        return self.torso(encoded, noise) if self.random else self.torso(encoded)

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """Only the memory after one row, for a network that is not evaluated while acting."""
        return self.follow(self.encoder(obs), memory, reset)[1] if self.memories else {}

    def follow(self, encoded: Tensor, memory: Tree, reset: Tensor) -> tuple[list[Tensor], Tree]:
        """One encoded row of every environment: the output of each memory [B, size], and the memory after it."""
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


class BackboneNet(nn.Module):
    """A network with one backbone, whose memory it offers to the agent."""

    backbone: Backbone

    def initial_memory(self, num_envs: int, device: torch.device) -> Tree:
        """Memory that is kept while acting."""
        return self.backbone.initial_memory(num_envs, device)

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """That memory after one row of every environment."""
        return self.backbone.advance(obs, memory, reset)

    def prepare(self, batch: Batch) -> Batch:
        """Called once at the start of an update; see `Backbone.unrolled`."""
        return self.backbone.unrolled(batch)

    def states(self, batch: Batch, stride: int) -> Tree:
        """See `Backbone.states`."""
        return self.backbone.states(batch, stride)


def _only(memory: Tree, key: str) -> Tree:
    return {key: memory[key]} if key in memory else {}


def torso(settings: BackboneSettings, inputs: int) -> tuple[nn.Module, int]:
    """The hidden layers that the settings describe, and their output size."""
    network, hidden = settings.network, settings.hidden
    if network.name == "mlp":
        if network.options:
            raise ConfigError(
                f"network 'mlp' takes no options, but {', '.join(network.options)} was given; set widths and "
                "activation by their own settings, or describe single layers in a list"
            )
        kind = NoisyMLP if settings.noisy else MLP
        return kind(inputs, hidden, settings.activation), hidden[-1] if hidden else inputs
    if settings.noisy:
        raise ConfigError(f"noisy layers need network 'mlp', but the network is {network.name!r}")
    net = construct("network", network, inputs)
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"network {network.name!r} built a {type(net).__name__}; it must build a torch.nn.Module"
        )
    return net, width_of(net, inputs)
