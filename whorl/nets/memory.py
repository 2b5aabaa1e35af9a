"""Memory between rows: LSTM and GRU, unrolled over windows in which episodes may begin anywhere.

Kernels for whole sequences (cuDNN, oneDNN) can't clear the state of one lane in the middle. So on a CPU a window is cut
where episodes begin, and its pieces are laid side by side as sequences of their own, which such a kernel reads. On a
GPU, where nothing may depend on the values of a batch, rows follow each other, and a CUDA graph makes that cheap: the
derivative is written out below, so that a row costs a dozen small kernels and the weights one product for all rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl import tree
from whorl.config import MemoryConfig, ReplayConfig
from whorl.errors import ConfigError
from whorl.nets.attention import Attention
from whorl.spec import ActionLeaf, Continuous, Discrete, MultiDiscrete, SpecTree, empty_action
from whorl.tree import Tree

Kind = Literal["none", "lstm", "gru", "attention"]


@dataclass(frozen=True)
class MemorySettings:
    """How to build one memory."""

    kind: Kind = "none"
    size: int = 64
    layers: int = 1
    heads: int = 4
    window: int = 64
    inputs: tuple[Literal["action", "reward"], ...] = ()
    """what it reads beside the observation, of the row before"""


def memory_settings(cfg: MemoryConfig) -> MemorySettings:
    """What settings say of memory."""
    inputs: tuple[Any, ...] = tuple(
        name for name, wanted in (("action", cfg.last_action), ("reward", cfg.last_reward)) if wanted
    )
    if inputs and cfg.memory == "none":
        raise ConfigError(
            f"last_{inputs[0]} is read by a memory, but memory is none; choose lstm, gru or attention, or leave it out"
        )
    return MemorySettings(
        cfg.memory, cfg.memory_size, cfg.memory_layers, cfg.memory_heads, cfg.memory_window, inputs
    )


def stores_memory(cfg: ReplayConfig) -> bool:
    """Whether replayed sequences open from the memory that acting had there."""
    return cfg.memory != "none" and cfg.stored_memory and not cfg.whole_episodes


def build_memory(settings: MemorySettings, inputs: int) -> "Recurrent | Attention":
    """The memory that settings describe, over rows of `inputs` columns."""
    if settings.kind == "attention":
        return Attention(inputs, settings.size, settings.layers, settings.heads, settings.window)
    assert settings.kind != "none"
    return Recurrent(settings.kind, inputs, settings.size, settings.layers)


class LastStep(nn.Module):
    """The action and the reward before a row as columns: choices one-hot, all zero where an episode begins."""

    def __init__(self, action: SpecTree, inputs: Sequence[str], reward_clip: float) -> None:
        super().__init__()
        self.taken: SpecTree = action
        self.action: SpecTree = action if "action" in inputs else {}
        self.reward, self.clip = "reward" in inputs, reward_clip
        self.size = sum(_columns(leaf) for leaf in tree.leaves(self.action)) + self.reward

    def forward(self, last: Tree, reset: Tensor) -> Tensor:
        """[..., size] of rows [...]."""
        parts = tree.leaves(tree.map(_coded, self.action, last["action"])) if self.action else []
        if self.reward:
            reward = last["reward"].clamp(-self.clip, self.clip) if self.clip else last["reward"]
            parts.append(reward.unsqueeze(-1))
        return torch.cat(parts, -1).masked_fill(reset.unsqueeze(-1), 0.0)

    def initial(self, lanes: int, device: torch.device) -> Tree:
        return {
            "action": empty_action(self.taken, (lanes,), device),
            "reward": torch.zeros(lanes, device=device),
        }


def _columns(leaf: ActionLeaf) -> int:
    return leaf.size if isinstance(leaf, Continuous) else sum(_choices(leaf))


def _coded(leaf: ActionLeaf, action: Tensor) -> Tensor:
    if isinstance(leaf, Continuous):
        return action
    columns = [action] if isinstance(leaf, Discrete) else action.unbind(-1)
    # Not one_hot, which looks at the values on some devices.
    ranges = (torch.arange(n, device=action.device) for n in _choices(leaf))
    return torch.cat([(part.unsqueeze(-1) == every).float() for part, every in zip(columns, ranges)], -1)


def _choices(leaf: Discrete | MultiDiscrete) -> tuple[int, ...]:
    return (leaf.n,) if isinstance(leaf, Discrete) else leaf.nvec


_as_on_gpu = False


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Within, windows are unrolled as on a GPU, wherever they are: for tests of that way."""
    global _as_on_gpu
    _as_on_gpu = True
    try:
        yield
    finally:
        _as_on_gpu = False


class Recurrent(nn.Module):
    """LSTM or GRU layers. States are trees of [B, layers, H]."""

    def __init__(self, kind: Literal["lstm", "gru"], inputs: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.kind, self.size, self.layers = kind, size, layers
        self.names = ("h", "c") if kind == "lstm" else ("h",)
        self.net = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, size, layers)
        for name, value in self.net.named_parameters():
            if "bias" in name:
                nn.init.zeros_(value)
            else:
                for block in value.data.split(size):
                    nn.init.orthogonal_(block)
            if kind == "lstm" and "bias_ih" in name:
                # Remember by default: a forget gate that opens at one half loses a cue within a few rows.
                value.data[size : 2 * size] = 1.0

    def initial(self, lanes: int, device: torch.device) -> Tree:
        """The state before an episode's first row."""
        return {name: torch.zeros(lanes, self.layers, self.size, device=device) for name in self.names}

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
                found = (torch.gru_cell(value, state[0], *weights),)
            value = found[0]
            for name, part in zip(self.names, found):
                after[name].append(part)
        return value, {name: torch.stack(parts, 1) for name, parts in after.items()}

    @torch.compiler.disable
    def forward(self, value: Tensor, reset: Tensor, memory: Tree | None, burn_in: int) -> Tensor:
        """`value` [R, B, I] from `memory` (as before an episode where None) -> outputs [R, B, H].

        Rows of the burn-in pass no gradient on, neither to what they read nor by what they left behind.
        """
        state = memory if memory is not None else self.initial(value.shape[1], value.device)
        if value.is_cuda or _as_on_gpu:
            return self._by_rows(value, reset, state, burn_in)
        if not burn_in:
            return self._by_pieces(value, reset, state)
        with torch.no_grad():
            before, state = self._between_resets(value[:burn_in], reset[:burn_in], state)
        return torch.cat((before, self._by_pieces(value[burn_in:], reset[burn_in:], state)))

    def _weights(self) -> list[list[Tensor]]:
        """Of each layer: what multiplies inputs and state, and the two biases."""
        return [[*weights] for weights in self.net.all_weights]

    # On a CPU

    def _by_pieces(self, value: Tensor, reset: Tensor, state: Tree) -> Tensor:
        """Each run of rows of one lane without a reset inside is a sequence; shorter ones are padded at their end."""
        first = _cleared(state, reset[0])
        if not bool(reset[1:].any()):
            return self._sequences(value, first)[0]
        rows, lanes = reset.shape
        opens = reset.clone()
        opens[0] = True
        lane, row = opens.T.nonzero(as_tuple=True)  # of each piece, lane by lane
        number = (
            opens.T.reshape(-1).cumsum(0).reshape(lanes, rows).T - 1
        )  # [R, B] the piece that a row belongs to
        place = torch.arange(rows).unsqueeze(1) - row[number]  # [R, B] within it
        longest = int(place.max()) + 1
        read = (row + torch.arange(longest).unsqueeze(1)).clamp(
            max=rows - 1
        ) * lanes + lane  # [longest, pieces]
        goes_on = (row == 0)[:, None, None]
        opened = tree.map(lambda leaf: torch.where(goes_on, leaf[lane], 0.0), first)
        pieces = value.flatten(0, 1).index_select(0, read.reshape(-1)).reshape(*read.shape, -1)
        outputs, _ = self._sequences(pieces, opened)
        back = (place * len(row) + number).reshape(-1)
        return outputs.flatten(0, 1).index_select(0, back).reshape(rows, lanes, -1)

    def _between_resets(self, value: Tensor, reset: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """All lanes together from one row in which some lane resets to the next; also the state after the last."""
        starts = [0, *(reset[1:].any(1).nonzero()[:, 0] + 1).tolist(), len(reset)]
        outputs = []
        for start, stop in pairwise(starts):
            output, state = self._sequences(value[start:stop], _cleared(state, reset[start]))
            outputs.append(output)
        return torch.cat(outputs), state

    def _sequences(self, value: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        given = [state[name].transpose(0, 1).contiguous() for name in self.names]  # [layers, B, H]
        output, after = self.net(value, tuple(given) if self.kind == "lstm" else given[0])
        after = after if self.kind == "lstm" else (after,)
        return output, {name: part.transpose(0, 1) for name, part in zip(self.names, after)}

    # On a GPU

    def _by_rows(self, value: Tensor, reset: Tensor, state: Tree, burn_in: int) -> Tensor:
        keep = (~reset).to(value.dtype).unsqueeze(-1)  # [R, B, 1]
        for layer, (weight, recurrent, bias, recurrent_bias) in enumerate(self._weights()):
            opened = [state[name][:, layer] for name in self.names]
            if self.kind == "lstm":
                weight, recurrent, bias = map(_regrouped, (weight, recurrent, bias + recurrent_bias))
                value = LSTMRows.apply(F.linear(value, weight, bias), keep, *opened, recurrent, burn_in)
            else:
                projected = F.linear(value, weight, bias)
                value = _gru_rows(projected, keep, opened[0], recurrent, recurrent_bias, burn_in)
        return value


def _regrouped(gates: Tensor) -> Tensor:
    """From torch's order of gates, i, f, g, o, to o, i, f, g: what is squashed alike lies side by side."""
    return gates.roll(len(gates) // 4, 0)


class LSTMRows(torch.autograd.Function):
    """What an LSTM layer says to projected rows [R, B, 4H], gates in the order o, i, f, g: [R, B, H].

    c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t),  both cleared before a row where `keep` [R, B, 1] is 0.
    Neither the state it opens from nor rows before `burn_in` get a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, keep: Tensor, h: Tensor, c: Tensor, recurrent: Tensor, burn_in: int
    ) -> Tensor:
        rows, lanes, columns = projected.shape
        size = columns // 4
        weight = recurrent.t()
        gates = torch.empty_like(projected)
        squashed, outputs, before, kept = projected.new_empty(4, rows, lanes, size).unbind()
        for row in range(rows):
            h = torch.mul(h, keep[row], out=before[row])
            c = torch.mul(c, keep[row], out=kept[row])
            gate = torch.addmm(projected[row], h, weight, out=gates[row])
            gate[:, : 3 * size].sigmoid_()
            gate[:, 3 * size :].tanh_()
            o, i, f, g = gate.chunk(4, -1)
            c = torch.addcmul(i * g, f, c)
            h = torch.mul(o, torch.tanh(c, out=squashed[row]), out=outputs[row])
        ctx.save_for_backward(gates, squashed, before, kept, keep, recurrent)
        ctx.burn_in = burn_in
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gates, squashed, before, kept, keep, recurrent = ctx.saved_tensors
        (wanted,) = gradients
        o, i, f, g = gates.chunk(4, -1)
        # What the derivatives of a row are multiplied with, for all rows at once.
        slope = torch.stack(
            (squashed * o * (1 - o), g * i * (1 - i), kept * f * (1 - f), i * (1 - g * g)), -2
        )
        into_c = o * (1 - squashed.square())
        passed = f * keep
        found = torch.zeros_like(gates)
        parts = found.unflatten(-1, (4, -1))
        dh = torch.zeros_like(squashed[0])
        dc = torch.zeros_like(dh)
        for row in reversed(range(ctx.burn_in, len(gates))):
            dh = dh + wanted[row]
            dc = torch.addcmul(dc, dh, into_c[row])
            torch.mul(slope[row, :, :1], dh.unsqueeze(1), out=parts[row, :, :1])
            torch.mul(slope[row, :, 1:], dc.unsqueeze(1), out=parts[row, :, 1:])
            dc = dc * passed[row]
            dh = torch.mm(found[row], recurrent) * keep[row]
        weight = found.flatten(0, 1).t() @ before.flatten(0, 1)
        return found, None, None, None, weight, None


def _gru_rows(
    projected: Tensor, keep: Tensor, h: Tensor, recurrent: Tensor, bias: Tensor, burn_in: int
) -> Tensor:
    """What a GRU layer says to projected rows [R, B, 3H], gates in torch's order: [R, B, H]."""
    outputs = []
    for row in range(len(projected)):
        with torch.set_grad_enabled(torch.is_grad_enabled() and row >= burn_in):
            h = h * keep[row]
            ri, zi, ni = projected[row].chunk(3, -1)
            rh, zh, nh = F.linear(h, recurrent, bias).chunk(3, -1)
            r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
            h = torch.lerp(torch.tanh(torch.addcmul(ni, r, nh)), h, z)
        outputs.append(h)
    return torch.stack(outputs)


def _cleared(memory: Tree, reset: Tensor) -> Tree:
    """The state with the lanes [B] that begin an episode set to zero."""
    keep = ~reset[:, None, None]
    return tree.map(lambda leaf: leaf * keep, memory)
