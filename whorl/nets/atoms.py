"""Critics that predict the distribution of the return on a fixed grid of atoms (Bellemare et al. 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.data.batch import Batch
from whorl.ops.transforms import categorical_projection, sorted_projection
from whorl.settings.schema import Range

CLIPPED = "q/clipped"
"""the metric for the share of the target distribution that lies outside the atoms"""
MUCH = 0.1
"""the share above which a warning says so"""


@dataclass(frozen=True)
class AtomsConfig:
    """Settings of critics that predict a distribution of the return."""

    n_atoms: Annotated[int, Range(0, 100_000)] = 0
    """atoms of the distribution of the return that critics predict (FastTD3: 101); 0: critics predict its mean"""
    v_min: Annotated[float, Range(-(10**9), 10**9)] = -10.0
    """with n_atoms: lowest atom"""
    v_max: Annotated[float, Range(-(10**9), 10**9)] = 10.0
    """with n_atoms: highest atom"""


def advice_on_clipping(cfg: Any, metrics: Mapping[str, float]) -> str | None:
    """A sentence if much of the targets lies outside the atoms."""
    share = metrics.get(CLIPPED, 0.0)
    if share <= MUCH:
        return None
    return (
        f"{share:.0%} of the probability of the targets is outside [v_min, v_max] = [{cfg.v_min:g}, {cfg.v_max:g}] "
        "and is clipped, so values are wrong; set v_min and v_max to the lowest and highest discounted return"
    )


class Atoms(nn.Module):
    """Distributions of the return on `n_atoms` values, evenly from v_min to v_max."""

    atoms: Tensor
    projection = staticmethod(categorical_projection)

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        if not cfg.v_min < cfg.v_max:
            raise ConfigError(
                f"v_min is {cfg.v_min:g} and v_max {cfg.v_max:g}; v_min must be less than v_max"
            )
        self.register_buffer("atoms", torch.linspace(cfg.v_min, cfg.v_max, cfg.n_atoms), persistent=False)
        # A rounding error beyond an edge, which is where a return of r / (1 - gamma) lies, is not outside.
        half = (cfg.v_max - cfg.v_min) / 2
        self.middle, self.reach = cfg.v_min + half, half * (1 + 1e-4)

    def mean(self, logits: Tensor) -> Tensor:
        """Q = sum_k z_k p_k of logits [..., atoms]."""
        return (logits.softmax(-1) * self.atoms).sum(-1)

    @torch.no_grad()
    def project(self, prob: Tensor, location: Tensor) -> tuple[Tensor, Tensor]:
        """m [..., atoms] of the mass `prob` at `location`, both [..., atoms], and how much of it [...] lies outside the
        atoms and is moved to an edge."""
        beyond = location.sub(self.middle).abs() > self.reach
        return self.projection(prob, location, self.atoms), (prob * beyond).sum(-1)

    def metrics(self, outside: Tensor, batch: Batch) -> dict[str, Tensor]:
        """How much of the targets was clipped."""
        return {CLIPPED: (outside * batch.share).mean()}


class SortedAtoms(Atoms):
    """The same for locations in ascending order, with a projection that is cheaper for large batches."""

    projection = staticmethod(sorted_projection)


class ReturnAtoms(nn.Module):
    """Output of an ensemble of critics per row: a value, or with `n_atoms` the logits of a distribution.

    target:  m = projection onto the atoms z of (r + discount * z with p'(s', a')), where p' is that of the critic with
             the lowest mean: one whole distribution per row, as clipped double Q-learning takes one whole value
    loss:    -sum_k m_k log p_k(s, a)
    """

    def __init__(self, cfg: AtomsConfig) -> None:
        super().__init__()
        self.on = cfg.n_atoms > 0
        """whether critics predict a distribution"""
        self.outputs: tuple[int, ...] = (cfg.n_atoms,) if self.on else ()
        """shape of a critic's answer per row"""
        if not self.on:
            return
        if cfg.n_atoms < 2:
            raise ConfigError("n_atoms is 1; use at least 2, or 0 for critics that predict the mean")
        self.grid = SortedAtoms(cfg)

    def mean(self, answers: Tensor) -> Tensor:
        """Q values of answers [..., atoms]; without atoms, the answers themselves."""
        return self.grid.mean(answers) if self.on else answers

    @torch.no_grad()
    def lowest(self, logits: Tensor) -> Tensor:
        """Probabilities [..., atoms] of the critic with the lowest mean in each row; logits [critics, ..., atoms]."""
        index = self.mean(logits).argmin(0, keepdim=True).unsqueeze(-1)
        return logits.gather(0, index.expand(1, *logits.shape[1:]))[0].softmax(-1)

    @torch.no_grad()
    def target(self, prob: Tensor, reward: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        """m [..., atoms], and the probability [...] of returns that lie outside the atoms and are moved to an edge."""
        location = reward.unsqueeze(-1) + discount.unsqueeze(-1) * self.grid.atoms  # ascending: discount >= 0
        return self.grid.project(prob, location)

    def losses(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropies of logits [critics, ..., atoms] with m [..., atoms], and KL(m || p): both [critics, ...]."""
        loss = -(target * logits.log_softmax(-1)).sum(-1)
        divergence = loss.detach() + torch.special.xlogy(target, target).sum(-1)
        return loss, divergence.clamp(min=0)  # rounding may make it slightly negative

    def metrics(self, outside: Tensor, batch: Batch) -> dict[str, Tensor]:
        """How much of the targets was clipped."""
        return self.grid.metrics(outside, batch)
