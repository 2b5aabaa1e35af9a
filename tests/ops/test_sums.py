"""Sums of groups."""

import torch

from whorl.ops.sums import sums_by


def test_each_group_has_its_own_sum() -> None:
    index = torch.tensor([[0, 2, 2, 0], [1, 1, 1, 1]])
    values = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 3.0, 4.0]])
    assert sums_by(index, values, 3).tolist() == [[9.0, 0.0, 6.0], [0.0, 10.0, 0.0]]
