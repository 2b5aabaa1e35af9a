"""Networks with outputs for every discrete action: a Q value, a distribution, or quantiles at given fractions."""

from dataclasses import dataclass
from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Continuous, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Rows
from whorl.data.config import ReplayConfig
from whorl.nets.backbone import Backbone, BackboneNet, BackboneSettings, torso
from whorl.nets.layers import MLP, Linear, layered, orthogonal_
from whorl.nets.memory import MemoryConfig, MemorySettings, memory_settings
from whorl.nets.noisy import NoisyLinear, NoisyMLP
from whorl.nets.preprocessor import reward_limit
from whorl.settings.schema import Activation, HiddenSizes, NonNegative


@dataclass(frozen=True)
class QNetworkConfig:
    """Settings of networks with one output, or several, for every action."""

    hidden_sizes: HiddenSizes = (128, 128)
    """hidden layer sizes after the encoder; with dueling, of each stream"""
    activation: Activation = "relu"
    """activation after each hidden layer"""
    layer_norm: bool = False
    """layer normalisation of the features and of each hidden layer before its activation"""
    encoder: Part = Part("auto")
    """network that encodes observations: auto (CNN for images, other inputs flattened), flat, magnified (for
    small deviations), images, rays, a registered name or an import path, with options"""
    trunk_network: Part = Part("mlp")
    """layers between encoder and streams: mlp (none), a registered name, an import path, or a list of layers"""
    advantage_network: Part = Part("mlp")
    """layers of the Q values, with dueling of the advantages: mlp (hidden_sizes, noisy), a registered name or import
    path of hidden layers, or a list of layers, each plain or noisy (NoisyLinear, IndependentNoisyLinear); the last is
    the output, without its size"""
    value_network: Part = Part("mlp")
    """with dueling: layers of the state value, in the same form"""
    dueling: bool = False
    """separate streams for state value and advantages (Wang et al. 2016)"""
    noisy: bool = False
    """noisy linear layers after the encoder (Fortunato et al. 2018): factorised, without noise in evaluation"""
    noisy_sigma: NonNegative = 0.5
    """initial noise of noisy layers"""


class QNetwork(BackboneNet):
    """Rows of observations -> [T, B, choices, columns].

    With `dueling` (Wang et al. 2016, arXiv:1511.06581, eq. 9), per column: V(s) + A(s, a) - mean_b A(s, b)
    """

    def __init__(
        self, name: str, spec: Spec, cfg: QNetworkConfig, columns: int = 1, embeds: bool = False
    ) -> None:
        super().__init__()
        self.choices, self.columns = choices_of(spec, name), columns
        self.backbone = self._build_backbone(name, spec, cfg, ())
        hidden = cfg.hidden_sizes
        if embeds and not any(True for _ in self.backbone.parameters()):
            # The embedding multiplies features: without an encoder, the first hidden layer computes them.
            self.backbone = self._build_backbone(name, spec, cfg, hidden[:1])
            hidden = hidden[1:] or hidden
        if not cfg.dueling and cfg.value_network != Part("mlp"):
            raise ConfigError(
                "value_network is used only with dueling; set dueling, or leave value_network out"
            )
        size = self.backbone.size
        self.advantage = q_head(cfg.advantage_network, size, hidden, self.choices * columns, cfg)
        self.value = q_head(cfg.value_network, size, hidden, columns, cfg) if cfg.dueling else None
        self._draws = self.advantage.draws or (self.value is not None and self.value.draws)
        has_weights = any(True for _ in self.backbone.parameters())
        self.norm = nn.LayerNorm(self.backbone.size) if cfg.layer_norm and has_weights else nn.Identity()

    @staticmethod
    def _build_backbone(name: str, spec: Spec, cfg: QNetworkConfig, hidden: tuple[int, ...]) -> Backbone:
        memory, clip = MemorySettings(), 0.0
        if isinstance(cfg, MemoryConfig):
            memory = memory_settings(cfg, tuple(stream.name for stream in spec.streams))
        if isinstance(cfg, ReplayConfig):
            clip = reward_limit(cfg)
        settings = BackboneSettings(
            hidden, cfg.activation, cfg.trunk_network, without_features(cfg.encoder), memory, reward_clip=clip
        )
        return Backbone(name, spec.observation, settings, spec.action)

    def draw(self, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass if layers are noisy; otherwise an empty dict."""
        if not self._draws:
            return {}
        found = {"advantage": self.advantage.draw(generator)}
        if self.value is not None:
            found["value"] = self.value.draw(generator)
        return {name: noise for name, noise in found.items() if noise}

    def forward(self, rows: Rows, noise: Tree | None = None) -> Tensor:
        return self.outputs(self.backbone(rows), noise)

    def step(self, obs: Tree, memory: Tree, reset: Tensor, noise: Tree | None = None) -> tuple[Tensor, Tree]:
        """One row of every environment: [B, choices, columns], and the memory after it."""
        features, memory = self.backbone.step(obs, memory, reset)
        return self.outputs(features, noise), memory

    def outputs(self, features: Tensor, noise: Tree | None) -> Tensor:
        """[..., choices, columns] of features [..., size]."""
        noise, features = noise or {}, self.norm(features)
        advantage = self.advantage(features, noise.get("advantage"))
        advantage = advantage.reshape(*features.shape[:-1], self.choices, self.columns)
        if self.value is None:
            return advantage
        value = self.value(features, noise.get("value")).unsqueeze(-2)  # [..., 1, columns]
        return value + advantage - advantage.mean(-2, keepdim=True)


class QuantileNetwork(QNetwork):
    """Quantiles of the return at given fractions (Dabney et al. 2018, arXiv:1806.06923).

    features * relu(W cos(pi i tau) + b), i = 0 .. cosines - 1, is the input of the heads        (eq. 4)
    """

    frequencies: Tensor

    def __init__(self, name: str, spec: Spec, cfg: QNetworkConfig, cosines: int) -> None:
        super().__init__(name, spec, cfg, embeds=True)
        self.embedding = orthogonal_(Linear(cosines, self.backbone.size))
        self.register_buffer("frequencies", pi * torch.arange(cosines), persistent=False)

    def at(self, features: Tensor, tau: Tensor, noise: Tree | None) -> Tensor:
        """[..., N, choices] of features [..., size] at fractions [..., N]."""
        waves = self.embedding((tau.unsqueeze(-1) * self.frequencies).cos()).relu()  # [..., N, size]
        return self.outputs(features.unsqueeze(-2) * waves, noise)[..., 0]


def q_head(
    network: Part, inputs: int, hidden: tuple[int, ...], outputs: int, cfg: QNetworkConfig
) -> "QHead | LayeredHead":
    """One stream: layers by the settings, or those that `network` describes."""
    if network.name == "mlp":
        return QHead(inputs, hidden, outputs, cfg)
    if network.name == "layers":
        return LayeredHead(layered(inputs, network.options.get("layers"), outputs))
    net, width = torso(BackboneSettings(hidden, cfg.activation, network, cfg.encoder), inputs)
    return LayeredHead(nn.Sequential(net, orthogonal_(Linear(width, outputs), 1.0)))


class LayeredHead(nn.Module):
    """Layers of any kind, each noisy or not."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers
        self.noisy = [hasattr(layer, "draw") for layer in layers]
        self.draws = any(self.noisy)

    def draw(self, generator: torch.Generator | None) -> Tree:
        layers: list[Any] = list(self.layers)
        return {str(n): layer.draw(generator) for n, layer in enumerate(layers) if self.noisy[n]}

    def forward(self, value: Tensor, noise: Any) -> Tensor:
        for number, layer in enumerate(self.layers):
            value = layer(value, noise[str(number)]) if noise and self.noisy[number] else layer(value)
        return value


class QHead(nn.Module):
    """Hidden layers and an output layer, all noisy or none."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int, cfg: QNetworkConfig) -> None:
        super().__init__()
        width = hidden[-1] if hidden else inputs
        self.noisy = self.draws = cfg.noisy
        self.hidden: nn.Module
        self.last: nn.Module
        if cfg.noisy:
            self.hidden = NoisyMLP(inputs, hidden, cfg.activation, cfg.noisy_sigma, cfg.layer_norm)
            self.last = NoisyLinear(width, outputs, cfg.noisy_sigma)
        else:
            self.hidden = MLP(inputs, hidden, cfg.activation, cfg.layer_norm)
            self.last = orthogonal_(Linear(width, outputs), 1.0)

    def draw(self, generator: torch.Generator | None) -> Tree:
        if not self.noisy:
            return {}
        return {"hidden": self.hidden.draw(generator), "last": self.last.draw(generator)}  # type: ignore[operator]

    def forward(self, value: Tensor, noise: Any) -> Tensor:
        if not self.noisy:
            return self.last(self.hidden(value))
        noise = noise or {"hidden": None, "last": None}
        return self.last(self.hidden(value, noise["hidden"]), noise["last"])


def draw_passes(online: QNetwork, target: QNetwork, generator: torch.Generator) -> dict[str, Tree]:
    """Noise of noisy layers for the passes of one update: Q(s, .), Q(s', .) that selects a* (double), and Q'(s', .)."""
    nets = {"online": online, "select": online, "target": target}
    return {name: net.draw(generator) for name, net in nets.items()}


def without_features(encoder: Part) -> Part:
    """An encoder of images without a linear layer after the convolutions, unless its options ask for one."""
    if encoder.name not in ("auto", "images"):
        return encoder
    return Part(encoder.name, {"features": "flat", **encoder.options})


def allowed(rows: Rows, spec: Spec) -> Tensor | None:
    """Action masks of rows [T, B, choices]; None if the environment has none."""
    return rows.selected[MASK_KEY] > 0 if spec.masked else None


def choices_of(spec: Spec, algorithm: str) -> int:
    """Number of discrete actions; a `ConfigError` for any other action space."""
    action = spec.action
    if not isinstance(action, Discrete):
        kind = "Dict or Tuple" if isinstance(action, dict) else type(action).__name__.lower()
        several = "sac, tqc, ppo, ppg, a2c, impala or reinforce"
        raise ConfigError(
            f"{algorithm} needs one discrete action, but this environment has {kind} actions; "
            f"use {'sac, td3 or ppo' if isinstance(action, Continuous) else several}"
        )
    return action.n
