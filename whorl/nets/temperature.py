"""The entropy coefficient of soft actor-critics."""

from math import log

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part


class Temperature(nn.Module):
    """alpha = exp(log_alpha), which is always positive."""

    def __init__(self, alpha: float, tuned: bool) -> None:
        super().__init__()
        if tuned and not alpha > 0:
            raise ConfigError(
                f"alpha is {alpha:g}, which cannot be tuned; use a value above 0, or set tune_alpha to false"
            )
        self.log_alpha = nn.Parameter(torch.tensor(log(alpha) if alpha > 0 else float("-inf")))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


def undecayed(optimizer: Part) -> Part:
    """An optimizer without weight decay, which would pull alpha towards 1."""
    return Part(optimizer.name, {k: v for k, v in optimizer.options.items() if k != "weight_decay"})
