"""What the parts of an agent offer to the functions that agents share."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.nets.normalize import Observations


@runtime_checkable
class MemoryNet(Protocol):
    """A network that may have a memory, which the agent keeps while acting."""

    def initial_memory(self, num_envs: int, device: torch.device) -> Tree:
        """Memory before the first row; empty if none is kept."""

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        """Memory after one row of every environment, for a network that is not evaluated while acting."""

    def states(self, batch: Batch, stride: int) -> Tree:
        """The memory before every `stride`-th row of a sequence except the first: [K, B, ...]."""


class HasCriticLoss(Protocol):
    """An agent with replay whose TD errors `Agent.errors` can compute."""

    observations: Any
    """a `Preprocessor`"""

    def draw(self, batch: Batch) -> Tree:
        """The random numbers of one update."""

    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Any, ...]:
        """The loss, the absolute TD errors [T, B], the mean of Q, and further metrics where there are some."""


class ReplayAgent(HasCriticLoss, Protocol):
    """An agent that `replay_step` updates; with an actor, it also has `improve_actor(batch, noise) -> metrics`."""

    cfg: Any
    targets: Any
    """its `TargetNetworks`"""

    @property
    def minimize(self) -> Any: ...

    def prepare_batch(self, batch: Batch) -> Batch: ...


class Acting(Protocol):
    """An agent that acts on preprocessed observations."""

    spec: Spec
    progress: Tensor

    @property
    def observations(self) -> Observations: ...


class ValueAgent(Acting, Protocol):
    """An agent that chooses among discrete actions by their Q values."""

    critic: Any
    """a `QNetwork`"""
    explore: Any
    """an `Exploration`"""

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        """Q(s, a) [..., choices] of the critic's features [..., size]."""


class PolicyAgent(Acting, Protocol):
    """An agent with a policy network; if it has a `critic`, the memory of that is kept too."""

    actor: Any
    """a `Policy` or an `Actor`"""


class ActorCriticAgent(PolicyAgent, Protocol):
    """An off-policy agent with an `Actor` and a `QEnsemble`."""

    critic: Any


class SoftAgent(ActorCriticAgent, Protocol):
    """A soft actor-critic."""

    actions: Any
    """its `SoftActions`"""
    temperature: Any
    returns: Any
    """its `NStepTargets`"""
    noise: Any
    """its `AddedNoise`"""

    def q_of_choices(self, rows: Rows, reads: Tensor) -> Tensor:
        """Q values [critics, T, B, choices] of the critics for what they read of actions (`Drawn.reads`)."""


class NoisyAgent(ActorCriticAgent, Protocol):
    """An `ActorCriticAgent` that explores by noise on its actions."""

    noise: Any
    """an `ActionNoise`"""
