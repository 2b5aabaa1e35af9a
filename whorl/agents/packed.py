"""The parameters of one optimizer in one buffer, with their gradients and moments: one operation steps them all."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.hardware import acts_as_on_gpu

LARGEST = 2**18
"""parameters up to which packing is worth it: for larger networks, arithmetic costs more than operations"""


class Packed:
    """Buffers that hold everything the optimizer's step reads; parameters and their state become views of them.

    Args:
        state: of each parameter, tensors of its shape and the number of steps.
        moments: names of those tensors.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], state: Sequence[dict[str, Any]], moments: Sequence[str]
    ) -> None:
        self._shapes = [p.shape for p in parameters]
        self.values = _joined(p.detach() for p in parameters)
        self.gradient = torch.zeros_like(self.values)
        self.gradients = self.views(self.gradient)
        """of each parameter, as views"""
        self.moments = [_joined(one[key] for one in state) for key in moments]
        self.steps = torch.stack([one["step"] for one in state])
        for parameter, value in zip(parameters, self.views(self.values)):
            parameter.data = value
        views = zip(*(self.views(moment) for moment in self.moments), self.steps.unbind())
        for one, parts in zip(state, views):
            one.update(zip((*moments, "step"), parts))

    def views(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """The part of each parameter in a buffer."""
        parts = buffer.split([shape.numel() for shape in self._shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, self._shapes))

    def gather(self, gradients: Sequence[Tensor]) -> None:
        """Take over gradients that are elsewhere."""
        if gradients[0] is not self.gradients[0]:
            # `split` returns views that older versions of torch can't write to outside of no_grad.
            with torch.no_grad():
                torch._foreach_copy_(self.gradients, tuple(gradients))


def fits(parameters: Sequence[nn.Parameter], others: Iterable[nn.Parameter]) -> bool:
    """Whether parameters may be packed: small ones on a CPU that belong to no other optimizer."""
    own = {id(p) for p in parameters}
    alone = len(own) == len(parameters) > 1 and own.isdisjoint(id(p) for p in others)
    kind = all(
        p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad
        for p in parameters
    )
    small = sum(p.numel() for p in parameters) <= LARGEST
    return alone and kind and small and not acts_as_on_gpu()


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
