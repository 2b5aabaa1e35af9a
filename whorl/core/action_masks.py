"""Action masks: which discrete choices an environment allows, as one flat row of booleans.

The row covers the discrete parts of the action space in the order of the space (keys of a Dict as the space lists them,
entries of a Tuple by index): n entries for Discrete(n), sum(nvec) for MultiDiscrete(nvec), and two per bit (0, then 1)
for MultiBinary. Box parts have none. Environments may give that row, or the nested form that Gymnasium's
`space.sample(mask)` reads. Nothing here imports torch, because environment workers use it.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from whorl.core.errors import WhorlError

Choices: TypeAlias = Any
"""How many options each discrete choice of an action space has: an int (Discrete), a tuple of ints (MultiDiscrete and
MultiBinary; empty for Box), or a dict (Dict) or list (Tuple) of these."""


def mask_size(choices: Choices) -> int:
    """Number of entries of the flat mask; 0 where nothing is discrete."""
    if isinstance(choices, int):
        return choices
    if isinstance(choices, tuple):
        return sum(choices)
    return sum(mask_size(part) for part in _parts(choices).values())


def flatten_mask(choices: Choices, mask: Any, batch_dims: int = 0) -> np.ndarray:
    """The flat mask [..., mask_size] of a flat or nested one; None, for a part or the whole, allows everything.

    The first `batch_dims` axes of every array are kept. Nested masks are dicts for Dict, tuples for Tuple, a tuple with
    an array per choice for MultiDiscrete, and for MultiBinary an array of its shape (0 or 1: fixed, 2: free).
    """
    size = mask_size(choices)
    if mask is None or size == 0:
        return np.ones((1,) * batch_dims + (size,), bool)
    if not _is_nested(mask):
        return _flat(choices, mask, batch_dims)
    if isinstance(choices, (int, tuple)):
        rows = [_rows(part, batch_dims) for part in _leaves(mask)]
        return _flat(choices, np.concatenate(rows, -1), batch_dims)
    parts, given = _parts(choices), dict(mask) if isinstance(mask, Mapping) else dict(enumerate(mask))
    if not given.keys() <= parts.keys():
        raise WhorlError(f"the action mask has parts {list(given)}; the action space has {list(parts)}")
    rows = [flatten_mask(part, given.get(key), batch_dims) for key, part in parts.items()]
    leading = np.broadcast_shapes(*(row.shape[:-1] for row in rows))
    return np.concatenate([np.broadcast_to(row, (*leading, row.shape[-1])) for row in rows], -1)


def _flat(choices: Choices, mask: Any, batch_dims: int) -> np.ndarray:
    rows, size = _rows(mask, batch_dims), mask_size(choices)
    if rows.shape[-1] == size:
        return rows != 0
    if isinstance(choices, tuple) and set(choices) == {2} and rows.shape[-1] == len(choices):
        return np.stack((rows != 1, rows != 0), -1).reshape(*rows.shape[:-1], size)
    raise WhorlError(
        f"the action mask has {rows.shape[-1]} entries, but the discrete choices {choices} need {size}; "
        "give one flat array in the order of the action space, or a dict or tuple of arrays like it"
    )


def _rows(mask: Any, batch_dims: int) -> np.ndarray:
    array = mask.cpu().numpy() if hasattr(mask, "cpu") else np.asarray(mask)
    return array.reshape(*array.shape[: min(batch_dims, array.ndim - 1)], -1) if array.ndim else array[None]


def _is_nested(mask: Any) -> bool:
    return isinstance(mask, Mapping) or (
        isinstance(mask, (tuple, list)) and not all(np.isscalar(part) for part in mask)
    )


def _leaves(mask: Any) -> list[Any]:
    return [leaf for part in mask for leaf in _leaves(part)] if _is_nested(mask) else [mask]


def _parts(choices: Choices) -> dict[Any, Choices]:
    return choices if isinstance(choices, dict) else dict(enumerate(choices))
