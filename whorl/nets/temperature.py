"""The weight of entropy in soft actor-critics."""

from math import log

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """alpha = exp(log_alpha): positive whatever a gradient does to it."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        # exp(-inf) is 0: a temperature of zero is allowed where it is not tuned.
        self.log_alpha = nn.Parameter(torch.tensor(log(alpha) if alpha > 0 else float("-inf")))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()
