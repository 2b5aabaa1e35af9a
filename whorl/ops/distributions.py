"""Action distributions in closed form, safe inside a captured graph.

Randomness is an argument: `noise` draws what `sample` needs, so that a loss is a pure function of tensors. Shapes are
batched: continuous actions are float [..., size], discrete ones int64 [...],
multi-discrete int64 [..., dimensions]; log-probabilities, entropies and divergences are [...].
"""

from math import log, pi
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.core.tree import Tree
from whorl.ops.drawn import Drawn

MASKED_LOGIT = -1e9
"""So far below any other logit that the probability is exactly 0, but finite, so that 0 * log 0 is 0"""


class Distribution(Protocol):
    """The methods of every distribution over actions."""

    def noise(self, generator: torch.Generator | None = None) -> Tree:
        """Random numbers for one `sample`, on the device of the parameters."""

    def sample(self, noise: Tree) -> Tree:
        """The action for given random numbers; differentiable if actions are continuous."""

    def mode(self) -> Tree:
        """The greedy action."""

    def log_prob(self, action: Tree) -> Tensor:
        """Log-probability of an action (log-density if it is continuous)."""

    def entropy(self, noise: Tree = None) -> Tensor:
        """Entropy in nats; without a closed form, an estimate from `noise`."""

    def kl(self, other: "Distribution") -> Tensor:
        """KL(self || other) for two distributions of the same class."""

    def sample_with_log_prob(self, noise: Tree) -> tuple[Tree, Tensor]:
        """An action and its log-probability."""
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob_by_kind(self, action: Tree) -> Tensor:
        """`log_prob`; of mixed actions, that of the choices and of the continuous dimensions apart [2, ...]."""
        return self.log_prob(action)


class Normal(Distribution):
    """Independent Gaussians. `mean` [..., size]; `log_std` has the same shape or broadcasts to it.

    Args:
        counted: 1 for dimensions that count and 0 for others [..., size]; None: all count.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, counted: Tensor | None = None) -> None:
        if mean.dim() == 0 or log_std.dim() == 0 or log_std.shape[-1] not in (1, mean.shape[-1]):
            raise ValueError(
                f"mean has shape {tuple(mean.shape)} and log_std {tuple(log_std.shape)}; "
                "they need [..., size] and [size] or [..., size]"
            )
        self.mean = mean
        self.log_std = log_std.expand_as(mean)
        self.counted = counted

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.randn(
            self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )

    def sample(self, noise: Tensor) -> Tensor:
        _check_last("noise", noise, self.mean)
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """-1/2 * sum_i (((a_i - mu_i) / sigma_i)^2 + 2 * log sigma_i + log(2 * pi))"""
        _check_last("action", action, self.mean)
        return self._log_prob_of_noise((action - self.mean) * (-self.log_std).exp())

    def entropy(self, noise: Tree = None) -> Tensor:
        """sum_i log sigma_i + 1/2 * log(2 * pi * e)"""
        return self._sum(self.log_std) + 0.5 * self._size * (log(2 * pi) + 1)

    def kl(self, other: Distribution) -> Tensor:
        """sum_i log(sigma'_i / sigma_i) + (sigma_i^2 + (mu_i - mu'_i)^2) / (2 * sigma'_i^2) - 1/2"""
        if not isinstance(other, Normal):
            raise unlike(self, other)
        log_scale = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return self._sum(0.5 * ((2 * log_scale).exp() + distance.square() - 1) - log_scale)

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.sample(noise), self._log_prob_of_noise(noise)

    def _log_prob_of_noise(self, noise: Tensor) -> Tensor:
        return -self._sum(0.5 * noise.square() + self.log_std) - 0.5 * self._size * log(2 * pi)

    def _sum(self, each: Tensor) -> Tensor:
        return (each if self.counted is None else each * self.counted).sum(-1)

    @property
    def _size(self) -> Tensor | int:
        """Number of dimensions that count."""
        return self.mean.shape[-1] if self.counted is None else self.counted.sum(-1)


class TanhNormal(Distribution):
    """tanh of independent Gaussians: actions in [-1, 1] (Haarnoja et al. 2018, arXiv:1801.01290, app. C).

    Dimensions that do not count are 0 in samples and have no density.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, counted: Tensor | None = None) -> None:
        self.before = Normal(mean, log_std, counted)
        """the Gaussian before the tanh"""

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        return self.before.noise(generator)

    def sample(self, noise: Tensor) -> Tensor:
        return self._action(self.before.sample(noise))

    def mode(self) -> Tensor:
        """tanh of the mean: the median, which is used as the greedy action because the mode has no closed form."""
        return self._action(self.before.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of a stored action; |a| is limited to 1 - eps, so that atanh stays finite."""
        limit = 1 - torch.finfo(action.dtype).eps
        before = action.clamp(-limit, limit).atanh()
        return self.before.log_prob(before) - _log_tanh_slope(before, self.before.counted)

    def entropy(self, noise: Tree = None) -> Tensor:
        """-log pi(a) of the action for `noise`, an estimate: there is no closed form."""
        if noise is None:
            raise ValueError(
                "TanhNormal has no closed-form entropy; pass noise, for instance entropy(d.noise())"
            )
        return -self.sample_with_log_prob(noise)[1]

    def kl(self, other: Distribution) -> Tensor:
        """Exact: an invertible map of both distributions does not change their KL divergence."""
        if not isinstance(other, TanhNormal):
            raise unlike(self, other)
        return self.before.kl(other.before)

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Exact for any noise, because the value before the tanh is known."""
        before, log_prob = self.before.sample_with_log_prob(noise)
        return self._action(before), log_prob - _log_tanh_slope(before, self.before.counted)

    def _action(self, before: Tensor) -> Tensor:
        counted = self.before.counted
        return before.tanh() if counted is None else before.tanh() * counted

    def drawn(self, noise: Tensor | None = None) -> Drawn:
        """The action for `noise`, by default the mode, and its log-density."""
        return Drawn(
            *self.sample_with_log_prob(torch.zeros_like(self.before.mean) if noise is None else noise)
        )


def gumbel(uniform: Tensor) -> Tensor:
    """-log(-log u): what is added to logits so that their argmax is a sample (Gumbel 1954)."""
    # At u = 0 or 1 the perturbation is infinite, and a masked action could be chosen.
    info = torch.finfo(uniform.dtype)
    return -(-uniform.clamp(info.tiny, 1 - info.eps / 2).log()).log()


class Categorical(Distribution):
    """One of n actions. `logits` [..., n]; `mask`, of that shape or broadcast, is 0 for forbidden actions."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if logits.dim() == 0:
            raise ValueError("logits is a scalar; it needs [..., n]")
        self.log_probs = _masked(logits, mask).log_softmax(-1)
        """[..., n]"""

    @property
    def probs(self) -> Tensor:
        """[..., n]"""
        return self.log_probs.exp()

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Uniform on [0, 1), one number per action."""
        like = self.log_probs
        return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    def sample(self, noise: Tensor) -> Tensor:
        """argmax_i logit_i - log(-log u_i) (Gumbel 1954)"""
        _check_last("noise", noise, self.log_probs)
        return (self.log_probs + gumbel(noise)).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        if action.shape != self.log_probs.shape[:-1]:
            raise ValueError(
                f"action has shape {tuple(action.shape)}; it needs {tuple(self.log_probs.shape[:-1])}, "
                f"one integer for each row of logits {tuple(self.log_probs.shape)}"
            )
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, noise: Tree = None) -> Tensor:
        """-sum_i p_i * log p_i"""
        return -(self.probs * self.log_probs).sum(-1)

    def kl(self, other: Distribution) -> Tensor:
        """sum_i p_i * (log p_i - log p'_i)"""
        if not isinstance(other, Categorical):
            raise unlike(self, other)
        return (self.probs * (self.log_probs - other.log_probs)).sum(-1)

    def drawn(self, noise: Tensor | None = None) -> Drawn:
        """All probabilities; nothing is sampled."""
        return Drawn(None, None, self.log_probs, self.probs)


class MultiCategorical(Distribution):
    """Independent categoricals, dimension i with `nvec[i]` actions. `logits` and `mask` are [..., sum(nvec)].

    Stored as one categorical over [..., dimensions, max(nvec)] whose padding is masked.
    """

    def __init__(self, logits: Tensor, nvec: tuple[int, ...], mask: Tensor | None = None) -> None:
        if logits.dim() == 0 or logits.shape[-1] != sum(nvec):
            raise ValueError(
                f"logits has shape {tuple(logits.shape)}; it needs [..., {sum(nvec)}] for nvec {nvec}"
            )
        widest = max(nvec)
        parts = _masked(logits, mask).split(nvec, -1)
        # Below masked options: if none is allowed, padding must not be taken either.
        floor = 2 * _masked_logit(logits.dtype)
        self.each = Categorical(
            torch.stack([F.pad(part, (0, widest - part.shape[-1]), value=floor) for part in parts], -2)
        )
        """all dimensions as one batch"""

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        return self.each.noise(generator)

    def sample(self, noise: Tensor) -> Tensor:
        return self.each.sample(noise)

    def mode(self) -> Tensor:
        return self.each.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        return self.each.log_prob(action).sum(-1)

    def entropy(self, noise: Tree = None) -> Tensor:
        return self.each.entropy().sum(-1)

    def kl(self, other: Distribution) -> Tensor:
        if not isinstance(other, MultiCategorical):
            raise unlike(self, other)
        return self.each.kl(other.each).sum(-1)


class Joint(Distribution):
    """The product of independent distributions over the branches of an action tree.

    Log-probability, entropy and KL divergence are sums over `parts`; `parts[name]` gives those of one branch, which may
    be a `Joint` itself.
    """

    def __init__(self, parts: dict[str, Distribution]) -> None:
        if not parts:
            raise ValueError("a joint distribution needs at least one part, but parts is empty")
        self.parts = parts

    def noise(self, generator: torch.Generator | None = None) -> dict[str, Tree]:
        return {key: part.noise(generator) for key, part in self.parts.items()}

    def sample(self, noise: dict[str, Tree]) -> dict[str, Tree]:
        return {key: part.sample(noise[key]) for key, part in self.parts.items()}

    def mode(self) -> dict[str, Tree]:
        return {key: part.mode() for key, part in self.parts.items()}

    def log_prob(self, action: dict[str, Tree]) -> Tensor:
        return _total([part.log_prob(action[key]) for key, part in self.parts.items()])

    def entropy(self, noise: Tree = None) -> Tensor:
        return _total(
            [part.entropy(None if noise is None else noise[key]) for key, part in self.parts.items()]
        )

    def kl(self, other: Distribution) -> Tensor:
        if not isinstance(other, Joint):
            raise unlike(self, other)
        return _total([part.kl(other.parts[key]) for key, part in self.parts.items()])

    def sample_with_log_prob(self, noise: dict[str, Tree]) -> tuple[dict[str, Tree], Tensor]:
        drawn = {key: part.sample_with_log_prob(noise[key]) for key, part in self.parts.items()}
        return {key: action for key, (action, _) in drawn.items()}, _total([p for _, p in drawn.values()])


def _log_tanh_slope(before: Tensor, counted: Tensor | None) -> Tensor:
    """sum_i log(1 - tanh(u_i)^2) = sum_i 2 * (log 2 - u_i - softplus(-2 * u_i)), finite for every u."""
    each = log(2) - before - F.softplus(-2 * before)
    return 2 * (each if counted is None else each * counted).sum(-1)


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    _check_last("mask", mask, logits)
    return torch.where(mask > 0, logits, _masked_logit(logits.dtype))


def _masked_logit(dtype: torch.dtype) -> float:
    return max(MASKED_LOGIT, torch.finfo(dtype).min / 2)


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _check_last(name: str, given: Tensor, like: Tensor) -> None:
    if given.dim() == 0 or given.shape[-1] != like.shape[-1]:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; "
            f"its last axis must be {like.shape[-1]}, as in {tuple(like.shape)}"
        )


def unlike(one: Distribution, other: Distribution) -> ValueError:
    """The error of a KL divergence between two classes."""
    return ValueError(
        f"no KL divergence from {type(one).__name__} to {type(other).__name__}; both must be of the same class"
    )
