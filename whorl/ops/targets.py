"""Target networks: in-place updates of one module from another of the same structure."""

import torch
from torch import Tensor, nn


@torch.no_grad()
def polyak_(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- (1 - tau) * target + tau * online for parameters (Lillicrap et al. 2016, arXiv:1509.02971).

    Buffers (running statistics, counters) are copied: an average of them means nothing.
    """
    into, source = _pairs(list(target.parameters()), list(online.parameters()))
    if into:
        torch._foreach_lerp_(into, source, tau)
    _copy_buffers_(target, online)


@torch.no_grad()
def hard_update_(target: nn.Module, online: nn.Module) -> None:
    """target <- online: parameters and buffers."""
    into, source = _pairs(list(target.parameters()), list(online.parameters()))
    if into:
        torch._foreach_copy_(into, source)
    _copy_buffers_(target, online)


def _copy_buffers_(target: nn.Module, online: nn.Module) -> None:
    into, source = _pairs(list(target.buffers()), list(online.buffers()))
    if into:
        torch._foreach_copy_(into, source)


def _pairs(into: list[Tensor], source: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    have, want = [tuple(t.shape) for t in into], [tuple(t.shape) for t in source]
    if have != want:
        raise ValueError(f"target and online differ in structure: shapes {have} against {want}")
    return into, source
