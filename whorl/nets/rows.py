"""Recurrent layers unrolled row by row, several of the same shape at once, as a CUDA graph on a GPU needs it.

Nothing depends on the values of a batch, so episodes may start in any row of any environment. The backward pass of the
LSTM is written out: it costs a few small kernels per row, and one product over all rows for the weights.
"""

from typing import Any

import torch
from torch import Tensor


def unroll(
    kind: str, value: Tensor, keep: Tensor, state: list[Tensor], weights: list[Tensor], burn_in: int
) -> Tensor:
    """Outputs [R, M, B, H] of M layers for rows [R, M, B, I], or for the same rows [R, 1, B, I].

    Args:
        keep: [R, 1, B, 1] 0 where an episode starts.
        state: h, and for an LSTM c, [M, B, H] before the first row; receives no gradient.
        weights: in torch's order, [M, G, I], [M, G, H], [M, G], [M, G].
        burn_in: the number of first rows that receive no gradient either.
    """
    weight, recurrent, bias, recurrent_bias = weights
    if kind == "gru":
        projected = torch.matmul(value, weight.mT) + bias.unsqueeze(1)
        return _gru(projected, keep, state[0], recurrent, recurrent_bias.unsqueeze(1), burn_in)
    projected = torch.matmul(value, weight.mT) + (bias + recurrent_bias).unsqueeze(1)
    if kind == "rnn":
        return _rnn(projected, keep, state[0], recurrent, burn_in)
    return LSTMRows.apply(projected, keep, *state, recurrent, burn_in)


class LSTMRows(torch.autograd.Function):
    """Outputs [R, M, B, H] of LSTM layers for projected rows [R, M, B, 4H], gates in the order i, f, g, o.

    c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t),  both set to 0 before a row where `keep` is 0
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, keep: Tensor, h: Tensor, c: Tensor, recurrent: Tensor, burn_in: int
    ) -> Tensor:
        opened = h, c
        weight = recurrent.mT.contiguous()
        gates, cells, outputs = [], [], []
        for row in range(len(projected)):
            h, c, gate = _cell(projected[row], torch.bmm(h * keep[row], weight), c * keep[row])
            gates.append(gate)
            cells.append(c)
            outputs.append(h)
        found = torch.stack(outputs)
        ctx.save_for_backward(torch.stack(gates), torch.stack(cells), found, *opened, keep, recurrent)
        ctx.burn_in = burn_in
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gates, cells, outputs, h, c, keep, recurrent = ctx.saved_tensors
        (gradient,) = gradients
        i, f, g, o = gates.chunk(4, -1)
        before = torch.cat((h.unsqueeze(0), outputs[:-1])) * keep
        kept = torch.cat((c.unsqueeze(0), cells[:-1])) * keep
        squashed = cells.tanh()
        # Factors of each row's derivatives, computed for all rows at once.
        slope = torch.stack((g * i * (1 - i), kept * f * (1 - f), i * (1 - g * g)), -2)  # [R, M, B, 3, H]
        slope_o = squashed * o * (1 - o)
        into_c = o * (1 - squashed.square())
        passed = f * keep
        found = torch.zeros_like(gates)
        parts = found.unflatten(-1, (4, -1))
        dh = torch.zeros_like(h)
        dc = torch.zeros_like(dh)
        for row in reversed(range(ctx.burn_in, len(gates))):
            dh = dh + gradient[row]
            dc = torch.addcmul(dc, dh, into_c[row])
            torch.mul(slope[row], dc.unsqueeze(-2), out=parts[row, ..., :3, :])
            torch.mul(slope_o[row], dh, out=parts[row, ..., 3, :])
            dc = dc * passed[row]
            dh = torch.bmm(found[row], recurrent) * keep[row]
        flat, states = (part.transpose(0, 1).flatten(1, 2) for part in (found, before))  # [M, R * B, ...]
        return found, None, None, None, torch.bmm(flat.mT, states), None


def _cell(projected: Tensor, recurrent: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One row [M, B, ...]: h and c after it, and the gate activations."""
    if projected.is_cuda:
        flat = (part.flatten(0, 1) for part in (projected, recurrent, c))
        found = torch.ops.aten._thnn_fused_lstm_cell(*flat)
        h, c, gates = (part.unflatten(0, projected.shape[:2]) for part in found)
        return h, c, gates
    i, f, g, o = (projected + recurrent).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat((i, f, g, o), -1)


def _gru(projected: Tensor, keep: Tensor, h: Tensor, recurrent: Tensor, bias: Tensor, burn_in: int) -> Tensor:
    """Outputs [R, M, B, H] of GRU layers for projected rows [R, M, B, 3H]."""
    outputs = []
    for row in range(len(projected)):
        with torch.set_grad_enabled(torch.is_grad_enabled() and row >= burn_in):
            h = h * keep[row]
            ri, zi, ni = projected[row].chunk(3, -1)
            rh, zh, nh = torch.baddbmm(bias, h, recurrent.mT).chunk(3, -1)
            r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
            h = torch.lerp(torch.tanh(torch.addcmul(ni, r, nh)), h, z)
        outputs.append(h)
    return torch.stack(outputs)


def _rnn(projected: Tensor, keep: Tensor, h: Tensor, recurrent: Tensor, burn_in: int) -> Tensor:
    """Outputs [R, M, B, H] of plain recurrent layers for projected rows [R, M, B, H]: h = tanh(x + W h)."""
    outputs = []
    for row in range(len(projected)):
        with torch.set_grad_enabled(torch.is_grad_enabled() and row >= burn_in):
            h = torch.tanh(torch.baddbmm(projected[row], h * keep[row], recurrent.mT))
        outputs.append(h)
    return torch.stack(outputs)
