"""What auxiliary losses have in common: the network they share with the agent, their optimizer, rows and views."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.component import Component
from whorl.agents.optimizers import Adaptive
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, successor_key
from whorl.nets.images import has_images
from whorl.ops.augment import NOISE, Augmentation, Channels
from whorl.ops.losses import masked_mean
from whorl.settings.schema import Fraction, LearningRate, NonNegative, Optimizer, Range

Prepare = Callable[[Tree], Tree]
"""raw observations -> as the networks read them"""


@dataclass(frozen=True)
class AuxiliaryConfig:
    """Settings of every auxiliary loss."""

    weight: NonNegative = 1.0
    """with joins: weight of the loss; without it set lr"""
    joins: Literal["", "critic", "actor"] = ""
    """optimizer of the agent whose loss this one is added to; empty: an optimizer of its own trains the encoder too"""
    network: Literal["critic", "actor"] = "critic"
    """without joins: whose encoder it trains, where actor and critic have one each (agents that learn from rollouts)"""
    adaptive: Adaptive = "off"
    """with joins: add the gradient only where its cosine with the agent's own is positive: layer (each weight or bias
    decides alone), whole (all shared parameters together), off (add it everywhere)"""
    lr: LearningRate = 3e-4
    """learning rate of its own optimizer"""
    optimizer: Optimizer = Part("Adam")
    """its own optimizer"""


@dataclass(frozen=True)
class ViewsConfig(AuxiliaryConfig):
    """Settings of the losses that compare augmented views of images."""

    shift: Annotated[int, Range(0, 1000)] = 4
    """largest random shift, in pixels"""
    crop: Annotated[float, Range(0, 0.9)] = 0.0
    """largest fraction of each side that a random crop removes before resizing; 0: no crops"""
    colour: Fraction = 0.0
    """largest relative change of each colour; 0: none"""
    intensity: Fraction = 0.0
    """largest relative change of all pixels; 0: none"""


class Auxiliary(Component):
    """A loss on a network that the agent uses too; a subclass defines `errors`, and calls `optimize` when built."""

    cfg: AuxiliaryConfig
    last_loss: Tensor

    def __init__(self, name: str, spec: Spec, cfg: Any, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.register_buffer("last_loss", torch.zeros(()))
        self._agent = (agent,)
        if cfg.adaptive != "off" and not cfg.joins:
            raise ConfigError(
                f"{name}.adaptive is {cfg.adaptive!r}, which compares gradients with those of an optimizer of the "
                f"agent; set {name}.joins to critic"
            )
        if cfg.weight not in (0, 1) and not cfg.joins:
            raise ConfigError(
                f"{name}.weight is {cfg.weight:g}, but its own optimizer minimises this loss alone; set {name}.lr "
                f"instead, or {name}.joins to critic"
            )
        if cfg.joins and cfg.joins not in agent.parameters_of():
            raise ConfigError(
                f"{name}.joins is {cfg.joins!r}, but {type(agent).__name__} has the optimizers "
                f"{', '.join(agent.parameters_of())}; choose one of them, or leave it out"
            )

    def optimize(self, shared: Sequence[nn.Module], own: Sequence[nn.Module]) -> None:
        """Let its own optimizer train modules of the agent and its own, or join an optimizer of the agent."""
        agent, cfg = self._agent[0], self.cfg
        if cfg.joins:
            agent.join_optimizer(cfg.joins, own, self.loss, cfg.adaptive)
        else:
            agent.add_optimizer(self.name, [*shared, *own], cfg.optimizer, cfg.lr)

    @property
    def backbone(self) -> Any:
        """The backbone that it trains: the one of the optimizer that it joins, or of `network`."""
        return self._agent[0].backbone_of(self.cfg.joins or self.cfg.network)

    @property
    def generator(self) -> torch.Generator:
        """Its random numbers."""
        return self._agent[0].random(self.cfg.joins or self.name)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        learner: Any = agent
        if not self.cfg.joins:
            learner.minimize(self.name, self.loss(batch, learner.observations))
        self.move_targets()
        return {f"loss/{self.name}": self.last_loss.clone()}

    def loss(self, batch: Batch, prepare: Prepare = lambda obs: obs) -> Tensor:
        """The weighted mean of `errors`; observations are `prepare`d once their rows are drawn."""
        loss = masked_mean(*self.errors(batch, prepare))
        self.last_loss.copy_(loss.detach())
        return self.cfg.weight * loss

    def errors(self, batch: Batch, prepare: Prepare) -> tuple[Tensor, Tensor]:
        """The loss of each row, and which rows count."""
        raise NotImplementedError

    def move_targets(self) -> None:
        """Move its target networks, after each update of the agent."""

    def draw(self, batch: Batch, count: int) -> Tensor:
        """Indices of up to `count` of the rows [T * B] of a batch."""
        order = torch.rand(batch.mask.numel(), generator=self.generator, device=batch.mask.device).argsort()
        return order[:count]

    def needs_successors(self, what: str) -> None:
        """Raise if the loss is joined where minibatches have no successors."""
        if self.cfg.joins and not self._agent[0].off_policy:
            raise ConfigError(
                f"{self.name} reads {what}, which minibatches of {type(self._agent[0]).__name__} do not have; leave "
                f"{self.name}.joins out"
            )


class Views(Auxiliary):
    """A loss on the encoder of images, which sees them augmented."""

    cfg: ViewsConfig

    def __init__(self, name: str, spec: Spec, cfg: ViewsConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        part: Part = getattr(agent.cfg, "encoder", Part("auto"))
        channels: Any = part.options.get("channels")
        self.channels: Channels = channels if channels in ("first", "last") else "auto"
        self.augmentation = Augmentation(cfg.shift, cfg.crop, cfg.colour, cfg.intensity)
        images = has_images(spec.observation, channels=self.channels)
        if not images or not any(True for _ in self.encoder.parameters()):
            raise ConfigError(
                f"{name} trains an encoder of images, but the environment has no images or the agent no encoder with "
                f"weights; leave {name} out"
            )

    @property
    def encoder(self) -> Any:
        """The encoder that it trains."""
        return self.backbone.encoder

    def view(self, obs: Tree) -> Tree:
        """Prepared observations [..., ...] with every image changed at random."""
        first, like = tree.first(obs), tree.first(self.spec.observation)
        lead = first.shape[: first.dim() - len(like.shape)]
        noise = torch.rand(*lead, NOISE, generator=self.generator, device=first.device)
        return self.augmentation(obs, self.spec.observation, noise, self.channels)


def rows_of(values: Tree, index: Tensor) -> Tree:
    """Rows [N, ...] of a tree [T, B, ...]; `index` counts them over both axes."""
    return tree.map(lambda leaf: leaf.flatten(0, 1).index_select(0, index), values)


def rows_later(batch: Batch, index: Tensor, steps: int) -> Tree:
    """The observations up to `steps` steps after rows `index` [N] of [T, B]; none is behind the end of its episode or
    of the batch."""
    found = batch.extras.get(successor_key(steps))
    if found is not None:
        return rows_of(found, index)
    real = batch.mask > 0  # a row that is no transition has no successor
    count, num_envs = real.shape
    row = torch.arange(count, device=real.device).unsqueeze(1).expand(count, num_envs)
    ahead = row
    for _ in range(steps):
        inside = ahead.clamp(max=count - 1)
        ahead = ahead + (real.gather(0, inside) & (ahead < count))
    env_index = torch.arange(num_envs, device=real.device)
    return rows_of(batch.obs, (ahead * num_envs + env_index).flatten().index_select(0, index))
