"""Never Give Up (Badia et al. 2020, arXiv:2002.06038): one recurrent Q function for a family of exploring policies.

Policy i maximises r + beta_i * r_intrinsic with discount gamma_i; beta_0 = 0, so policy 0 only exploits. The network
reads i, the previous action and both previous rewards. Every episode has one policy, drawn at its start.
minimise E[1/2 (Q(s_t, a_t) - h(G_t))^2],
G_t = r_t + gamma_i * (V_{t+1} + c_{t+1} * (G_{t+1} - h^-1(Q'(s_{t+1}, a_{t+1}))))                    (Retrace)
V_t = h^-1(Q'(s_t, a*)),  a* = argmax_a Q(s_t, a),  c_t = lambda * min(1, pi(a_t) / mu(a_t)),  pi greedy, h rescales

The intrinsic reward is that of the component `episodic`. Differs from the paper: policies are drawn uniformly for each
episode of an environment, instead of one fixed policy per actor; the network reads h(max_beta * r_intrinsic); policy 0
may learn from the sequences of others (`relabel`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ValueConfig
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import POLICY, Batch, Rows
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.explore.policies import (
    BEHAVIOUR,
    FAMILY,
    PoliciesConfig,
    act_as,
    as_policy,
    betas,
    draw_policy,
    gammas,
    relabelled,
    require_policies,
)
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed, draw_passes
from whorl.ops.values import best, pick, retrace_target
from whorl.settings.schema import Fraction, PositiveCount


@dataclass(frozen=True)
class NGUConfig(PoliciesConfig, ExplorationConfig, ValueConfig):
    unused = ("gamma", "n_step", "double", "noisy", "noisy_sigma")
    n_step: PositiveCount = 1
    """not used: Retrace replaces n-step returns"""
    rescale_values: bool = True
    """learn h(return) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 instead of the return (Pohlen et al. 2018)"""
    retrace_lambda: Fraction = 0.95
    """lambda of Retrace"""


class NGU(Agent):
    """Never Give Up: a family of exploring policies, episodic novelty and recurrent replay."""

    Config = NGUConfig
    cfg: NGUConfig
    acts_with = ("observations", "critic", "explore")
    shares_unroll = ("critic",)
    separate_streams = True
    tracks = True
    beta: Tensor
    discounts: Tensor

    def __init__(self, spec: Spec, cfg: NGUConfig) -> None:
        super().__init__(spec, cfg)
        require_policies(self)
        self.critic = QNetwork("ngu", spec, cfg)
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.register_buffer("beta", betas(cfg.num_policies, cfg.max_beta), persistent=False)
        discounts = gammas(cfg.num_policies, cfg.max_gamma, cfg.min_gamma)
        self.register_buffer("discounts", discounts, persistent=False)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.add_optimizers(critic=cfg.learning_rate)

    @property
    def gamma(self) -> float:
        """Every policy has its own discount, which is applied in the update."""
        return 1.0

    # Acting

    def initial_memory(self, num_envs: int) -> Tree:
        index = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        return {**super().initial_memory(num_envs), FAMILY: {"index": index}}

    def stored(self, num_envs: int = 1) -> Tree:
        memory = super().stored(num_envs)
        return {key: value for key, value in memory.items() if key != FAMILY}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """Evaluation follows policy 0."""
        index = torch.where(context.reset, draw_policy(self, context), memory[FAMILY]["index"])
        if context.greedy:
            index = torch.zeros_like(index)
        return act_as(self, index, obs, memory, context)

    def evaluate_row(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Tensor, Tree]:
        """Q values [B, choices] of one row, and the memory after it."""
        q, after = self.critic.step(obs, memory, reset)
        return q.squeeze(-1), after

    def q_of_rows(self, rows: Rows) -> Tensor:
        """Q values [T, B, choices] of policy 0, which evaluation follows."""
        return self.critic(as_policy(rows, 0)).squeeze(-1)

    def columns(self) -> dict[str, Array]:
        return {**super().columns(), POLICY: Array((), "int64"), BEHAVIOUR: Array(())}

    # Learning

    def prepare_batch(self, batch: Batch) -> Batch:
        return super().prepare_batch(relabelled(self, batch))

    def update(self, batch: Batch) -> Updated:
        return replay_step(self, batch, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        return draw_passes(self.critic, self.target_critic, self.random("critic"))

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """E[1/2 (Q(s, a) - h(G))^2]; the TD errors [T, B]; the mean of Q"""
        q = self.critic(batch.all).squeeze(-1)  # [T+1, B, choices]
        taken = pick(q[:-1], batch.action)
        error = taken - self.target(batch, q.detach())
        return (
            (0.5 * error.square() * batch.weight).mean(),
            error.detach().abs(),
            (taken.detach() * batch.share).mean(),
        )

    @torch.no_grad()
    def target(self, batch: Batch, q: Tensor) -> Tensor:
        """h(G) [T, B]; `q` [T+1, B, choices] are the online network's values"""
        index = batch.last[POLICY][:-1]
        environment, *others = batch.reward.unbind(-1)
        reward = environment + self.beta[index] * torch.stack(others).sum(0)
        choice = best(q, allowed(batch.all, self.spec))
        ratio = (batch.action == choice[:-1]) / batch.extras[BEHAVIOUR].clamp(min=1e-6)
        return retrace_target(
            reward,
            batch.discount[..., 0] * self.discounts[index],
            batch.keep[..., 0],
            self.target_critic(batch.all).squeeze(-1),
            choice,
            batch.action,
            ratio,
            self.cfg.retrace_lambda,
            self.cfg.rescale_values,
        )
