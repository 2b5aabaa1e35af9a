"""An action whose continuous dimensions are sampled while its discrete choices keep all their probabilities."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """Sampled actions of a soft policy with their log-probabilities; expectations replace samples where possible."""

    reads: Tensor | None
    """continuous dimensions [..., size]; [..., choices, columns], after a code of the choice, where they depend on it;
    None: there are none"""
    log_density: Tensor | None = None
    """log-density of the continuous dimensions: [...], or [..., choices] where they depend on the choice"""
    log_probs: Tensor | None = None
    """log-probabilities of the discrete choices [..., choices]; None: there are none"""
    probs: Tensor | None = None
    """their probabilities [..., choices]"""
    counts: bool = True
    """whether the log-probability of the choices counts: false if they are greedy"""

    def mean(self, values: Tensor) -> Tensor:
        """The expectation over the choices of values [..., choices]; without choices `values` itself."""
        return values if self.probs is None else (self.probs * values).sum(-1)

    def first(self, count: int) -> "Drawn":
        """The same of the first `count` rows."""
        parts = {name: getattr(self, name) for name in ("reads", "log_density", "log_probs", "probs")}
        return replace(self, **{name: part[:count] for name, part in parts.items() if part is not None})

    @property
    def log_prob(self) -> Tensor:
        """E[log pi] over the choices: [...] of the only kind of action, or [2, ...] of choices and continuous ones."""
        found = []
        if self.log_probs is not None and self.counts:
            found.append(self.mean(self.log_probs))
        if self.log_density is not None:
            each = self.log_probs is not None and self.log_density.dim() == self.log_probs.dim()
            found.append(self.mean(self.log_density) if each else self.log_density)
        return found[0] if len(found) == 1 else torch.stack(found)

    @property
    def log_prob_each(self) -> Tensor:
        """log pi for each choice [..., choices], of one kind of action or, as `log_prob`, of two [2, ..., choices]."""
        if self.log_probs is None:
            assert self.log_density is not None
            return self.log_density
        found = [self.log_probs] if self.counts else []
        if self.log_density is not None:
            each = self.log_density.dim() == self.log_probs.dim()
            density = self.log_density if each else self.log_density.unsqueeze(-1)
            found.append(density.expand_as(self.log_probs))
        return found[0] if len(found) == 1 else torch.stack(found)
