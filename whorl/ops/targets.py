"""Target networks: in-place updates of one module from another of the same structure."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Polyak:
    """target <- (1 - tau) * target + tau * online for parameters (Lillicrap et al. 2016, arXiv:1509.02971).

    Buffers (running statistics, counters) are copied, not averaged. The tensors are listed once: for small networks,
    that takes longer than the arithmetic. Later calls need the same tensors, updated in place.
    """

    def __init__(self, target: nn.Module, online: nn.Module) -> None:
        self._parameters = _pairs(list(target.parameters()), list(online.parameters()))
        self._buffers = _pairs(list(target.buffers()), list(online.buffers()))

    @torch.no_grad()
    def __call__(self, tau: float) -> None:
        into, source = self._parameters
        if into and into[0].device.type == "cuda":
            torch._foreach_lerp_(pieces(into), pieces(source), tau)
        elif into:
            torch._foreach_lerp_(into, source, tau)
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)


def polyak_(target: nn.Module, online: nn.Module, tau: float) -> None:
    """See `Polyak`."""
    Polyak(target, online)(tau)


@torch.no_grad()
def hard_update_(target: nn.Module, online: nn.Module) -> None:
    """target <- online: parameters and buffers."""
    into, source = _pairs(list(target.parameters()), list(online.parameters()))
    if into:
        torch._foreach_copy_(into, source)
    into, source = _pairs(list(target.buffers()), list(online.buffers()))
    if into:
        torch._foreach_copy_(into, source)


def _pairs(into: list[Tensor], source: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    have, want = [tuple(t.shape) for t in into], [tuple(t.shape) for t in source]
    if have != want:
        raise ValueError(f"target and online network have different shapes: {have} and {want}")
    return into, source


def pieces(tensors: Sequence[Tensor], count: int = 32, most: int = 16_384) -> list[Tensor]:
    """The same memory as about `count` flat views of similar size, of at most `most` entries each.

    GPU kernels over lists of tensors assign few processors to each tensor, so one large weight would delay all others.
    Tensors are split in memory order, which for convolutions is not the order of their axes.
    """
    size = min(most, max(1024, -(-sum(tensor.numel() for tensor in tensors) // count)))
    return [piece for tensor in tensors for piece in _flat(tensor).split(size)]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))
