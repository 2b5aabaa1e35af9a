"""Bootstrap your own latent (Grill et al. 2020, arXiv:2006.07733): an auxiliary loss on the encoder of images.

loss = sum over both orders of two views v, w:  2 - 2 cos(predict(project(encode(v))), project'(encode'(w)))
v and w are two random views of the same observation; the primed networks are targets that follow the online ones,
target <- (1 - tau) target + tau online, and get no gradient. The encoder is the critic's (`agent.encoder()`).
With `predicts: next` views of consecutive observations take their place, and the prediction knows the action (Schwarzer
et al. 2021, arXiv:2007.05929, with one step):
loss = 2 - 2 cos(predict(step(project(encode(v_t)), a_t)), project'(encode'(w_{t+1})))

Differs from the paper: random shifts are the default augmentation; layer norm instead of batch norm; tau is constant.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.auxiliary import Prepare, Views, ViewsConfig, rows_later, rows_of
from whorl.core import tree
from whorl.core.registry import register
from whorl.core.spec import Spec, flat_action_size, flatten_action
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.layers import MLP
from whorl.ops.targets import polyak_
from whorl.settings.schema import Fraction, PositiveCount, Size


@dataclass(frozen=True)
class BYOLConfig(ViewsConfig):
    predicts: Literal["view", "next"] = "view"
    """what is predicted: another view of the same observation, or one of the next observation, given the action"""
    tau: Fraction = 0.01
    """fraction of the online networks mixed into the target networks per update"""
    batch_size: PositiveCount = 256
    """rows per gradient step, drawn from the batch"""
    features: Size = 128
    """outputs of projection and prediction"""
    hidden_size: Size = 256
    """width of the hidden layer of projection and prediction"""


@register("component", "byol")
class BYOL(Views):
    """Bootstrap your own latent: the encoder learns features that do not depend on small changes of the image."""

    Config = BYOLConfig
    cfg: BYOLConfig

    def __init__(self, name: str, spec: Spec, cfg: BYOLConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.projection = _head(int(self.encoder.size), cfg)
        self.prediction = _head(cfg.features, cfg)
        own: list[nn.Module] = [self.projection, self.prediction]
        if cfg.predicts == "next":
            self.needs_successors("the next observation")
            self.step = _head(cfg.features + flat_action_size(spec.action), cfg)
            own.append(self.step)
        self.target_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_projection = copy.deepcopy(self.projection).requires_grad_(False)
        self.optimize([self.encoder], own)

    @property
    def looks_ahead(self) -> tuple[int, ...]:
        return (1,) if self.cfg.predicts == "next" else ()

    def errors(self, batch: Batch, prepare: Prepare) -> tuple[Tensor, Tensor]:
        index = self.draw(batch, self.cfg.batch_size)
        obs, mask = prepare(rows_of(batch.obs, index)), batch.mask.flatten().index_select(0, index)
        if self.cfg.predicts == "next":
            # Whatever masked rows hold must not reach a gradient, not even as 0 * nan.
            action = tree.map(
                lambda leaf: torch.where(tree.expand(mask, leaf) > 0, leaf, 0), rows_of(batch.action, index)
            )
            following = prepare(rows_later(batch, index, 1))
            return self.distance(self.view(obs), self.view(following), action), mask
        one, two = self.view(obs), self.view(obs)
        return self.distance(one, two) + self.distance(two, one), mask

    def distance(self, view: Any, other: Any, action: Tree | None = None) -> Tensor:
        """2 - 2 cos between the prediction from `view` and the target projection of `other`: [rows]."""
        code = self.projection(self.encoder(view))
        if action is not None:
            code = self.step(torch.cat((code, flatten_action(self.spec.action, action)), -1))
        predicted = self.prediction(code)
        with torch.no_grad():
            target = self.target_projection(self.target_encoder(other))
        return 2 - 2 * F.cosine_similarity(predicted, target, dim=-1)

    def move_targets(self) -> None:
        polyak_(self.target_encoder, self.encoder, self.cfg.tau)
        polyak_(self.target_projection, self.projection, self.cfg.tau)


def _head(inputs: int, cfg: BYOLConfig) -> nn.Module:
    return nn.Sequential(
        MLP(inputs, (cfg.hidden_size,), "relu", layer_norm=True), nn.Linear(cfg.hidden_size, cfg.features)
    )
