"""Policy networks of off-policy actor-critic agents: deterministic, squashed Gaussian, or categorical."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, Spec, split_observation
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.config import ReplayConfig
from whorl.nets.backbone import Backbone, BackboneNet, BackboneSettings
from whorl.nets.layers import Last, last_of, linear_last
from whorl.nets.memory import MemoryConfig, MemorySettings, memory_settings
from whorl.nets.preprocessor import reward_limit
from whorl.ops.distributions import TanhNormal
from whorl.settings.schema import Activation, HiddenSizes


@dataclass(frozen=True)
class ActorCriticNetworkConfig(MemoryConfig, ReplayConfig):
    """Settings of the actor and critic networks of off-policy algorithms."""

    actor_hidden_sizes: HiddenSizes = (256, 256)
    """hidden layer sizes of the actor"""
    critic_hidden_sizes: HiddenSizes = (256, 256)
    """hidden layer sizes of each critic"""
    activation: Activation = "relu"
    """activation after each hidden layer"""
    encoder: Part = Part("auto")
    """network that encodes observations: auto (CNN for images, other inputs flattened), flat, magnified (for
    small deviations), images, rays, a registered name or an import path, with options"""
    actor_network: Part = Part("mlp")
    """hidden layers of the actor: mlp, residual (SimBa), a registered name, an import path, or a list of layers"""
    critic_network: Part = Part("mlp")
    """hidden layers of each critic: mlp (options layer_norm, dropout), residual, or as above"""
    actor_head: Part = Part("linear")
    """last layers of the actor: linear, a registered name, an import path, or a list of hidden layers"""
    critic_head: Part = Part("linear")
    """last layers of each critic, in the same form"""
    noisy: bool = False
    """explore by noisy layers in the actor (Fortunato et al. 2018): factorised, without noise in evaluation"""
    share_memory: bool = False
    """with memory: one memory for actor and critics, trained by the critics' loss; false: one per network"""
    privileged_obs: tuple[str, ...] = ()
    """keys of a Dict observation that exist in training only: critics read them, the policy never does"""


class Actor(BackboneNet):
    """Rows of observations -> the output of the head.

    If the critics' encoder has weights (images), the policy reads its detached output: only the critics train it. With
    `share_memory` it reads the detached output of their memory.

    Args:
        dilation: steps between those at which a state of its own memory advances; see `whorl.nets.dilated`.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        cfg: ActorCriticNetworkConfig,
        head: Any,
        reads: Backbone,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        remembers = cfg.share_memory and bool(reads.memories)
        sees = remembers or any(True for _ in reads.encoder.parameters())
        public = split_observation(spec.observation, cfg.privileged_obs)[0]
        observed = Array((reads.summary_size if remembers else reads.encoder.size,)) if sees else public
        settings = BackboneSettings(
            cfg.actor_hidden_sizes,
            cfg.activation,
            cfg.actor_network,
            Part("flat") if sees else cfg.encoder,
            MemorySettings() if remembers else memory_settings(cfg, dilation=dilation),
            cfg.noisy,
            reward_limit(cfg),
        )
        self.backbone = Backbone(name, observed, settings, spec.action)
        self.head = head(self.backbone.size)
        self.masked = spec.masked
        self.remembers = remembers
        self.reads: tuple[Backbone, ...] = (reads,) if sees else ()
        """in a tuple, so that the critics' parameters are not registered as this network's"""

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass if layers are noisy; otherwise an empty dict."""
        return self.backbone.draw(generator)

    def forward(self, rows: Rows, noise: Tree | None = None) -> Any:
        features = self.backbone.features(lambda: self._encoded(rows), rows, noise)
        return self.head(features, rows.selected[MASK_KEY] if self.masked else None)

    def _encoded(self, rows: Rows) -> Tensor:
        if not self.reads:
            return self.backbone.encode(rows)
        if self.remembers:
            return self.reads[0].summary(lambda: self.reads[0].encode(rows), rows).detach()
        return self.reads[0].encoder(rows.obs if self.backbone.memories else rows.selected).detach()

    def prepare(self, batch: Batch) -> Batch:
        return self.backbone.unrolled(batch, self._encoded)

    def states(self, batch: Batch, stride: int) -> Tree:
        return self.backbone.states(batch, stride, self._encoded)

    def step(self, obs: Tree, memory: Tree, reset: Tensor, noise: Tree | None = None) -> tuple[Any, Tree]:
        """One row of every environment: the output of the head, and the memory after it."""
        if self.remembers:
            encoded, after = self.reads[0].step(obs, memory, reset)
        else:
            encoded, after = (self.reads[0] if self.reads else self.backbone).encoder(obs), {}
            if self.backbone.memories:
                (encoded,), after = self.backbone.follow(encoded, memory, reset)
        features = self.backbone.read(encoded, noise)
        return self.head(features, obs[MASK_KEY] if self.masked else None), after

    def initial_memory(self, num_envs: int, device: torch.device) -> Tree:
        """Its own memory, or the shared one that it reads."""
        return (self.reads[0] if self.remembers else self.backbone).initial_memory(num_envs, device)

    def target(self, reads: Backbone) -> "Actor":
        """A copy without gradients that reads another backbone."""
        twin = copy.deepcopy(self).requires_grad_(False)
        twin.reads = (reads,) if self.reads else ()
        return twin


def deterministic_actor(spec: Spec, cfg: ActorCriticNetworkConfig, size: int, reads: Backbone) -> Actor:
    """An actor whose output is one action in [-1, 1]."""
    last = last_of(cfg.actor_head)
    return Actor("actor", spec, cfg, lambda width: DeterministicHead(width, size, last), reads)


class SquashedHead(nn.Module):
    """tanh of a Gaussian whose standard deviation depends on the state."""

    def __init__(self, inputs: int, size: int, bound: tuple[float, float], last: Last = linear_last) -> None:
        super().__init__()
        self.both = last(inputs, 2 * size, 0.01)
        self.bound = bound

    def forward(self, features: Tensor, mask: Tensor | None) -> TanhNormal:
        mean, log_std = self.both(features).chunk(2, -1)
        return TanhNormal(mean, log_std.clamp(*self.bound))


class DeterministicHead(nn.Module):
    """One action in [-1, 1] per dimension."""

    def __init__(self, inputs: int, size: int, last: Last = linear_last) -> None:
        super().__init__()
        self.action = last(inputs, size, 0.01)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.action(features).tanh()


def bounded(spec: Spec, algorithm: str, kinds: str = "continuous", others: str = "") -> int:
    """Size of a continuous action with finite bounds; a `ConfigError` for any other action space.

    Args:
        others: algorithms to use instead; empty: those that learn as they act.
    """
    action = spec.action
    if not isinstance(action, Continuous):
        kind = "Dict or Tuple" if isinstance(action, dict) else type(action).__name__.lower()
        online = (
            "sac or ppo" if isinstance(action, Discrete) else "sac, tqc, ppo, ppg, a2c, impala or reinforce"
        )
        raise ConfigError(
            f"{algorithm} needs {kinds} actions, but this environment has {kind} actions; use {others or online}"
        )
    require_bounds(action, algorithm)
    return action.size


def require_bounds(action: Continuous, algorithm: str, path: str = "") -> None:
    """A `ConfigError` if a dimension of a continuous action, at `path` of an action tree, has no bounds."""
    if all(action.bounded):
        return
    number = action.bounded.index(False)
    raise ConfigError(
        f"{algorithm} needs bounded actions, but dimension {number}{f' of {path!r}' if path else ''} ranges from "
        f"{action.low[number]:g} to {action.high[number]:g}; set bounds with gymnasium.wrappers.TransformAction, or "
        "use ppo"
    )
