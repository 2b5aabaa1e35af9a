"""Tensors in memory that processes share."""

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.tree import Tree
from whorl.distributed.shared_memory import Block, Segment


def padded(tensor: Tensor) -> int:
    """Bytes that a tensor takes among others, each aligned to eight."""
    return -(-tensor.numel() * tensor.element_size() // 8) * 8


def views(raw: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Places for tensors like these in one block of bytes."""
    found, start = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        found.append(raw[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += padded(tensor)
    return found


def array_of(leaf: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an array for a tensor like this."""
    return tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")


def blocks_of(layout: Tree, buffers: int) -> list[Block]:
    """Places for so many copies of a tree of tensors in one segment."""
    return [
        Block(f"{buffer}.{path}", *array_of(leaf))
        for buffer in range(buffers)
        for path, leaf in tree.items(layout)
    ]


def buffers_of(layout: Tree, segment: Segment, buffers: int) -> list[Tree]:
    """Those copies, as trees of tensors."""
    return [nested(layout, segment.arrays, f"{buffer}") for buffer in range(buffers)]


def array(tensor: Tensor) -> np.ndarray:
    """As it travels."""
    return np.asarray(tensor.detach().cpu().numpy(), order="C")  # numbers stay numbers


def tensor_of(array: np.ndarray) -> Tensor:
    """A copy of what has travelled: what Ray hands out lies in its store, and is read-only."""
    return torch.from_numpy(array.copy())


def nested(like: Tree, arrays: dict[str, np.ndarray], prefix: str = "") -> Tree:
    """Shared arrays, named by path, as tensors in the shape of the tree `like`."""
    if isinstance(like, dict):
        return {k: nested(v, arrays, f"{prefix}.{k}" if prefix else k) for k, v in like.items()}
    return torch.from_numpy(arrays[prefix])
