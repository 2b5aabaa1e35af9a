"""Categorical DQN (Bellemare et al. 2017, arXiv:1707.06887): the distribution of the return on a fixed grid of atoms.

minimise -E[sum_k m_k log p_k(s, a)],  m = projection onto the atoms z of (r + discount * z with p'(s', a*))   (alg. 1)
a* = argmax_a sum_k z_k p'_k(s', a); double: chosen by the online network.
With double, dueling and noisy networks, priorities and n-step returns it is Rainbow (Hessel et al. 2018,
arXiv:1710.02298).

Differs from the paper: with prioritized replay, priorities are Rainbow's KL(m || p).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ValueConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.registry import Part
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import act_by_values, highest_value
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.nets.atoms import Atoms, advice_on_clipping
from whorl.nets.losses import cross_entropy, distribution_loss
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed, draw_passes
from whorl.ops.values import best, bootstrap, pick_columns
from whorl.settings.schema import Choice, Range


@dataclass(frozen=True)
class C51Config(ExplorationConfig, ValueConfig):
    n_atoms: Annotated[int, Range(2, 100_000)] = 51
    """atoms of the return distribution"""
    v_min: Annotated[float, Range(-(10**9), 10**9)] = -10.0
    """lowest atom"""
    v_max: Annotated[float, Range(-(10**9), 10**9)] = 10.0
    """highest atom"""
    loss: Annotated[Part, Choice("distribution_loss", ("cross_entropy",))] = Part("cross_entropy")
    """loss between distributions: cross_entropy, or the import path of a function of log-probabilities and target
    probabilities [..., atoms], one value per row"""


class C51(Agent):
    """Categorical DQN: the distribution of the return of each action."""

    Config = C51Config
    cfg: C51Config
    acts_with = ("observations", "critic", "explore")
    shares_unroll = ("critic",)

    def __init__(self, spec: Spec, cfg: C51Config) -> None:
        super().__init__(spec, cfg)
        self.grid = Atoms(cfg)
        self.critic = QNetwork("c51", spec, cfg, cfg.n_atoms)
        self.loss = distribution_loss(Part.of(cfg.loss))
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_optimizers(critic=cfg.learning_rate)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_values(self, obs, memory, context)

    def q_values(self, features: Tensor, noise: Tree) -> Tensor:
        return self.grid.mean(self.critic.outputs(features, noise))

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        return highest_value(self, rows)

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        return draw_passes(self.critic, self.target_critic, self.random("critic"))

    def advice(self, metrics: Mapping[str, float]) -> str | None:
        return advice_on_clipping(self.cfg, metrics)

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """-E[sum_k m_k log p_k(s, a)]; the divergences KL(m || p) [T, B]; the mean of Q; how much m was clipped"""
        target, outside = self.target(batch, noise)  # [T, B, atoms], [T, B]
        log_prob = pick_columns(self.critic(batch.now, noise["online"]), batch.action).log_softmax(-1)
        loss = self.loss(log_prob, target)  # [T, B]
        divergence = cross_entropy(log_prob.detach(), target) + torch.special.xlogy(target, target).sum(-1)
        q = (log_prob.detach().exp() * self.grid.atoms).sum(-1)
        mean, metrics = (q * batch.share).mean(), self.grid.metrics(outside, batch)
        # Rounding may make a divergence slightly negative.
        divergence = divergence.clamp(min=0)
        return (loss * batch.weight).mean(), divergence, mean, metrics

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """m [T, B, atoms], and the probability [T, B] of returns that lie outside the atoms and are moved to an edge"""
        logits = self.target_critic(batch.next, noise["target"])  # [T, B, choices, atoms]
        select = self.critic(batch.next, noise["select"]) if self.cfg.double else logits
        choice = best(self.grid.mean(select), allowed(batch.next, self.spec))
        prob = pick_columns(logits, choice).softmax(-1)
        atoms = self.grid.atoms.expand(prob.shape)
        location = bootstrap(batch.reward, batch.discount, atoms, self.cfg.rescale_values)
        return self.grid.project(prob, location)
