"""Losses that settings can name: elementwise functions of (value, target)."""

from collections.abc import Callable
from functools import partial
from typing import Any

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


def cross_entropy(log_prob: Tensor, target: Tensor) -> Tensor:
    """-sum_k m_k log p_k of log-probabilities and a distribution [..., atoms]: [...]."""
    return -(target * log_prob).sum(-1)


register("distribution_loss", "cross_entropy", cross_entropy)


def distribution_loss(part: Part) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss between distributions that `part` names: a function with its options, or an instance of a class."""
    loss, found = _called("distribution_loss", part, "(log_prob, target)", torch.full((2, 3), 1 / 3))
    if not isinstance(found, Tensor) or found.shape != (2,):
        raise ConfigError(f"loss {part.name!r} must return one value per row: [...] for [..., atoms]")
    return loss


def quantile_element_loss(part: Part, kappa: float) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The loss of pairs of quantiles that `part` names; None: the Huber loss with the threshold `kappa`."""
    if part.name != "huber":
        if kappa != 1.0:
            raise ConfigError(f"kappa is {kappa:g}, but loss {part.name!r} has no threshold; leave kappa out")
        return value_loss(part)
    if part.options:
        raise ConfigError(
            "the threshold of the Huber loss between quantiles is kappa; leave the options of loss out"
        )
    return None


def _called(kind: str, part: Part, arguments: str, example: Tensor) -> tuple[Callable[..., Tensor], Any]:
    """A loss, and what it returns for an example."""
    found = resolve(kind, part.name)
    loss = construct(kind, part) if isinstance(found, type) else partial(found, **part.options)
    try:
        return loss, loss(example, example)
    except TypeError as problem:
        raise ConfigError(f"loss {part.name!r} cannot be called with {arguments}: {problem}") from None


def value_loss(part: Part) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that `part` names: a function with its options, or an instance of a class."""
    loss, error = _called("loss", part, "(value, target)", torch.zeros(2, 3))
    if not isinstance(error, Tensor) or error.shape != (2, 3):
        raise ConfigError(
            f"loss {part.name!r} must return one value per element; torch's losses need reduction: none"
        )
    return loss
