"""How soft actor-critics treat action spaces: policy head, what critics read and answer, and target entropies.

A tree of actions is a list of discrete choices d and one vector c of continuous dimensions. Nothing is sampled where an
expectation can be taken: critics answer for every combination of choices, c is sampled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from whorl.core import tree
from whorl.core.action_parts import ActionParts, used_parameters
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Continuous, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.actor import SquashedHead, require_bounds
from whorl.nets.layers import Last, linear_last
from whorl.nets.policy import CategoricalHead
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import EntropyConfig, Temperature
from whorl.ops.distributions import Categorical, MultiCategorical, TanhNormal
from whorl.ops.drawn import Drawn
from whorl.ops.mixed import Mixed
from whorl.settings.schema import Fraction, NonNegative, Probability, Range


@dataclass(frozen=True)
class SoftActionsConfig(EntropyConfig):
    """Settings of soft policies over discrete and mixed actions."""

    entropy_ratio: Fraction = 0.5
    """discrete actions: target entropy as a fraction of the uniform policy's entropy"""
    alpha_discrete: Annotated[Literal["same"] | NonNegative, Range(0, 10**6)] = "same"
    """mixed actions: entropy coefficient of the discrete choices, initial or fixed as alpha; same: that of alpha"""
    action_coupling: Literal["independent", "conditioned"] = "independent"
    """mixed actions: whether the continuous part is independent of the discrete choices, pi(d) pi(c), or conditioned
    on them, pi(d) pi(c|d)"""
    joint_choices: Annotated[int, Range(1, 10**6)] = 256
    """several discrete choices: critics have one value for each combination up to this number of combinations; beyond
    it, a value is the sum of one for each choice"""
    discrete_dqn_like: bool = False
    """mixed actions: the discrete choices are epsilon-greedy on the critics' values and have no entropy"""
    discrete_dqn_epsilon: Probability = 0.2
    """with discrete_dqn_like: probability of random choices"""


class MixedHead(nn.Module):
    """Independent choices, and squashed Gaussians, one for each combination of choices with `conditioned`.

    Args:
        used: the dimensions that each combination uses [combinations, size]; None: all.
    """

    table: Tensor | None
    used: Tensor | None
    places: Tensor

    def __init__(
        self,
        inputs: int,
        parts: ActionParts,
        bound: tuple[float, float],
        joint: bool,
        conditioned: bool,
        learns_choices: bool,
        used: Tensor | None = None,
        last: Last = linear_last,
    ) -> None:
        super().__init__()
        self.parts, self.bound, self.joint = parts, bound, joint
        self.logits = self.both = None
        if learns_choices and parts.options:
            self.logits = last(inputs, sum(parts.options), 0.01)
        table = parts.code(parts.every_combination()) if conditioned else None
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("used", used, persistent=False)
        if parts.size:
            count = parts.size * (1 if table is None else len(table))
            if used is not None:
                places = used.flatten().nonzero()[:, 0]
                self.register_buffer("places", places, persistent=False)
                count = len(places)
            self.both = last(inputs, 2 * count, 0.01)

    def forward(self, features: Tensor, mask: Tensor | None) -> Mixed:
        choices = continuous = None
        if self.parts.options:
            every = features.new_zeros(*features.shape[:-1], sum(self.parts.options))
            logits = every if self.logits is None else self.logits(features)
            choices = MultiCategorical(logits, self.parts.options, mask)
        if self.both is not None:
            both = self.both(features)
            if self.table is not None and self.used is None:
                both = both.unflatten(-1, (len(self.table), 2 * self.parts.size))
            mean, log_std = both.chunk(2, -1)
            if self.used is not None:
                mean, log_std = self._placed(mean), self._placed(log_std)
            continuous = TanhNormal(mean, log_std.clamp(*self.bound), self.used)
        return Mixed(self.parts, choices, continuous, self.joint, self.table)

    def _placed(self, each: Tensor) -> Tensor:
        """Outputs for the dimensions that are used [..., n] in a table, 0 for others [..., combinations, size]."""
        assert self.used is not None
        every = each.new_zeros(*each.shape[:-1], self.used.numel()).index_copy(-1, self.places, each)
        return every.unflatten(-1, self.used.shape)


class SoftActions(nn.Module):
    """The action space of a soft actor-critic.

    Critics read the continuous dimensions and answer for every choice; with `conditioned` they read the choice, too,
    and are evaluated once for each. If there are more combinations of choices than `joint_choices`, they answer for
    every option of each choice, and a value is the sum over the choices (as in Seyde et al. 2023, arXiv:2210.12566).

    If the environment says which dimensions each combination uses (`parameters_of`), with `conditioned` the others are
    0 in actions and in what critics read (as in MP-DQN, Bester et al. 2019, arXiv:1905.04388), and have no density; the
    target entropy is that of the number in use, a mean over the choices by their probability.

    Args:
        algorithm: its name, for messages.
        sums: whether the algorithm can sum values over choices.
    """

    target: Tensor
    used: Tensor | None

    def __init__(self, spec: Spec, cfg: SoftActionsConfig, algorithm: str, sums: bool = True) -> None:
        super().__init__()
        self.parts = parts = ActionParts.of(spec.action)
        self.cfg, self.single, self.masked = cfg, not isinstance(spec.action, dict), spec.masked
        for path, leaf in tree.items(spec.action):
            if isinstance(leaf, Continuous):
                require_bounds(leaf, algorithm, path)
        self.greedy = bool(parts.options) and cfg.discrete_dqn_like
        """whether choices are epsilon-greedy"""
        both = bool(parts.options) and bool(parts.size)
        if self.greedy and not both:
            raise ConfigError(
                "discrete_dqn_like needs continuous actions besides the discrete ones; for discrete actions alone use "
                "dqn"
            )
        self.conditioned = both and cfg.action_coupling == "conditioned"
        self.joint = len(parts.options) < 2 or parts.combinations <= cfg.joint_choices
        if parts.combinations > cfg.joint_choices and (self.conditioned or not (sums or self.joint)):
            reason = "action_coupling conditioned" if self.conditioned else algorithm
            other = "action_coupling independent" if self.conditioned else "sac"
            raise ConfigError(
                f"{reason} needs a value for every combination of discrete choices, but this environment has "
                f"{parts.combinations}; use {other}, or increase joint_choices ({cfg.joint_choices})"
            )
        used = used_parameters(parts, spec.parameters_of) if spec.parameters_of and self.conditioned else None
        self.register_buffer("used", None if used is None or used.all() else used, persistent=False)
        self.kinds = (
            *(("discrete",) if parts.options and not self.greedy else ()),
            *(("continuous",) if parts.size else ()),
        )
        """the kinds of actions that have an entropy, each with its temperature"""
        self.targets = self._targets()
        """the target entropy of each kind; of the continuous one where all choices are equally probable"""
        self.register_buffer("target", torch.tensor(self.targets), persistent=False)

    def _targets(self) -> list[float]:
        cfg, parts, found = self.cfg, self.parts, []
        if "discrete" in self.kinds:
            most = sum(log(n) for n in parts.options)
            found.append(cfg.entropy_ratio * most)
            if not parts.size and cfg.target_entropy != "auto":
                found = [float(cfg.target_entropy)]
                if cfg.tune_alpha and not 0 <= found[0] <= most:
                    raise ConfigError(
                        f"target_entropy is {found[0]:g}, but the entropy of {parts.combinations} actions lies between "
                        f"0 and {most:.3g}, and the entropy coefficient would grow or fall without limit; use a number "
                        "in between, or entropy_ratio"
                    )
        if "continuous" in self.kinds:
            found.append(cfg.target(parts.size if self.used is None else self.used.sum(-1).mean().item()))
        return found

    # Networks

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of a critic's answer per row: () or (choices,)."""
        if self.conditioned or not self.parts.options:
            return ()
        return (self.parts.combinations if self.joint else sum(self.parts.options),)

    @property
    def inputs(self) -> int:
        """Columns of what critics read of an action."""
        return self.parts.size + (sum(self.parts.options) if self.conditioned else 0)

    @property
    def passes(self) -> int:
        """How often critics are evaluated for the policy's action in one row."""
        return self.parts.combinations if self.conditioned else 1

    def head(self, width: int, last: Last = linear_last) -> nn.Module:
        """The policy's head on features of size `width`."""
        parts, bound = self.parts, self.cfg.log_std_range
        if isinstance(parts.spec, Discrete):
            return CategoricalHead(width, parts.options, single=True, last=last)
        if isinstance(parts.spec, Continuous):
            return SquashedHead(width, parts.size, bound, last)
        return MixedHead(width, parts, bound, self.joint, self.conditioned, not self.greedy, self.used, last)

    def temperature(self) -> Temperature:
        """The entropy coefficient, or one for each kind."""
        cfg = self.cfg
        if len(self.kinds) == 1:
            return Temperature(cfg.alpha, cfg.tune_alpha)
        discrete = cfg.alpha if cfg.alpha_discrete == "same" else float(cfg.alpha_discrete)
        if cfg.tune_alpha and cfg.alpha_discrete == 0:
            raise ConfigError(
                "alpha_discrete is 0, which cannot be tuned; use a value above 0, or set tune_alpha to false"
            )
        return Temperature((discrete, cfg.alpha), cfg.tune_alpha)

    def check_memory(self, critic: QEnsemble) -> None:
        """A `ConfigError` if the critics choose actions, but read what there is not while acting."""
        if self.greedy and critic.backbone.beside is not None:
            raise ConfigError(
                "discrete_dqn_like reads the critics while acting, but they read privileged_obs, which exist in "
                "training only; leave one of them out"
            )
        if self.greedy and not critic.can_follow:
            raise ConfigError(
                "discrete_dqn_like reads the critics while acting, but their memory is not kept then; set "
                "stored_memory or share_memory, without whole_episodes"
            )

    # Learning

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Random numbers [*shape, size] of the continuous dimensions."""
        return torch.randn(*shape, self.parts.size, generator=generator, device=generator.device)

    def check_one_kind(self, setting: str) -> None:
        """A `ConfigError` unless actions are continuous, or discrete with a value and a mask for each combination."""
        parts = self.parts
        if (parts.options and parts.size) or not self.joint or (self.masked and len(parts.options) > 1):
            raise ConfigError(
                f"{setting} needs actions that are continuous, or discrete with a value for each combination of "
                f"choices (joint_choices is {self.cfg.joint_choices}) and no masks of several choices; leave it out"
            )

    def several(self, policy: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Several samples of the continuous actions in every row, for noise [..., N, size], and their log-densities."""
        before = (policy if isinstance(policy, TanhNormal) else policy.continuous).before
        each = TanhNormal(before.mean.unsqueeze(-2), before.log_std.unsqueeze(-2))
        return each.sample_with_log_prob(noise)

    def read(self, action: Tree) -> Tensor | None:
        """What critics read of actions that were taken: [..., columns], or None."""
        if not self.parts.size:
            return None
        continuous = self.parts.continuous(action)
        if not self.conditioned:
            return continuous
        choices = self.parts.choices(action)
        if self.used is not None:
            continuous = continuous * self.used[self.parts.combination(choices)]
        return torch.cat((self.parts.code(choices), continuous), -1)

    def unused(self, action: Tree) -> Tensor:
        """Number of continuous dimensions [...] that actions do not use."""
        assert self.used is not None
        return (1 - self.used).sum(-1)[self.parts.combination(self.parts.choices(action))]

    def pick(self, values: Tensor, action: Tree, after: int = 0) -> Tensor:
        """Of values [critics, ..., choices] those of actions that were taken: [critics, ...].

        `after` axes follow that of the choices.
        """
        if not self.outputs:
            return values
        index = self.parts.choices(action)  # [..., choices]
        if self.joint:
            index = self.parts.combination(index).unsqueeze(-1)
        else:
            firsts = accumulate((0, *self.parts.options[:-1]))  # the column of each choice's first option
            index = torch.cat([part + first for part, first in zip(index.split(1, -1), firsts)], -1)
        index = index.reshape(*index.shape, *[1] * after)
        axis = values.dim() - 1 - after
        shape = (len(values), *index.shape[: index.dim() - after], *values.shape[axis + 1 :])
        found = values.gather(axis, index.expand(shape))
        return found.select(axis, 0) if self.joint else found.sum(axis)

    def expected(self, drawn: Drawn, values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """The expectation over choices of what `reduce` makes of values [critics, ..., choices]: [...].

        Sums over several choices are reduced after the expectation: the least sum is not the sum of the least.
        """
        return drawn.mean(reduce(values)) if self.joint else reduce(drawn.mean(values))

    def chosen(
        self, drawn: Drawn, values: Tensor, temperature: Temperature, epsilon: float | None = None
    ) -> Drawn:
        """With `discrete_dqn_like`, `drawn` with choices epsilon-greedy on values [critics, ..., choices]; else `drawn`
        itself. `epsilon` is that of the settings unless given."""
        if not self.greedy or drawn.probs is None:
            return drawn
        epsilon = self.cfg.discrete_dqn_epsilon if epsilon is None else epsilon
        values = values.detach().amin(0)
        if self.conditioned and drawn.log_density is not None:
            values = values - temperature.cost(drawn.log_density.detach())
        groups = (drawn.probs.shape[-1],) if self.joint else self.parts.options
        found = []
        # Before, the policy is uniform over the options that are allowed.
        for value, uniform in zip(values.split(groups, -1), drawn.probs.split(groups, -1)):
            best = torch.where(uniform > 0, value, -torch.inf).argmax(-1, keepdim=True)
            greedy = torch.zeros_like(uniform).scatter(-1, best, 1.0)
            found.append((1 - epsilon) * greedy + epsilon * uniform)
        return replace(drawn, probs=torch.cat(found, -1), counts=False)

    def sample(self, drawn: Drawn, generator: torch.Generator | None) -> Tree:
        """With `discrete_dqn_like`, an action by the probabilities of `drawn`; without a generator the likeliest."""
        assert drawn.probs is not None and drawn.reads is not None
        groups = (drawn.probs.shape[-1],) if self.joint else self.parts.options
        choices = []
        for probs in drawn.probs.split(groups, -1):
            policy = Categorical(probs.log(), probs)
            choices.append(policy.mode() if generator is None else policy.sample(policy.noise(generator)))
        continuous = drawn.reads
        if self.conditioned:
            index = choices[0][..., None, None]
            index = index.expand(*index.shape[:-1], continuous.shape[-1])
            continuous = continuous.gather(-2, index).squeeze(-2)[..., -self.parts.size :]
        chosen = self.parts.choices_of(choices[0]) if self.joint else torch.stack(choices, -1)
        return self.parts.action(chosen, continuous)

    def entropy_target(self, batch: Batch, drawn: Drawn) -> Tensor | float:
        """The target entropy, a number or [kinds]; with action masks that of the choices is a fraction of what each row
        allows at most, a mean over rows; that of the continuous dimensions counts those that the choices use."""
        by_row = self.masked and "discrete" in self.kinds and self._by_ratio
        if not by_row and self.used is None:
            return self.target if len(self.kinds) > 1 else self.targets[0]
        found = list(self.target.unbind())
        if by_row:
            allowed = (batch.now.selected[MASK_KEY] > 0).split(self.parts.options, -1)
            most: Any = sum(part.sum(-1).clamp(min=1).log() for part in allowed)  # [T, B]
            found[0] = self.cfg.entropy_ratio * (most * batch.share).mean()
        if self.used is not None and self.cfg.target_entropy == "auto":
            count = drawn.mean(self.used.sum(-1)).detach()  # [T, B]
            found[-1] = self.cfg.entropy_per_dimension * (count * batch.share).mean()
        return found[0] if len(found) == 1 else torch.stack(found)

    @property
    def _by_ratio(self) -> bool:
        return bool(self.parts.size) or self.cfg.target_entropy == "auto"

    def metrics(self, log_prob: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        """Entropy and temperature, with two kinds of each, of mean log-probabilities [] or [kinds]."""
        if len(self.kinds) == 1:
            return {"policy/entropy": -log_prob, "policy/alpha": alpha}
        found = {"policy/entropy": -log_prob.sum()}
        for number, kind in enumerate(self.kinds):
            found[f"policy/entropy_{kind}"] = -log_prob[number]
            found[f"policy/alpha_{kind}"] = alpha[number]
        return found
