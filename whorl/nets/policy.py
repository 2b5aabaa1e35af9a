"""Policy and value networks: a backbone with a head for the action tree."""

from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.action_masks import mask_size
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, ActionLeaf, Continuous, Discrete, Spec, SpecTree, action_choices
from whorl.core.tree import Tree
from whorl.data.batch import Rows
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.layers import orthogonal_
from whorl.nets.memory import memory_settings
from whorl.ops.distributions import Categorical, Joint, MultiCategorical, Normal
from whorl.settings.families import NetworkConfig


class GaussianHead(nn.Module):
    """A diagonal Gaussian with one state-independent log standard deviation per dimension."""

    def __init__(
        self, inputs: int, action: Continuous, mean: float, log_std: float, bound: tuple[float, float]
    ) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, action.size)
        orthogonal_(self.mean, 0.01)
        nn.init.constant_(self.mean.bias, mean)
        self.log_std = nn.Parameter(torch.full((action.size,), log_std))
        self.bound = bound

    def forward(self, features: Tensor, mask: Tensor | None) -> Normal:
        return Normal(self.mean(features), self.log_std.clamp(*self.bound))


class CategoricalHead(nn.Module):
    """Independent discrete choices; masked options have probability zero."""

    def __init__(self, inputs: int, nvec: tuple[int, ...], single: bool) -> None:
        super().__init__()
        self.logits = orthogonal_(nn.Linear(inputs, sum(nvec)), 0.01)
        self.nvec = nvec
        self.single = single

    def forward(self, features: Tensor, mask: Tensor | None) -> Categorical | MultiCategorical:
        logits = self.logits(features)
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
    if isinstance(leaf, Continuous):
        return GaussianHead(inputs, leaf, cfg.mean_init, cfg.log_std_init, cfg.log_std_range)
    if isinstance(leaf, Discrete):
        return CategoricalHead(inputs, (leaf.n,), single=True)
    return CategoricalHead(inputs, leaf.nvec, single=False)


class Policy(nn.Module):
    """Rows of observations -> a distribution over actions."""

    def __init__(self, name: str, spec: Spec, cfg: NetworkConfig) -> None:
        super().__init__()
        settings = _settings(cfg, cfg.actor_hidden_sizes, cfg.actor_network)
        self.backbone = Backbone(name, spec.observation, settings, spec.action)
        self.head = policy_head(spec.action, self.backbone.size, cfg)
        self.masked = spec.masked

    def forward(self, rows: Rows) -> Any:
        return self.head(self.backbone(rows), rows.selected[MASK_KEY] if self.masked else None)

    def step(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Any, Tree]:
        """One row of every environment: the distribution, and the memory after it."""
        features, memory = self.backbone.step(obs, memory, reset)
        return self.head(features, obs[MASK_KEY] if self.masked else None), memory


class Value(nn.Module):
    """Rows of observations -> a value [R, B]."""

    def __init__(self, name: str, spec: Spec, cfg: NetworkConfig) -> None:
        super().__init__()
        settings = _settings(cfg, cfg.critic_hidden_sizes, cfg.critic_network)
        self.backbone = Backbone(name, spec.observation, settings, spec.action)
        self.follows = bool(self.backbone.memories)
        """whether its memory is kept while acting, though nobody reads it then"""
        self.head = orthogonal_(nn.Linear(self.backbone.size, 1), 1.0)

    def forward(self, rows: Rows) -> Tensor:
        return self.head(self.backbone(rows))[..., 0]


def _settings(cfg: NetworkConfig, hidden: tuple[int, ...], network: Part) -> BackboneSettings:
    return BackboneSettings(hidden, cfg.activation, network, cfg.encoder, memory_settings(cfg))
