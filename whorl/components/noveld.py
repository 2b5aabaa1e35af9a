"""NovelD (Zhang et al. 2021, NeurIPS): a reward for crossing the boundary of what is known, once an episode.

novelty(s) = |predictor(s) - target(s)|, the error of random network distillation
reward_t   = max(novelty(s_{t+1}) - alpha * novelty(s_t), 0) * [s_{t+1} is visited for the first time in its episode]

Differs from the paper: visits within an episode are those to hashed cells of the observation (`bins`, `cells`); the
reward is divided by the running deviation of its return, as in RND (`normalize`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.bonus import Bonus, LearnedBonusConfig, in_parts
from whorl.core import tree
from whorl.core.registry import register
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.novelty import Cells, Distillation
from whorl.ops.losses import masked_mean
from whorl.settings.schema import NonNegative, PositiveCount


@dataclass(frozen=True)
class NovelDConfig(LearnedBonusConfig):
    alpha: NonNegative = 0.5
    """weight of the novelty of the observation before"""
    bins: PositiveCount = 20
    """cells per dimension of a vector: of its bounds if it has them, else per two units"""
    cells: PositiveCount = 4_096
    """size of the table of visited cells of an episode; two cells may share an entry"""


@register("component", "noveld")
class NovelD(Bonus):
    """Novelty difference: reward for stepping from known to unknown observations, once an episode."""

    Config = NovelDConfig
    cfg: NovelDConfig

    def __init__(self, name: str, spec: Spec, cfg: NovelDConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.networks = Distillation(
            spec.observation, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range
        )
        self.cells = Cells(spec.observation, cfg.bins, cfg.cells)
        agent.add_optimizer(name, self.networks.predictor, cfg.optimizer, cfg.lr)

    def initial_memory(self, num_envs: int) -> Tree:
        return {"visited": torch.zeros(num_envs, self.cfg.cells, dtype=torch.bool)}

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        visited = memory["visited"].masked_fill_(reset.unsqueeze(1), False)
        cell = self.cells(next_obs).unsqueeze(1)
        first = ~visited.gather(1, cell).squeeze(1)
        visited.scatter_(1, cell, True)
        return {"visited": visited}, {f"{self.name}_first": first.float()}

    def observe(self, rollout: Batch) -> None:
        self.networks.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)

    def novelty(self, obs: Tree) -> Tensor:
        """|predictor - target| of observations [..., ...]: [...]."""
        return self.networks(obs).square().sum(-1).sqrt()

    def bonus(self, rollout: Batch) -> Tensor:
        novelty = in_parts(self.novelty, rollout.obs)  # [T+1, B]
        gain = (novelty[1:] - self.cfg.alpha * novelty[:-1]).clamp(min=0)
        return gain * rollout.extras[f"{self.name}_first"]

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        losses = []
        for _, _, following, mask in self.minibatches(agent, batch):
            loss = masked_mean(self.networks(following).square().mean(-1), mask)
            agent.minimize(self.name, loss)
            losses.append(loss.detach())
        return {f"loss/{self.name}": torch.stack(losses).mean(), **self.metrics()}
