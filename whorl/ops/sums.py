"""Sums of groups, added up in the same order every time."""

import torch
from torch import Tensor


def sums_by(index: Tensor, values: Tensor, count: int) -> Tensor:
    """The sum of `values` [..., N] for each value of `index` [..., N] below `count`: [..., count].

    `index_add_` and `scatter_add_` add in varying order on a GPU, so that a run could not be repeated bit for bit.
    """
    groups = torch.arange(count, device=index.device).unsqueeze(-1)
    return torch.where(index.unsqueeze(-2) == groups, values.unsqueeze(-2), 0.0).sum(-1)
