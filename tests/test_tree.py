"""Trees of tensors: what is a branch and what is a leaf."""

from types import MappingProxyType
from typing import Any

import pytest
import torch

from whorl.core import tree


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_every_mapping_is_a_branch(kind: Any) -> None:
    nested = kind({"a": torch.ones(2), "b": kind({"c": torch.zeros(3)})})
    assert [len(leaf) for leaf in tree.leaves(nested)] == [2, 3]
    assert [path for path, _ in tree.items(nested)] == ["a", "b.c"]
    assert tree.map(len, nested) == {"a": 2, "b": {"c": 3}}
    assert len(tree.first(nested)) == 2


@pytest.mark.parametrize("leaf", [torch.ones(2), (1, 2), [1, 2]])
def test_tensors_tuples_and_lists_are_leaves(leaf: Any) -> None:
    assert tree.map(len, {"a": leaf}) == {"a": 2}


def test_only_copies_of_pinned_memory_to_a_gpu_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda leaf, device, non_blocking: asked.append(non_blocking))
    for pinned in (True, False):
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda leaf: pinned)  # noqa: B023
        for device in ("cpu", torch.device("cpu"), torch.device("cuda", 0)):
            tree.to(torch.zeros(1), device)
    assert asked == [False, False, True, False, False, False]
