"""Siamese Q (Advanced-SAC): an auxiliary loss that makes Q values independent of small changes of the image.

loss = mean over critics and outputs of (Q(view(s), a) - Q'(view'(s), a))^2
Q' is the agent's target critic; where it has a value for every discrete choice all of them count, with quantiles all
quantiles.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.auxiliary import Prepare, Views, ViewsConfig
from whorl.core.errors import ConfigError
from whorl.core.registry import register
from whorl.core.spec import Discrete, Spec, flatten_action
from whorl.data.batch import Batch, Rows
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.q_network import QNetwork, QuantileNetwork


@dataclass(frozen=True)
class SiameseQConfig(ViewsConfig): ...


@register("component", "siamese_q")
class SiameseQ(Views):
    """Siamese Q: online and target critics learn to agree on different views of an image."""

    Config = SiameseQConfig
    cfg: SiameseQConfig

    def __init__(self, name: str, spec: Spec, cfg: SiameseQConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        critic: Any = getattr(agent, "critic", None)
        known = isinstance(critic, QEnsemble | QNetwork) and not isinstance(critic, QuantileNetwork)
        if not known or not hasattr(agent, "target_critic") or cfg.joins == "actor":
            raise ConfigError(
                f"{name} needs target critics, and {name}.joins empty or critic, which does not fit "
                f"{type(agent).__name__} here; use sac, tqc, td3, ddpg or dqn"
            )
        self.optimize([critic], [])

    def errors(self, batch: Batch, prepare: Prepare) -> tuple[Tensor, Tensor]:
        agent: Any = self._agent[0]
        obs = prepare(batch.obs)
        q = self._values(agent.critic, batch.replace(obs=self.view(obs)).now, batch.action)
        with torch.no_grad():
            target = self._values(agent.target_critic, batch.replace(obs=self.view(obs)).now, batch.action)
        return (q - target).square().mean(-1), batch.mask

    def _values(self, critic: Any, rows: Rows, action: Any) -> Tensor:
        """All outputs of rows [T, B]: [T, B, outputs]."""
        agent: Any = self._agent[0]
        if isinstance(critic, QNetwork):
            return critic(rows).flatten(-2)
        if hasattr(agent, "actions"):  # of soft actor-critics
            read = agent.actions.read(action)
        else:  # critics of options have a value for every discrete action
            every = isinstance(self.spec.action, Discrete) and not agent.q_of_actions
            read = None if every else flatten_action(self.spec.action, action)
        return critic(rows, read).movedim(0, 2).flatten(2)
