"""Augmented temporal contrast (Stooke et al. 2021, arXiv:2009.08319): an auxiliary loss on the encoder of images.

anchor    c_t = project(encode(view(o_t))),  p_t = c_t + predict(c_t)
positive  c'_{t+k} = project'(encode'(view(o_{t+k})))
loss_t  = -log softmax_j(p_t W c'_j)[j = t + k], where j runs over the positives of all rows that are drawn
The primed networks are targets that follow the online ones, target <- (1 - tau) target + tau online.

Differs from the paper: the encoder is trained by the agent's loss too; where an episode or the batch ends within k
steps, the positive is its last observation.
"""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.auxiliary import Prepare, Views, ViewsConfig, rows_later, rows_of
from whorl.core.registry import register
from whorl.core.spec import Spec
from whorl.data.batch import Batch
from whorl.nets.layers import MLP
from whorl.ops.losses import contrast
from whorl.ops.targets import polyak_
from whorl.settings.schema import Fraction, PositiveCount, Range, Size


@dataclass(frozen=True)
class ATCConfig(ViewsConfig):
    steps: Annotated[int, Range(1, 1000)] = 1
    """steps from an anchor to its positive (paper: 1 for dm_control, 3 for Atari)"""
    tau: Fraction = 0.01
    """fraction of the online networks mixed into the target networks per update"""
    batch_size: PositiveCount = 256
    """rows per gradient step, drawn from the batch"""
    features: Size = 128
    """size of the codes"""
    hidden_size: Size = 512
    """width of the hidden layer of the prediction"""


@register("component", "atc")
class ATC(Views):
    """Augmented temporal contrast: the encoder learns to identify the observation that follows."""

    Config = ATCConfig
    cfg: ATCConfig

    def __init__(self, name: str, spec: Spec, cfg: ATCConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.needs_successors("later observations")
        self.projection = nn.Sequential(
            nn.Linear(int(self.encoder.size), cfg.features), nn.LayerNorm(cfg.features)
        )
        self.prediction = nn.Sequential(
            MLP(cfg.features, (cfg.hidden_size,), "relu"), nn.Linear(cfg.hidden_size, cfg.features)
        )
        self.bilinear = nn.Linear(cfg.features, cfg.features, bias=False)
        self.target_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_projection = copy.deepcopy(self.projection).requires_grad_(False)
        self.optimize([self.encoder], [self.projection, self.prediction, self.bilinear])

    @property
    def looks_ahead(self) -> tuple[int, ...]:
        return (self.cfg.steps,)

    def errors(self, batch: Batch, prepare: Prepare) -> tuple[Tensor, Tensor]:
        index = self.draw(batch, self.cfg.batch_size)
        mask = batch.mask.flatten().index_select(0, index)
        anchor = self.projection(self.encoder(self.view(prepare(rows_of(batch.obs, index)))))
        with torch.no_grad():
            later = self.view(prepare(rows_later(batch, index, self.cfg.steps)))
            positive = self.target_projection(self.target_encoder(later))
        logits = self.bilinear(anchor + self.prediction(anchor)) @ positive.T  # [rows, rows]
        return contrast(logits, mask), mask

    def move_targets(self) -> None:
        polyak_(self.target_encoder, self.encoder, self.cfg.tau)
        polyak_(self.target_projection, self.projection, self.cfg.tau)
