"""Distributions over action trees for soft actor-critics: independent choices, and squashed Gaussians."""

import torch
from torch import Tensor

from whorl.core.action_parts import ActionParts
from whorl.core.tree import Tree
from whorl.ops.distributions import Distribution, MultiCategorical, TanhNormal, unlike
from whorl.ops.drawn import Drawn


class Mixed(Distribution):
    """pi(d, c) = pi(d) pi(c), or with `table` pi(d) pi(c|d): independent choices d, squashed Gaussians c.

    Args:
        choices: all discrete choices of the tree; None: there are none.
        continuous: all its continuous dimensions [..., size], with `table` [..., combinations, size]; None: none.
        joint: whether log-probabilities are given for each combination of choices, or for each option of each choice.
        table: all combinations of choices, one-hot [combinations, sum(options)]; c depends on them then. The dimensions
            of c that a combination uses may differ then (`TanhNormal`'s `counted` [combinations, size]).
    """

    def __init__(
        self,
        parts: ActionParts,
        choices: MultiCategorical | None,
        continuous: TanhNormal | None,
        joint: bool = True,
        table: Tensor | None = None,
    ) -> None:
        self.parts, self.choices, self.continuous, self.joint, self.table = (
            parts,
            choices,
            continuous,
            joint,
            table,
        )

    @property
    def each(self) -> list[Tensor]:
        """Log-probabilities [..., n] of the options of each choice."""
        assert self.choices is not None
        found = self.choices.each.log_probs
        return [found[..., number, :n] for number, n in enumerate(self.parts.options)]

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of all combinations [..., combinations]; unless `joint` of all options [..., sum(n)]."""
        if not self.joint:
            return torch.cat(self.each, -1)
        total, *others = self.each
        for part in others:
            total = (total.unsqueeze(-1) + part.unsqueeze(-2)).flatten(-2)
        return total

    def given(self, choices: Tensor | None) -> TanhNormal | None:
        """The continuous dimensions [..., size] where the choices are [..., choices]."""
        if self.table is None or self.continuous is None or choices is None:
            return self.continuous
        before = self.continuous.before
        index = self.parts.combination(choices)[..., None, None]
        index = index.expand(*index.shape[:-1], before.mean.shape[-1])
        counted = before.counted
        return TanhNormal(
            before.mean.gather(-2, index).squeeze(-2),
            before.log_std.gather(-2, index).squeeze(-2),
            None if counted is None else counted[self.parts.combination(choices)],
        )

    def drawn(self, noise: Tensor | None = None) -> Drawn:
        """All probabilities, and continuous dimensions for `noise` [..., size], by default their mode; with `table`
        they are given for every combination, after its code."""
        log_probs = None if self.choices is None else self.log_probs
        probs = None if log_probs is None else log_probs.exp()
        if self.continuous is None:
            return Drawn(None, None, log_probs, probs)
        if noise is not None and self.table is not None:
            noise = noise.unsqueeze(-2)  # the same for every combination
        found = self.continuous.drawn(noise)
        reads, log_density = found.reads, found.log_density
        if self.table is not None and reads is not None:
            reads = torch.cat((self.table.expand(*reads.shape[:-1], self.table.shape[-1]), reads), -1)
        return Drawn(reads, log_density, log_probs, probs)

    def noise(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        found = {} if self.choices is None else {"choices": self.choices.noise(generator)}
        if self.continuous is not None:
            like = self.continuous.before.mean
            like = like if self.table is None else like[..., 0, :]
            found["continuous"] = torch.randn(
                like.shape, generator=generator, dtype=like.dtype, device=like.device
            )
        return found

    def sample(self, noise: dict[str, Tensor]) -> Tree:
        choices = None if self.choices is None else self.choices.sample(noise["choices"])
        continuous = self.given(choices)
        return self.parts.action(
            choices, None if continuous is None else continuous.sample(noise["continuous"])
        )

    def mode(self) -> Tree:
        choices = None if self.choices is None else self.choices.mode()
        continuous = self.given(choices)
        return self.parts.action(choices, None if continuous is None else continuous.mode())

    def log_prob(self, action: Tree) -> Tensor:
        """log pi(d) + log pi(c|d)"""
        found = self.log_prob_by_kind(action)
        return found.sum(0) if self.choices is not None and self.continuous is not None else found

    def log_prob_by_kind(self, action: Tree) -> Tensor:
        choices = None if self.choices is None else self.parts.choices(action)
        continuous, found = self.given(choices), []
        if self.choices is not None and choices is not None:
            found.append(self.choices.log_prob(choices))
        if continuous is not None:
            found.append(continuous.log_prob(self.parts.continuous(action)))
        return found[0] if len(found) == 1 else torch.stack(found)

    def entropy(self, noise: Tree = None) -> Tensor:
        """Exact for the choices, an estimate from `noise` for the continuous dimensions."""
        given = None if noise is None else noise.get("continuous")
        if self.continuous is not None and given is None:
            raise ValueError(
                "squashed Gaussians have no closed-form entropy; pass noise, for instance entropy(d.noise())"
            )
        found = self.drawn(given)
        total = found.log_prob
        both = self.choices is not None and self.continuous is not None
        return -(total.sum(0) if both else total)

    def kl(self, other: Distribution) -> Tensor:
        if not isinstance(other, Mixed):
            raise unlike(self, other)
        found = []
        if self.choices is not None and other.choices is not None:
            found.append(self.choices.kl(other.choices))
        if self.continuous is not None and other.continuous is not None:
            each = self.continuous.kl(other.continuous)
            found.append(each if self.table is None else (self.log_probs.exp() * each).sum(-1))
        return found[0] if len(found) == 1 else found[0] + found[1]
