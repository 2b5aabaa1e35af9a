"""Memory by gated attention over the episode so far, as in GTrXL (Parisotto et al. 2020, arXiv:1910.06764).

Each layer:  x <- gate(x, relu(attention(norm(x)))),  x <- gate(x, relu(mlp(norm(x))))
gate:        r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - 2),  (1 - z) x + z tanh(W y + U (r x))
A row attends to itself and to the previous `window` - 1 rows of its episode. Distance is a learned bias per head, so
keys and values do not change as they age: the state while acting is a cache of them.

Differs from the paper: a learned distance bias instead of a sinusoidal encoding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.nets.layers import orthogonal_


class Attention(nn.Module):
    """Layers of gated attention.

    State: `keys`, `values` [B, layers, window - 1, H], newest last, and `count` [B], how many of them there are.
    """

    def __init__(self, inputs: int, size: int, layers: int = 1, heads: int = 4, window: int = 64) -> None:
        super().__init__()
        if size % heads:
            raise ConfigError(
                f"memory_size is {size}, which is not a multiple of memory_heads {heads}; change one of them"
            )
        self.size, self.layers, self.window = size, layers, window
        self.input = orthogonal_(nn.Linear(inputs, size), 1.0)
        self.blocks = nn.ModuleList(Block(size, heads, window) for _ in range(layers))

    def initial(self, num_envs: int, device: torch.device) -> Tree:
        empty = torch.zeros(num_envs, self.layers, self.window - 1, self.size, device=device)
        return {
            "keys": empty,
            "values": empty.clone(),
            "count": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }

    def step(self, value: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        count = torch.where(reset, 0, memory["count"])
        x = self.input(value).unsqueeze(1)  # [B, 1, H]
        place = torch.arange(self.window, device=value.device)
        seen = place >= self.window - 1 - count[:, None, None]  # [B, 1, window]
        away = (self.window - 1 - place).unsqueeze(0)  # [1, window]
        keys, values = [], []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, memory["keys"][:, number], memory["values"][:, number], away, seen, 0)
            keys.append(key[:, 1:])
            values.append(value[:, 1:])
        after = {"keys": torch.stack(keys, 1), "values": torch.stack(values, 1)}
        return x[:, 0], {**after, "count": (count + 1).clamp(max=self.window - 1)}

    def forward(self, value: Tensor, reset: Tensor, memory: Tree | None, burn_in: int) -> Tensor:
        rows, num_envs = reset.shape
        state = memory if memory is not None else self.initial(num_envs, value.device)
        held, device = self.window - 1, value.device
        place = torch.arange(held + rows, device=device)
        away = held + torch.arange(rows, device=device).unsqueeze(1) - place  # [R, held + R]
        episode = reset.cumsum(0).T  # [B, R] number of each row's episode; cached rows belong to number 0
        before = torch.where(place[:held] >= held - state["count"].unsqueeze(1), 0, -1)  # [B, held]
        same = episode.unsqueeze(2) == torch.cat((before, episode), 1).unsqueeze(1)  # [B, R, held + R]
        seen = same & (away >= 0) & (away < self.window)
        x = self.input(value).transpose(0, 1)  # [B, R, H]
        for number, block in enumerate(self.blocks):
            x, _, _ = block(x, state["keys"][:, number], state["values"][:, number], away, seen, burn_in)
        return x.transpose(0, 1)


class Block(nn.Module):
    """One layer: rows x [B, R, H] attend to cached rows and to each other, where `seen` allows it."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm, self.norm_wide = nn.LayerNorm(size), nn.LayerNorm(size)
        self.read = orthogonal_(nn.Linear(size, 3 * size), 1.0)
        self.join = orthogonal_(nn.Linear(size, size), 1.0)
        self.distance = nn.Parameter(torch.zeros(heads, window))
        self.wide = nn.Sequential(
            orthogonal_(nn.Linear(size, 2 * size)), nn.ReLU(), orthogonal_(nn.Linear(2 * size, size), 1.0)
        )
        self.gate, self.gate_wide = Gate(size), Gate(size)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, away: Tensor, seen: Tensor, burn_in: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and all keys and values [B, held + R, H]; `away` [R, held + R] is the distance in rows."""
        query, key, value = self.read(self.norm(x)).chunk(3, -1)
        if burn_in:
            key, value = (
                torch.cat((part[:, :burn_in].detach(), part[:, burn_in:]), 1) for part in (key, value)
            )
        keys, values = torch.cat((keys, key), 1), torch.cat((values, value), 1)
        bias = self.distance[:, away.clamp(0, self.window - 1)]  # [heads, R, held + R]
        bias = bias.masked_fill(~seen.unsqueeze(1), -torch.inf)  # [B, heads, R, held + R]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, keys, values))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        x = self.gate(x, self.join(found).relu())
        return self.gate_wide(x, self.wide(self.norm_wide(x)).relu()), keys, values


class Gate(nn.Module):
    """GRU-like gate of a residual connection, nearly closed at the start of training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.found = nn.Linear(size, 3 * size)
        orthogonal_(self.found, 1.0)
        self.stream = orthogonal_(nn.Linear(size, 2 * size, bias=False), 1.0)
        self.kept = orthogonal_(nn.Linear(size, size, bias=False), 1.0)
        self.found.bias.data[size : 2 * size] = -2.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        ry, zy, hy = self.found(y).chunk(3, -1)
        rx, zx = self.stream(x).chunk(2, -1)
        r, z = torch.sigmoid(ry + rx), torch.sigmoid(zy + zx)
        return torch.lerp(x, torch.tanh(hy + self.kept(r * x)), z)
