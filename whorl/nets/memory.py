"""Recurrent memory: LSTM, GRU and plain RNN, unrolled over sequences in which episodes may start at any row.

Kernels for whole sequences (cuDNN, oneDNN) cannot reset the state of one environment in the middle. On a CPU, an extra
row is therefore inserted where an episode starts: it closes the gates that the state would pass, so that one kernel
processes the whole sequence. On a GPU, where nothing may depend on values, the rows are processed one by one (`rows`);
so are those of a plain RNN with resets, which has no gates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.hardware import acts_as_on_gpu
from whorl.core.registry import registered
from whorl.core.spec import SpecTree, empty_action, flat_action_size, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import POLICY, STREAMS
from whorl.nets import rows
from whorl.nets.attention import Attention
from whorl.nets.dilated import Dilated
from whorl.ops.transforms import value_rescale
from whorl.settings.schema import Choice, Range, Size


@dataclass(frozen=True)
class MemoryConfig:
    """Settings of the networks' memory over time steps."""

    memory: Annotated[str, Choice("memory", ("none", "lstm", "gru", "rnn", "attention"))] = "none"
    """memory before the hidden layers of each network: lstm, gru, rnn (plain, without gates), attention (gated, over
    the episode) or a registered one"""
    memory_size: Size = 64
    """units of the memory"""
    memory_layers: Annotated[int, Range(1, 100)] = 1
    """layers of the memory"""
    memory_heads: Annotated[int, Range(1, 100)] = 4
    """attention: number of heads, which share memory_size"""
    memory_window: Annotated[int, Range(1, 10**6)] = 64
    """attention: steps that are attended to, the current one included"""
    memory_positions: Literal["distance", "rotary", "absolute", "none"] = "distance"
    """attention: how it knows positions: distance (a learned bias per head and distance), rotary (queries and keys
    rotated by their position), absolute (a sinusoidal code of the step in the episode, added to the input) or none"""
    memory_gate: Literal["gru", "output", "residual"] = "gru"
    """attention: how a layer joins its input: gru (as in GTrXL), output (the input plus the gated output) or residual
    (their sum)"""
    last_action: bool = False
    """the memory also reads the previous action"""
    last_reward: bool = False
    """the memory also reads the previous reward (with replay: clipped if clip_reward is set)"""

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """What the memory reads besides the observation: action, reward."""
        read = {"action": self.last_action, "reward": self.last_reward}
        return tuple(name for name, wanted in read.items() if wanted)


@dataclass(frozen=True)
class MemorySettings:
    """How to build one memory."""

    kind: str = "none"
    size: int = 64
    layers: int = 1
    heads: int = 4
    window: int = 64
    positions: str = "distance"
    gate: str = "gru"
    inputs: tuple[str, ...] = ()
    """what it reads besides the observation: action, reward and streams of the previous step, index of the policy"""
    streams: tuple[str, ...] = ()
    """names of the intrinsic rewards that `inputs` may name as streams"""
    stream_scale: float = 1.0
    """factor of intrinsic rewards that are read"""
    policies: int = 0
    """number of policies, whose index `inputs` may name as policy"""
    dilation: int = 1
    """rows between those at which a state advances; see `whorl.nets.dilated`"""


def memory_settings(cfg: MemoryConfig, streams: tuple[str, ...] = (), dilation: int = 1) -> MemorySettings:
    """The memory that a config describes; `streams` are the names of intrinsic rewards."""
    inputs = cfg.memory_inputs
    if inputs and cfg.memory == "none":
        raise ConfigError(
            f"last_{inputs[0]} is read by a memory, but memory is none; choose lstm, gru, rnn or attention, "
            "or leave it out"
        )
    return MemorySettings(
        *(cfg.memory, cfg.memory_size, cfg.memory_layers, cfg.memory_heads, cfg.memory_window),
        positions=cfg.memory_positions,
        gate=cfg.memory_gate,
        inputs=inputs,
        streams=streams,
        stream_scale=getattr(cfg, "max_beta", 1.0),
        policies=getattr(cfg, "num_policies", 0),
        dilation=dilation,
    )


def build_memory(settings: MemorySettings, inputs: int) -> nn.Module:
    """The memory that settings describe, over rows of `inputs` columns.

    A registered one is built as `builder(inputs, settings)` and needs `Recurrent`'s `initial`, `step` and `forward`.
    """
    if settings.kind in (users := registered("memory")):
        return users[settings.kind](inputs, settings)
    if settings.kind == "attention":
        shape = settings.size, settings.layers, settings.heads, settings.window
        return Attention(inputs, *shape, settings.positions, settings.gate)
    assert settings.kind in CELLS
    cell = Recurrent(settings.kind, inputs, settings.size, settings.layers)
    return cell if settings.dilation == 1 else Dilated(cell, settings.dilation)


class LastStep(nn.Module):
    """What a memory reads besides the observation, as columns.

    The previous action (discrete ones one-hot), reward and intrinsic rewards are zero where an episode starts; the
    index of the acting policy is one-hot. Intrinsic rewards are read in the units of the reward that policies maximise,
    and rescaled as values are, h(scale * r): those of NGU reach hundreds, beside which nothing else would be seen.
    """

    def __init__(self, action: SpecTree, settings: MemorySettings, reward_clip: float) -> None:
        super().__init__()
        inputs = settings.inputs
        self.taken: SpecTree = action
        self.action: SpecTree = action if "action" in inputs else {}
        self.reward, self.clip = "reward" in inputs, reward_clip
        self.streams, self.scale = settings.streams if STREAMS in inputs else (), settings.stream_scale
        self.policies = settings.policies if POLICY in inputs else 0
        self.size = flat_action_size(self.action) + self.reward + len(self.streams) + self.policies

    def forward(self, last: Tree, reset: Tensor) -> Tensor:
        """[..., size] of rows [...]."""
        parts = [flatten_action(self.action, last["action"])] if self.action else []
        if self.reward:
            reward = last["reward"].clamp(-self.clip, self.clip) if self.clip else last["reward"]
            parts.append(reward.unsqueeze(-1))
        parts += [value_rescale(self.scale * last[STREAMS][name]).unsqueeze(-1) for name in self.streams]
        if parts:
            parts = [torch.cat(parts, -1).masked_fill(reset.unsqueeze(-1), 0.0)]
        if self.policies:
            every = torch.arange(self.policies, device=reset.device)
            parts.append((last[POLICY].unsqueeze(-1) == every).float())
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def initial(self, num_envs: int, device: torch.device) -> Tree:
        found: dict[str, Any] = {
            "action": empty_action(self.taken, (num_envs,), device),
            "reward": torch.zeros(num_envs, device=device),
        }
        if self.streams:
            found[STREAMS] = {name: torch.zeros(num_envs, device=device) for name in self.streams}
        if self.policies:
            found[POLICY] = torch.zeros(num_envs, dtype=torch.int64, device=device)
        return found


SURE = 1e6
"""input that opens or closes a gate regardless of its other inputs"""

CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
"""recurrent layers by kind"""


class Recurrent(nn.Module):
    """Layers of LSTM, GRU or plain RNN cells. States are trees of [B, layers, H]."""

    def __init__(self, kind: str, inputs: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.kind, self.size, self.layers = kind, size, layers
        self.names = ("h", "c") if kind == "lstm" else ("h",)
        self.net = CELLS[kind](inputs, size, layers)
        for name, value in self.net.named_parameters():
            if "bias" in name:
                nn.init.zeros_(value)
            else:
                for block in value.data.split(size):
                    nn.init.orthogonal_(block)
            if kind == "lstm" and "bias_ih" in name:
                # Remember by default: with a forget gate of one half, a cue is lost within a few rows.
                value.data[size : 2 * size] = 1.0

    def initial(self, num_envs: int, device: torch.device) -> Tree:
        """The state before the first row of an episode."""
        return {name: torch.zeros(num_envs, self.layers, self.size, device=device) for name in self.names}

    def step(self, value: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        """One row: `value` [B, I] -> output [B, H] and the state after it."""
        before = _cleared(memory, reset)
        after: dict[str, list[Tensor]] = {name: [] for name in self.names}
        found: tuple[Tensor, ...]
        for layer, weights in enumerate(self._weights()):
            state = [before[name][:, layer] for name in self.names]
            if self.kind == "lstm":
                found = torch.lstm_cell(value, state, *weights)  # h, c
            else:
                cell = torch.gru_cell if self.kind == "gru" else torch.rnn_tanh_cell
                found = (cell(value, state[0], *weights),)
            value = found[0]
            for name, part in zip(self.names, found):
                after[name].append(part)
        return value, {name: torch.stack(parts, 1) for name, parts in after.items()}

    def forward(self, value: Tensor, reset: Tensor, memory: Tree | None, burn_in: int) -> Tensor:
        """`value` [R, B, I], starting from `memory` (None: the initial state) -> outputs [R, B, H].

        Burn-in rows receive no gradient, neither through their outputs nor through the state after them.
        """
        state = memory if memory is not None else self.initial(value.shape[1], value.device)
        if value.is_cuda or acts_as_on_gpu() or (self.kind == "rnn" and bool(reset[1:].any())):
            return _by_rows([self], value, reset, [state], burn_in)[0]
        if not burn_in:
            return self._with_gaps(value, reset, state)[0]
        with torch.no_grad():
            before, state = self._with_gaps(value[:burn_in], reset[:burn_in], state)
        return torch.cat((before, self._with_gaps(value[burn_in:], reset[burn_in:], state)[0]))

    def _weights(self) -> list[list[Tensor]]:
        """Per layer: input weights, recurrent weights and the two biases."""
        return [[*weights] for weights in self.net.all_weights]

    # On a CPU

    def _with_gaps(self, value: Tensor, reset: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Outputs [R, B, H] and the state after the last row, by a kernel for whole sequences.

        Each environment gets an extra row before each reset, whose gates leave an empty state; environments with fewer
        resets are padded at the end with rows that keep the state.
        """
        first = _cleared(state, reset[0])
        opens = reset.clone()
        opens[0] = False
        if not bool(opens.any()):
            return self._sequences(value, first)
        count, num_envs = reset.shape
        before = opens.cumsum(0)  # [R, B] rows inserted so far
        places = torch.arange(count).unsqueeze(1) + before
        cells = (places * num_envs + torch.arange(num_envs)).reshape(-1)
        flags = value.new_tensor((0.0, 1.0)).repeat(
            (count + int(before[-1].max())) * num_envs, 1
        )  # empty, keep
        flags[cells] = 0.0
        flags[cells[opens.reshape(-1)] - num_envs] = value.new_tensor((1.0, 0.0))
        after: dict[str, list[Tensor]] = {name: [] for name in self.names}
        for layer, (weight, recurrent, bias, recurrent_bias) in enumerate(self._weights()):
            wide = torch.cat((weight, self._switches(bias)), 1)
            spread = F.pad(flags, (value.shape[-1], 0))
            spread = spread.index_copy(0, cells, F.pad(value.flatten(0, 1), (0, 2)))
            given = [first[name][:, layer].unsqueeze(0).contiguous() for name in self.names]
            weights = [wide, recurrent, bias, recurrent_bias]
            options: Any = (weights, True, 1, 0.0, self.training, False, False)
            spread = spread.unflatten(0, (-1, num_envs))
            if self.kind == "lstm":
                outputs, _, c = torch.lstm(spread, given, *options)
            else:
                outputs, _ = torch.gru(spread, given[0], *options)
            value = outputs.flatten(0, 1).index_select(0, cells).unflatten(0, (count, num_envs))
            after["h"].append(value[-1])
            if self.kind == "lstm":
                after["c"].append(c[0])
        return value, {name: torch.stack(parts, 1) for name, parts in after.items()}

    def _switches(self, bias: Tensor) -> Tensor:
        """Weights of two 0/1 inputs that saturate the gates: one empties the state, the other keeps it."""
        shut, opened = bias.new_full((self.size,), -SURE), bias.new_full((self.size,), SURE)
        free = torch.zeros_like(shut)
        if self.kind == "lstm":  # i, f, g, o
            empty, keep = [shut, shut, free, shut], [shut, opened, free, free]
        else:  # r, z, n: the candidate would be tanh of the bias, which is subtracted
            empty, keep = [shut, shut, -bias[2 * self.size :]], [shut, opened, free]
        return torch.stack((torch.cat(empty), torch.cat(keep)), 1)

    def _sequences(self, value: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        given = [state[name].transpose(0, 1).contiguous() for name in self.names]  # [layers, B, H]
        output, after = self.net(value, tuple(given) if self.kind == "lstm" else given[0])
        after = after if self.kind == "lstm" else (after,)
        return output, {name: part.transpose(0, 1) for name, part in zip(self.names, after)}


def unroll_all(
    memories: Sequence[Any],
    value: Tensor,
    reset: Tensor,
    states: Sequence[Tree | None],
    burn_in: int,
) -> list[Tensor]:
    """Outputs [R, B, H] of several memories of the same shape for the same rows [R, B, I]."""
    if len(memories) > 1 and isinstance(memories[0], Recurrent) and (value.is_cuda or acts_as_on_gpu()):
        return _by_rows(memories, value, reset, states, burn_in)
    return [memory(value, reset, state, burn_in) for memory, state in zip(memories, states)]


def _by_rows(
    memories: Sequence[Recurrent], value: Tensor, reset: Tensor, states: Sequence[Tree | None], burn_in: int
) -> list[Tensor]:
    first = memories[0]
    given = [first.initial(value.shape[1], value.device) if state is None else state for state in states]
    keep = (~reset).to(value.dtype)[:, None, :, None]  # [R, 1, B, 1]
    value = value.unsqueeze(1)
    for layer, weights in enumerate(zip(*(memory.net.all_weights for memory in memories))):
        opened = [torch.stack([state[name][:, layer] for state in given]) for name in first.names]
        stacked = [torch.stack(parts) for parts in zip(*weights)]
        value = rows.unroll(first.kind, value, keep, opened, stacked, burn_in)
    return list(value.unbind(1))


def _cleared(memory: Tree, reset: Tensor) -> Tree:
    """The state, set to zero in environments [B] that start an episode."""
    keep = ~reset[:, None, None]
    return tree.map(lambda leaf: leaf * keep, memory)
