"""Nets that tell the value of every choice: one number each, a distribution, or quantiles at asked-for fractions."""

from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Continuous, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.nets.backbone import Backbone, BackboneSettings
from whorl.nets.images import SpectralConvolution
from whorl.nets.layers import MLP, orthogonal_
from whorl.nets.memory import MemorySettings, memory_settings
from whorl.nets.noisy import NoisyLinear, NoisyMLP
from whorl.nets.preprocessor import reward_limit
from whorl.settings.families import ChoiceConfig, ReplayConfig


class QNetwork(nn.Module):
    """Rows of observations -> [T, B, choices, columns].

    With `dueling` (Wang et al. 2016, arXiv:1511.06581, eq. 9), column by column: V(s) + A(s, a) - mean_b A(s, b)
    """

    def __init__(
        self, name: str, spec: Spec, cfg: ChoiceConfig, columns: int = 1, embeds: bool = False
    ) -> None:
        super().__init__()
        self.choices, self.columns = choices_of(spec, name), columns
        self.backbone = self._body(name, spec, cfg, ())
        hidden = cfg.hidden_sizes
        if embeds and not any(True for _ in self.backbone.parameters()):
            # An embedding needs features to go with: the first hidden layer makes them where no encoder does.
            self.backbone = self._body(name, spec, cfg, hidden[:1])
            hidden = hidden[1:] or hidden
        self.advantage = Stream(self.backbone.size, hidden, self.choices * columns, cfg)
        self.value = Stream(self.backbone.size, hidden, columns, cfg) if cfg.dueling else None
        has_weights = any(True for _ in self.backbone.parameters())
        self.norm = nn.LayerNorm(self.backbone.size) if cfg.layer_norm and has_weights else nn.Identity()
        self._spectral = [part for part in self.modules() if isinstance(part, SpectralConvolution)]

    @staticmethod
    def _body(name: str, spec: Spec, cfg: ChoiceConfig, hidden: tuple[int, ...]) -> Backbone:
        memory, clip = MemorySettings(), 0.0
        if isinstance(cfg, ReplayConfig):
            memory, clip = memory_settings(cfg), reward_limit(cfg)
        settings = BackboneSettings(
            hidden, cfg.activation, Part("mlp"), without_features(cfg.encoder), memory, reward_clip=clip
        )
        return Backbone(name, spec.observation, settings, spec.action)

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass, where layers are noisy; an empty dict otherwise."""
        found = {"advantage": self.advantage.draw(generator)}
        if self.value is not None:
            found["value"] = self.value.draw(generator)
        return found if found["advantage"] else {}

    def forward(self, rows: Rows, noise: Tree | None = None) -> Tensor:
        return self.tell(self.backbone(rows), noise)

    def step(self, obs: Tree, memory: Tree, reset: Tensor, noise: Tree | None = None) -> tuple[Tensor, Tree]:
        """One row of every environment: [B, choices, columns], and the memory after it."""
        features, memory = self.backbone.step(obs, memory, reset)
        return self.tell(features, noise), memory

    def tell(self, features: Tensor, noise: Tree | None) -> Tensor:
        """[..., choices, columns] of features [..., size]."""
        noise, features = noise or {}, self.norm(features)
        advantage = self.advantage(features, noise.get("advantage"))
        advantage = advantage.reshape(*features.shape[:-1], self.choices, self.columns)
        if self.value is None:
            return advantage
        value = self.value(features, noise.get("value")).unsqueeze(-2)  # [..., 1, columns]
        return value + advantage - advantage.mean(-2, keepdim=True)

    def unrolled(self, batch: Batch) -> Batch:
        """The batch with what this net's memory makes of its rows, so that all who ask share one pass."""
        return self.backbone.unrolled(batch)

    def states(self, batch: Batch, stride: int) -> Tree:
        """See `Backbone.states`."""
        return self.backbone.states(batch, stride)

    def renew(self) -> None:
        """What moves once per update beside the weights: estimates of spectral norms, where there are any."""
        for layer in self._spectral:
            layer.iterate_()


class QuantileNetwork(QNetwork):
    """Values at fractions of the return's distribution that are asked for (Dabney et al. 2018, arXiv:1806.06923).

    features * relu(W cos(pi i tau) + b), i = 0 .. cosines - 1, read by the streams: one column        (eq. 4)
    """

    frequencies: Tensor

    def __init__(self, name: str, spec: Spec, cfg: ChoiceConfig, cosines: int) -> None:
        super().__init__(name, spec, cfg, embeds=True)
        self.embedding = orthogonal_(nn.Linear(cosines, self.backbone.size))
        self.register_buffer("frequencies", pi * torch.arange(cosines), persistent=False)

    def at(self, features: Tensor, tau: Tensor, noise: Tree | None) -> Tensor:
        """[..., N, choices] of features [..., size] at fractions [..., N]."""
        waves = self.embedding((tau.unsqueeze(-1) * self.frequencies).cos()).relu()  # [..., N, size]
        return self.tell(features.unsqueeze(-2) * waves, noise)[..., 0]


class Stream(nn.Module):
    """Hidden layers and the last one, all noisy or none."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int, cfg: ChoiceConfig) -> None:
        super().__init__()
        width = hidden[-1] if hidden else inputs
        self.noisy = cfg.noisy
        self.hidden: nn.Module
        self.last: nn.Module
        if cfg.noisy:
            self.hidden = NoisyMLP(inputs, hidden, cfg.activation, cfg.noisy_sigma, cfg.layer_norm)
            self.last = NoisyLinear(width, outputs, cfg.noisy_sigma)
        else:
            self.hidden = MLP(inputs, hidden, cfg.activation, cfg.layer_norm)
            self.last = orthogonal_(nn.Linear(width, outputs), 1.0)

    def draw(self, generator: torch.Generator | None) -> Tree:
        if not self.noisy:
            return {}
        return {"hidden": self.hidden.draw(generator), "last": self.last.draw(generator)}  # type: ignore[operator]

    def forward(self, value: Tensor, noise: Any) -> Tensor:
        if not self.noisy:
            return self.last(self.hidden(value))
        noise = noise or {"hidden": None, "last": None}
        return self.last(self.hidden(value, noise["hidden"]), noise["last"])


def without_features(encoder: Part) -> Part:
    """The encoder of images without a layer behind its convolutions, unless somebody asked for one: streams follow."""
    if encoder.name not in ("auto", "images"):
        return encoder
    return Part(encoder.name, {"features": "flat", **encoder.options})


def allowed(rows: Rows, spec: Spec) -> Tensor | None:
    """Which choices rows of observations allow [T, B, choices]; None where all are."""
    return rows.selected[MASK_KEY] > 0 if spec.masked else None


def choices_of(spec: Spec, algorithm: str) -> int:
    """How many choices there are; one sentence for an environment that offers something else."""
    action = spec.action
    if not isinstance(action, Discrete):
        kind = "Dict or Tuple" if isinstance(action, dict) else type(action).__name__.lower()
        raise ConfigError(
            f"{algorithm} needs one discrete action, but this environment has {kind} actions; "
            f"use {'sac, td3 or ppo' if isinstance(action, Continuous) else 'ppo, ppg, a2c, impala or reinforce'}"
        )
    return action.n
