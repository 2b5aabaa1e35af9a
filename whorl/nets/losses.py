"""Losses that settings can name: elementwise functions of (value, target)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.registry import Part, construct, register, resolve
from whorl.ops import losses


def huber(value: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Quadratic up to an error of `delta`, then linear (Huber 1964)."""
    if not delta > 0:
        raise ConfigError(f"delta of the loss 'huber' is {delta!r}; it must be above 0")
    return losses.huber(value - target, delta)


register("loss", "squared", losses.squared)
register("loss", "huber", huber)


def value_loss(part: Part) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that `part` names: a function with its options, or an instance of a class."""
    found = resolve("loss", part.name)
    loss = construct("loss", part) if isinstance(found, type) else partial(found, **part.options)
    example = torch.zeros(2, 3)
    try:
        error = loss(example, example)
    except TypeError as problem:
        raise ConfigError(f"loss {part.name!r} cannot be called with (value, target): {problem}") from None
    if not isinstance(error, Tensor) or error.shape != example.shape:
        raise ConfigError(
            f"loss {part.name!r} must return one value per element; torch's losses need reduction: none"
        )
    return loss
