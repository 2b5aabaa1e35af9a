"""Schedules: factors of a setting as functions of `progress`, the fraction of the training budget that is used up."""

from collections.abc import Callable

from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.registry import Part


def schedule(part: Part) -> Callable[[Tensor], Tensor]:
    """The schedule that `part` names."""
    if part.name != "linear":
        raise ConfigError(f"schedule is {part.name!r}; use constant or linear")
    return lambda progress: 1 - progress
