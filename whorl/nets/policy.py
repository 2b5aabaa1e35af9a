"""Policy and value networks: a backbone with a head for the action tree."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.action_masks import mask_size
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import (
    MASK_KEY,
    ActionLeaf,
    Continuous,
    Discrete,
    Spec,
    SpecTree,
    action_choices,
    split_observation,
)
from whorl.core.tree import Tree
from whorl.data.batch import Rows
from whorl.data.config import ReplayConfig
from whorl.nets.backbone import Backbone, BackboneNet, BackboneSettings
from whorl.nets.layers import Last, last_of, linear_last
from whorl.nets.memory import MemoryConfig, memory_settings
from whorl.nets.preprocessor import reward_limit
from whorl.ops.distributions import Categorical, Joint, MultiCategorical, Normal
from whorl.settings.schema import Activation, HiddenSizes, LogStd, LogStdRange, Number


@dataclass(frozen=True)
class NetworkConfig(MemoryConfig):
    """Settings of the policy and value networks of policy-gradient algorithms."""

    actor_hidden_sizes: HiddenSizes = (64, 64)
    """hidden layer sizes of the policy"""
    critic_hidden_sizes: HiddenSizes = (64, 64)
    """hidden layer sizes of the critic"""
    activation: Activation = "tanh"
    """activation after each hidden layer"""
    mean_init: Number = 0.0
    """initial mean of the policy, for actions scaled to [-1, 1] (continuous actions)"""
    log_std_init: LogStd = 0.0
    """initial log standard deviation of the policy (continuous actions)"""
    log_std_range: LogStdRange = (-20.0, 2.0)
    """bounds of the log standard deviation"""
    encoder: Part = Part("auto")
    """network that encodes observations: auto (CNN for images, other inputs flattened), flat, magnified (for
    small deviations), images, rays, a registered name or an import path, with options"""
    actor_network: Part = Part("mlp")
    """hidden layers of the policy: mlp, a registered name, an import path, or a list of layers"""
    critic_network: Part = Part("mlp")
    """hidden layers of the critic, in the same form"""
    actor_head: Part = Part("linear")
    """last layers of the policy, for each part of the action: linear, a registered name, an import path, or a list of
    hidden layers"""
    critic_head: Part = Part("linear")
    """last layers of the critic, in the same form"""
    privileged_obs: tuple[str, ...] = ()
    """keys of a Dict observation that exist in training only: the critic reads them, the policy never does"""


class GaussianHead(nn.Module):
    """A diagonal Gaussian with one state-independent log standard deviation per dimension."""

    def __init__(
        self,
        inputs: int,
        action: Continuous,
        mean: float,
        log_std: float,
        bound: tuple[float, float],
        last: Last = linear_last,
    ) -> None:
        super().__init__()
        self.mean = last(inputs, action.size, 0.01)
        if isinstance(self.mean, nn.Linear):
            nn.init.constant_(self.mean.bias, mean)
        elif mean:
            raise ConfigError(f"mean_init is {mean:g}, which needs actor_head linear; leave one of them out")
        self.log_std = nn.Parameter(torch.full((action.size,), log_std))
        self.bound = bound

    def forward(self, features: Tensor, mask: Tensor | None) -> Normal:
        return self.of(self.mean(features))

    @property
    def last(self) -> nn.Module:
        """The last layer."""
        return self.mean

    def of(self, mean: Tensor) -> Normal:
        """The distribution for outputs of the last layer."""
        return Normal(mean, self.log_std.clamp(*self.bound))


class CategoricalHead(nn.Module):
    """Independent discrete choices; masked options have probability zero."""

    def __init__(self, inputs: int, nvec: tuple[int, ...], single: bool, last: Last = linear_last) -> None:
        super().__init__()
        self.logits = last(inputs, sum(nvec), 0.01)
        self.nvec = nvec
        self.single = single

    def forward(self, features: Tensor, mask: Tensor | None) -> Categorical | MultiCategorical:
        return self.of(self.logits(features), mask)

    @property
    def last(self) -> nn.Module:
        """The last layer."""
        return self.logits

    def of(self, logits: Tensor, mask: Tensor | None = None) -> Categorical | MultiCategorical:
        """The distribution for outputs of the last layer."""
        return Categorical(logits, mask) if self.single else MultiCategorical(logits, self.nvec, mask)


class JointHead(nn.Module):
    """A product of independent heads, one per branch of a Dict or Tuple action; branches may be joint themselves.

    The flat action mask is split among the branches in the order of the action tree (`whorl.core.action_masks`).
    """

    def __init__(self, parts: dict[str, nn.Module], mask_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.names = tuple(parts)
        # A list, because keys of an action space may be names that a ModuleDict refuses ("keys", "a.b").
        self.heads = nn.ModuleList(parts.values())
        self.mask_sizes = mask_sizes

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The head of each branch."""
        return dict(zip(self.names, self.heads))

    def forward(self, features: Tensor, mask: Tensor | None) -> Joint:
        masks = [None] * len(self.names) if mask is None else mask.split(self.mask_sizes, -1)
        found = zip(self.names, self.heads, masks)
        return Joint({name: head(features, part) for name, head, part in found})


def policy_head(action: SpecTree, inputs: int, cfg: NetworkConfig) -> nn.Module:
    """The head for an action tree; called with features and the flat action mask, it gives a distribution."""
    if isinstance(action, dict):
        parts = {name: policy_head(branch, inputs, cfg) for name, branch in action.items()}
        return JointHead(parts, tuple(mask_size(action_choices(branch)) for branch in action.values()))
    leaf: ActionLeaf = action
    last = last_of(cfg.actor_head)
    if isinstance(leaf, Continuous):
        return GaussianHead(inputs, leaf, cfg.mean_init, cfg.log_std_init, cfg.log_std_range, last)
    if isinstance(leaf, Discrete):
        return CategoricalHead(inputs, (leaf.n,), single=True, last=last)
    return CategoricalHead(inputs, leaf.nvec, single=False, last=last)


class Policy(BackboneNet):
    """Rows of observations -> a distribution over actions."""

    def __init__(self, name: str, spec: Spec, cfg: NetworkConfig) -> None:
        super().__init__()
        settings = _settings(cfg, cfg.actor_hidden_sizes, cfg.actor_network)
        public = split_observation(spec.observation, cfg.privileged_obs)[0]
        self.backbone = Backbone(name, public, settings, spec.action)
        self.head = policy_head(spec.action, self.backbone.size, cfg)
        self.masked = spec.masked

    def forward(self, rows: Rows) -> Any:
        return self.of(self.backbone(rows), rows)

    def of(self, features: Tensor, rows: Rows) -> Any:
        """The distribution of features that the backbone computed from `rows`."""
        return self.head(features, rows.selected[MASK_KEY] if self.masked else None)

    def step(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Any, Tree]:
        """One row of every environment: the distribution, and the memory after it."""
        features, memory = self.backbone.step(obs, memory, reset)
        return self.head(features, obs[MASK_KEY] if self.masked else None), memory


class Value(BackboneNet):
    """Rows of observations -> a value [R, B], or with reward streams one per stream [R, B, 1 + S].

    Args:
        trunk: the backbone of the policy, if both share it; its parameters stay the policy's.
    """

    def __init__(self, name: str, spec: Spec, cfg: NetworkConfig, trunk: Backbone | None = None) -> None:
        super().__init__()
        if trunk is None:
            settings = _settings(cfg, cfg.critic_hidden_sizes, cfg.critic_network)
            public, privileged = split_observation(spec.observation, cfg.privileged_obs)
            self.backbone = Backbone(name, public, settings, spec.action, beside=privileged)
        else:
            object.__setattr__(self, "backbone", trunk)  # not registered as a part of this network
        self.follows = trunk is None and bool(self.backbone.memories)
        """whether it has a memory of its own, which is updated while acting"""
        self.separate = bool(spec.streams)
        self.head = last_of(cfg.critic_head)(self.backbone.size, 1 + len(spec.streams), 1.0)

    def forward(self, rows: Rows) -> Tensor:
        return self.of(self.backbone(rows))

    def of(self, features: Tensor) -> Tensor:
        """The values of features that the backbone computed."""
        value = self.head(features)
        return value if self.separate else value[..., 0]

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        return super().advance(obs, memory, reset) if self.follows else {}


def policy_and_value(spec: Spec, cfg: NetworkConfig, shared_trunk: bool) -> tuple[Policy, Value]:
    """The networks `actor` and `critic`, with a backbone each or one for both."""
    policy = Policy("actor", spec, cfg)
    if shared_trunk and cfg.privileged_obs:
        raise ConfigError(
            f"shared_trunk is true, but the critic alone reads {', '.join(cfg.privileged_obs)} (privileged_obs); "
            "leave one of the two out"
        )
    return policy, Value("critic", spec, cfg, policy.backbone if shared_trunk else None)


def _settings(cfg: NetworkConfig, hidden: tuple[int, ...], network: Part) -> BackboneSettings:
    clip = reward_limit(cfg) if isinstance(cfg, ReplayConfig) else 0.0
    return BackboneSettings(
        hidden, cfg.activation, network, cfg.encoder, memory_settings(cfg), reward_clip=clip
    )
