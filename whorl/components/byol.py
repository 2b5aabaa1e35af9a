"""Bootstrap your own latent (Grill et al. 2020, arXiv:2006.07733): an auxiliary loss on the encoder of images.

loss = sum over both orders of two views v, w:  2 - 2 cos(predict(project(encode(v))), project'(encode'(w)))
v and w are two random shifts of the same observation; the primed networks are targets that follow the online ones,
target <- (1 - tau) target + tau online, and get no gradient. The encoder is the critic's (`agent.encoder()`).

Differs from the paper: random shifts are the only augmentation; layer norm instead of batch norm; tau is constant.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.component import Component
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Spec
from whorl.data.batch import Batch
from whorl.nets.images import has_images
from whorl.nets.layers import MLP
from whorl.ops.augment import Channels, shift_images
from whorl.ops.losses import masked_mean
from whorl.ops.targets import polyak_
from whorl.settings.schema import (
    Fraction,
    LearningRate,
    NonNegative,
    Optimizer,
    PositiveCount,
    Range,
    Size,
)


@dataclass(frozen=True)
class BYOLConfig:
    weight: NonNegative = 1.0
    """weight of the loss"""
    joins: Literal["", "critic", "actor"] = ""
    """optimizer of the agent whose loss this one is added to; empty: an optimizer of its own trains the encoder too"""
    lr: LearningRate = 3e-4
    """learning rate of its own optimizer"""
    tau: Fraction = 0.01
    """fraction of the online networks mixed into the target networks per update"""
    shift: Annotated[int, Range(0, 1000)] = 4
    """largest random shift, in pixels"""
    batch_size: PositiveCount = 256
    """rows per gradient step, drawn from the batch"""
    features: Size = 128
    """outputs of projection and prediction"""
    hidden_size: Size = 256
    """width of the hidden layer of projection and prediction"""
    optimizer: Optimizer = Part("Adam")
    """its own optimizer"""


@register("component", "byol")
class BYOL(Component):
    """Bootstrap your own latent: the encoder learns features that do not depend on small shifts of the image."""

    Config = BYOLConfig
    cfg: BYOLConfig
    last_loss: Tensor

    def __init__(self, name: str, spec: Spec, cfg: BYOLConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        encoder: Any = agent.encoder()
        part: Part = getattr(agent.cfg, "encoder", Part("auto"))
        channels: Any = part.options.get("channels")
        self.channels: Channels = channels if channels in ("first", "last") else "auto"
        if not has_images(spec.observation, channels=self.channels) or not any(
            True for _ in encoder.parameters()
        ):
            raise ConfigError(
                f"{name} trains an encoder of images, but the environment has no images or the agent no encoder with "
                f"weights; leave {name} out"
            )
        self.projection = _head(int(encoder.size), cfg)
        self.prediction = _head(cfg.features, cfg)
        self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.target_projection = copy.deepcopy(self.projection).requires_grad_(False)
        self.register_buffer("last_loss", torch.zeros(()))
        self._agent = (agent,)
        heads = [self.projection, self.prediction]
        if cfg.joins:
            agent.join_optimizer(cfg.joins, heads, self.loss)
        else:
            agent.add_optimizer(name, [encoder, *heads], cfg.optimizer, cfg.lr)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        if not self.cfg.joins:
            learner: Any = agent
            learner.minimize(self.name, self.loss(batch.replace(obs=learner.observations(batch.obs))))
        polyak_(self.target_encoder, agent.encoder(), self.cfg.tau)
        polyak_(self.target_projection, self.projection, self.cfg.tau)
        return {f"loss/{self.name}": self.last_loss.clone()}

    def loss(self, batch: Batch) -> Tensor:
        """The weighted loss of up to `batch_size` rows of a batch with prepared observations."""
        generator = self._agent[0].random(self.cfg.joins or self.name)
        device, rows = batch.mask.device, batch.mask.numel()
        index = torch.rand(rows, generator=generator, device=device).argsort()[: self.cfg.batch_size]
        obs = tree.map(lambda leaf: leaf[: len(batch.mask)].flatten(0, 1).index_select(0, index), batch.obs)
        noise = torch.rand(2, len(index), 2, generator=generator, device=device)
        one, two = (
            shift_images(obs, self.spec.observation, self.cfg.shift, part, self.channels) for part in noise
        )
        error = self.distance(one, two) + self.distance(two, one)  # [rows]
        loss = masked_mean(error, batch.mask.flatten().index_select(0, index))
        self.last_loss.copy_(loss.detach())
        return self.cfg.weight * loss

    def distance(self, view: Any, other: Any) -> Tensor:
        """2 - 2 cos between the prediction from `view` and the target projection of `other`: [rows]."""
        predicted = self.prediction(self.projection(self._agent[0].encoder()(view)))
        with torch.no_grad():
            target = self.target_projection(self.target_encoder(other))
        return 2 - 2 * F.cosine_similarity(predicted, target, dim=-1)


def _head(inputs: int, cfg: BYOLConfig) -> nn.Module:
    return nn.Sequential(
        MLP(inputs, (cfg.hidden_size,), "relu", layer_norm=True), nn.Linear(cfg.hidden_size, cfg.features)
    )
