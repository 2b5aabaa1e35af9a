"""Memory by gated attention over the episode so far, as in GTrXL (Parisotto et al. 2020, arXiv:1910.06764).

Each layer:  x <- gate(x, relu(attention(norm(x)))),  x <- gate(x, relu(mlp(norm(x))))
gate:        gru       r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - 2),  (1 - z) x + z tanh(W y + U (r x))
             output    x + sigmoid(W x - 2) y
             residual  x + y
A row attends to itself and to the previous `window` - 1 rows of its episode. The state while acting is a cache of keys
and values, which do not change as they age. Positions: a learned bias per head and distance; or queries and keys are
rotated by their places in the cache when they are used, so that products depend on distances only (Su et al. 2021,
arXiv:2104.09864); or a sinusoidal code of the step in the episode is added to the input (Vaswani et al. 2017).

Differs from GTrXL: a learned distance bias, by default, instead of a sinusoidal encoding of distances.
"""

import math

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.tree import Tree
from whorl.nets.layers import orthogonal_


class Attention(nn.Module):
    """Layers of gated attention.

    State: `keys`, `values` [B, layers, window - 1, H], newest last, `count` [B], how many of them there are, and, with
    absolute positions, `age` [B], the step in the episode.
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        layers: int = 1,
        heads: int = 4,
        window: int = 64,
        positions: str = "distance",
        gate: str = "gru",
    ) -> None:
        super().__init__()
        if size % heads:
            raise ConfigError(
                f"memory_size is {size}, which is not a multiple of memory_heads {heads}; change one of them"
            )
        if positions == "rotary" and size // heads % 2:
            raise ConfigError(
                f"memory_size is {size} with memory_heads {heads}; rotary positions need an even size per head"
            )
        self.size, self.layers, self.window = size, layers, window
        self.aged = positions == "absolute"
        self.input = orthogonal_(nn.Linear(inputs, size), 1.0)
        self.blocks = nn.ModuleList(Block(size, heads, window, positions, gate) for _ in range(layers))

    def initial(self, num_envs: int, device: torch.device) -> Tree:
        empty = torch.zeros(num_envs, self.layers, self.window - 1, self.size, device=device)
        none = torch.zeros(num_envs, dtype=torch.int64, device=device)
        state = {"keys": empty, "values": empty.clone(), "count": none}
        return {**state, "age": none.clone()} if self.aged else state

    def step(self, value: Tensor, reset: Tensor, memory: Tree) -> tuple[Tensor, Tree]:
        count = torch.where(reset, 0, memory["count"])
        x = self.input(value).unsqueeze(1)  # [B, 1, H]
        after: dict[str, Tensor] = {}
        if self.aged:
            age = torch.where(reset, 0, memory["age"])
            x = x + sinusoids(age, self.size, x).unsqueeze(1)
            after["age"] = age + 1
        place = torch.arange(self.window, device=value.device)
        seen = place >= self.window - 1 - count[:, None, None]  # [B, 1, window]
        away = (self.window - 1 - place).unsqueeze(0)  # [1, window]
        keys, values = [], []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, memory["keys"][:, number], memory["values"][:, number], away, seen, 0)
            keys.append(key[:, 1:])
            values.append(value[:, 1:])
        after |= {"keys": torch.stack(keys, 1), "values": torch.stack(values, 1)}
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
        if self.aged:
            row = torch.arange(rows, device=device).unsqueeze(1)
            start = (
                torch.where(reset, row, -state["age"]).cummax(0).values
            )  # [R, B] row of the episode's first step
            x = x + sinusoids((row - start).T, self.size, x)
        for number, block in enumerate(self.blocks):
            x, _, _ = block(x, state["keys"][:, number], state["values"][:, number], away, seen, burn_in)
        return x.transpose(0, 1)


class Block(nn.Module):
    """One layer: rows x [B, R, H] attend to cached rows and to each other, where `seen` allows it."""

    def __init__(
        self, size: int, heads: int, window: int, positions: str = "distance", gate: str = "gru"
    ) -> None:
        super().__init__()
        self.heads, self.window, self.rotary = heads, window, positions == "rotary"
        self.norm, self.norm_wide = nn.LayerNorm(size), nn.LayerNorm(size)
        self.read = orthogonal_(nn.Linear(size, 3 * size), 1.0)
        self.join = orthogonal_(nn.Linear(size, size), 1.0)
        self.distance = nn.Parameter(torch.zeros(heads, window)) if positions == "distance" else None
        self.wide = nn.Sequential(
            orthogonal_(nn.Linear(size, 2 * size)), nn.ReLU(), orthogonal_(nn.Linear(2 * size, size), 1.0)
        )
        self.gate, self.gate_wide = GATES[gate](size), GATES[gate](size)
        self.weights: list[Tensor] | None = None
        """where a list, each pass appends its attention weights [B, heads, R, held + R], for pictures"""

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
        if self.distance is None:
            bias = torch.zeros_like(away, dtype=x.dtype).unsqueeze(0)
        else:
            bias = self.distance[:, away.clamp(0, self.window - 1)]  # [heads, R, held + R]
        bias = bias.masked_fill(~seen.unsqueeze(1), -torch.inf)  # [B, heads or 1, R, held + R]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, keys, values))
        if self.rotary:
            place = torch.arange(k.shape[2], device=x.device)
            q, k = rotated(q, place[-q.shape[2] :]), rotated(k, place)
        # Fused kernels add up gradients in varying order on a GPU; then no run could be repeated bit for bit.
        weights = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)  # [B, heads, R, held + R]
        if self.weights is not None:
            self.weights.append(weights.detach())
        x = self.gate(x, self.join((weights @ v).transpose(1, 2).flatten(2)).relu())
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


class OutputGate(nn.Module):
    """Adds what the stream lets through, nearly nothing at the start of training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.open = nn.Linear(size, size)
        orthogonal_(self.open, 1.0)
        nn.init.constant_(self.open.bias, -2.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(x, torch.sigmoid(self.open(x)), y)


class Residual(nn.Module):
    """A plain sum."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


GATES: dict[str, type[nn.Module]] = {"gru": Gate, "output": OutputGate, "residual": Residual}


def rotated(rows: Tensor, place: Tensor) -> Tensor:
    """Rows [..., R, D] with each pair of columns (i, i + D/2) turned by an angle in proportion to their place [R]."""
    half = rows.shape[-1] // 2
    angle = place.unsqueeze(-1) * _frequencies(half, rows)  # [R, D/2]
    cos, sin = angle.cos(), angle.sin()
    first, second = rows[..., :half], rows[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def sinusoids(place: Tensor, size: int, like: Tensor) -> Tensor:
    """Codes [..., size] of places, of the dtype of `like`: sine and cosine at frequencies from 1 down to 1/10000."""
    half = (size + 1) // 2
    angle = place.unsqueeze(-1) * _frequencies(half, like)
    return torch.cat((angle.sin(), angle.cos()), -1)[..., :size]


def _frequencies(count: int, like: Tensor) -> Tensor:
    return 10000.0 ** (-torch.arange(count, device=like.device, dtype=like.dtype) / count)
