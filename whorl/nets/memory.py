"""Recurrent memory that honours resets inside a window."""

import torch
from torch import Tensor, nn

from whorl.tree import Tree


class Recurrent(nn.Module):
    """One LSTM or GRU layer, unrolled row by row so that `reset` can clear the state anywhere in a window."""

    def __init__(self, kind: str, inputs: int, size: int) -> None:
        super().__init__()
        self.kind = kind
        self.size = size
        gates = {"lstm": 4, "gru": 3}[kind]
        self.input = nn.Linear(inputs, gates * size)
        self.hidden = nn.Linear(size, gates * size)
        for layer in (self.input, self.hidden):
            for block in layer.weight.data.split(size):
                nn.init.orthogonal_(block)
            nn.init.zeros_(layer.bias)
        if kind == "lstm":
            # Remember by default: a forget gate that opens at one half loses a cue within a few rows.
            self.input.bias.data[size : 2 * size] = 1.0

    def initial(self, lanes: int, device: torch.device) -> Tree:
        names = ("h", "c") if self.kind == "lstm" else ("h",)
        return {name: torch.zeros(lanes, self.size, device=device) for name in names}

    def step(self, value: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        """One row: `value` [B, I] -> output [B, H] and the memory after it."""
        return self._cell(self.input(value), reset, memory)

    def forward(self, value: Tensor, reset: Tensor, memory: Tree | None, burn_in: int) -> Tensor:
        """`value` [R, B, I] from `memory` (zero where None) -> outputs [R, B, H]; burn-in rows give no gradient."""
        state = memory if memory is not None else self.initial(value.shape[1], value.device)
        projected = self.input(value)
        outputs = []
        for row in range(value.shape[0]):
            if row < burn_in:
                with torch.no_grad():
                    output, state = self._cell(projected[row], reset[row], state)
            else:
                output, state = self._cell(projected[row], reset[row], state)
            outputs.append(output)
        return torch.stack(outputs)

    def _cell(self, projected: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        keep = (~reset).to(projected.dtype).unsqueeze(-1)
        h = memory["h"] * keep
        if self.kind == "lstm":
            gates = projected + self.hidden(h)
            i, f, g, o = gates.chunk(4, -1)
            c = torch.sigmoid(f) * (memory["c"] * keep) + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            return h, {"h": h, "c": c}
        ri, zi, ni = projected.chunk(3, -1)
        rh, zh, nh = self.hidden(h).chunk(3, -1)
        r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
        h = (1 - z) * torch.tanh(ni + r * nh) + z * h
        return h, {"h": h}
