"""Comparison of saved states."""

from typing import Any

import torch


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Nested containers of tensors and plain values are equal in every bit; nan equals nan."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other)):
            assert_same(*pair, f"{path}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), path
    else:
        assert one == other or one != one, path
