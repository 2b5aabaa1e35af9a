"""Schedules: factors over a run as functions of its progress, a 0-dim tensor from 0 to 1. Safe in CUDA graphs."""

import inspect
from collections.abc import Callable
from functools import partial
from math import pi

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register, resolve


def constant(progress: Tensor) -> Tensor:
    """1 throughout."""
    return torch.ones_like(progress)


def linear(progress: Tensor, end: float = 0.0) -> Tensor:
    """From 1 to `end`."""
    return 1 - (1 - end) * progress if end else 1 - progress


def cosine(progress: Tensor, end: float = 0.0) -> Tensor:
    """From 1 to `end` along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""
    return end + (1 - end) * 0.5 * (1 + torch.cos(pi * progress))


def warmup(progress: Tensor, fraction: float = 0.1, then: str | dict[str, object] = "constant") -> Tensor:
    """From 0 to 1 over the first `fraction` of the run, and the schedule `then` over the rest."""
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction is {fraction!r}; it must be between 0 and 1")
    rest = ((progress - fraction) / (1 - fraction)).clamp(min=0)
    return (progress / fraction).clamp(max=1) * schedule(Part.of(then))(rest)


for function in (constant, linear, cosine, warmup):
    register("schedule", function.__name__, function)


def schedule(part: Part) -> Callable[[Tensor], Tensor]:
    """The factor as a function of progress; a registered schedule is such a function, with the part's options."""
    function = resolve("schedule", part.name)
    problem = f"schedule {part.name!r} with {dict(part.options)!r}"
    try:
        inspect.signature(function).bind(torch.zeros(()), **part.options)
        found = function(torch.zeros(()), **part.options)
    except ConfigError as error:
        raise ConfigError(f"{problem}: {error}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{problem} can't be used: {error}") from None
    if not isinstance(found, Tensor) or found.shape != ():
        raise ConfigError(
            f"{problem} returns {found!r}; it must return a tensor of one number, made from progress"
        )
    return partial(function, **part.options)
