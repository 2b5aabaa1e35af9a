"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): an intrinsic reward for new observations.

reward_t = mean_k (predictor(s_{t+1}) - target(s_{t+1}))_k^2 / std of the discounted sum of these errors
The target network is random and fixed; the predictor learns to imitate it on the observations that are visited. Both
read observations, of a frame stack the newest one, normalised by running statistics and clipped to +-5. The reward
stream is not episodic; agents with replay and PQN, which learn from the sum of all rewards, end it with the episode.

Differs from the paper: the predictor is trained once per update on part of its rows, not in every PPO epoch; with
replay the reward is computed once, when the rollout is added.
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
from whorl.nets.novelty import Distillation
from whorl.ops.losses import masked_mean
from whorl.settings.schema import Count


@dataclass(frozen=True)
class RNDConfig(LearnedBonusConfig):
    warmup_steps: Count = 0
    """environment steps at the start that only update its statistics of observations: their reward is 0, and the
    predictor does not learn"""


@register("component", "rnd")
class RND(Bonus):
    """Random network distillation: intrinsic reward by the prediction error of a random network."""

    Config = RNDConfig
    cfg: RNDConfig
    episodic = False
    seen: Tensor

    def __init__(self, name: str, spec: Spec, cfg: RNDConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.networks = Distillation(
            spec.observation, cfg.encoder, cfg.hidden_sizes, cfg.features, cfg.obs_clip_range
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        agent.add_optimizer(name, self.networks.predictor, cfg.optimizer, cfg.lr)

    def observe(self, rollout: Batch) -> None:
        self.networks.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)

    @property
    def warm(self) -> Tensor:
        """1 once the warm-up is over, 0 before."""
        return (self.seen >= self.cfg.warmup_steps).float()

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        warm = self.warm
        self.seen.add_(rollout.mask.sum())
        # No row of the warm-up counts in the statistics of the return.
        found = super().rewards(rollout.replace(mask=rollout.mask * warm))
        return {name: torch.where(warm > 0, reward, 0.0) for name, reward in found.items()}

    def bonus(self, rollout: Batch) -> Tensor:
        return in_parts(self.error, tree.index(rollout.obs, slice(1, None)))

    def error(self, obs: Tree) -> Tensor:
        """Mean squared prediction error of observations [..., ...]: [...]."""
        return self.networks(obs).square().mean(-1)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        losses = []
        for _, _, following, mask in self.minibatches(agent, batch):
            loss = masked_mean(self.error(following), mask)
            agent.minimize(self.name, loss, gate=self.warm)
            losses.append(loss.detach())
        return {f"loss/{self.name}": torch.stack(losses).mean(), **self.metrics()}
