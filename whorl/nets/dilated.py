"""A recurrent memory whose state advances every k-th row: the dilated LSTM of FeUdal networks, or another cell."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.tree import Tree


class Dilated(nn.Module):
    """h_t = cell(x_t, h_{t-k}),  output (h_t + ... + h_{t-k+1}) / k  (Vezhnevets et al. 2017, arXiv:1703.01161, 3.3).

    So k states take turns: each advances every k-th row and remembers k times as long, and the output reads all rows.
    A state of an earlier episode is 0. States are those of the cell after the last k rows, oldest first: trees of
    [B, k, layers, H].

    Args:
        cell: a `whorl.nets.memory.Recurrent`.
    """

    def __init__(self, cell: Any, dilation: int) -> None:
        super().__init__()
        self.cell: Any = cell
        self.size, self.dilation = cell.size, dilation

    def initial(self, num_envs: int, device: torch.device) -> Tree:
        """The state before the first row of an episode."""
        first = self.cell.initial(num_envs, device)
        return tree.map(lambda leaf: torch.stack([leaf] * self.dilation, 1), first)

    def step(self, value: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        """One row: `value` [B, I] -> output [B, H] and the state after it."""
        held = tree.map(lambda leaf: leaf * ~reset[:, None, None, None], memory)
        oldest = tree.map(lambda leaf: leaf[:, 0], held)
        newest = self.cell.step(value, reset, oldest)[1]
        after = {name: torch.cat((held[name][:, 1:], newest[name].unsqueeze(1)), 1) for name in newest}
        return after["h"][:, :, -1].mean(1), after

    def forward(self, value: Tensor, reset: Tensor, memory: Tree | None, burn_in: int) -> Tensor:
        """`value` [R, B, I], starting from `memory` (None: the initial state) -> outputs [R, B, H].

        Rows t, t + k, t + 2k, ... are one sequence of the cell, which unrolls all k of them at once, as environments.
        Burn-in rows receive no gradient.
        """
        rows, num_envs = reset.shape
        state = memory if memory is not None else self.initial(num_envs, value.device)
        state = tree.map(lambda leaf: leaf.transpose(0, 1), state)  # [k, B, layers, H]
        episode = F.pad(reset.cumsum(0), (0, 0, self.dilation, 0))  # [k + R, B] of the k rows before, too
        starts = episode[self.dilation :] != episode[:rows]  # between a row and the one k rows before it
        found = [state["h"][:, :, -1]]
        head = burn_in % self.dilation
        if head:  # of the burn-in, so that the rest of it is the same number of rows in each sequence
            with torch.no_grad():
                output, after = self.cell.step(
                    *(part[:head].flatten(0, 1) for part in (value, starts)),
                    tree.map(lambda leaf: leaf[:head].flatten(0, 1), state),
                )
            found.append(output.unflatten(0, (head, num_envs)))
            after = tree.map(lambda leaf: leaf.unflatten(0, (head, num_envs)), after)
            state = {name: torch.cat((state[name][head:], after[name])) for name in after}
        found.append(self._unrolled(value[head:], starts[head:], state, burn_in // self.dilation))
        return self._mean(torch.cat(found), episode)

    def _unrolled(self, value: Tensor, starts: Tensor, state: Tree, burn_in: int) -> Tensor:
        """h [R, B, H] of rows; the state is that of the k rows before them."""
        rows, missing = len(value), -len(value) % self.dilation
        shape = (-1, self.dilation * value.shape[1])
        value = F.pad(value, (0, 0, 0, 0, 0, missing)).reshape(*shape, value.shape[-1])
        starts = F.pad(starts, (0, 0, 0, missing)).reshape(shape)
        state = tree.map(lambda leaf: leaf.flatten(0, 1), state)
        return self.cell(value, starts, state, burn_in).unflatten(1, (self.dilation, -1)).flatten(0, 1)[:rows]

    def _mean(self, h: Tensor, episode: Tensor) -> Tensor:
        """Means [R, B, H] over each row after the first k and the k - 1 rows before it that are of its episode."""
        rows, total = len(h) - self.dilation, torch.zeros_like(h[self.dilation :])
        for before in range(self.dilation):
            at = slice(self.dilation - before, self.dilation - before + rows)
            same = (episode[at] == episode[self.dilation :]).unsqueeze(-1)
            total = total + torch.where(same, h[at], 0.0)
        return total / self.dilation
