"""Categorical DQN (Bellemare et al. 2017, arXiv:1707.06887): the distribution of the return on a fixed grid of atoms.

minimise -E[sum_k m_k log p_k(s, a)],  m = projection onto the atoms z of (r + discount * z with p'(s', a*))   (alg. 1)
a* = argmax_a sum_k z_k p'_k(s', a); double: chosen by the online net.
With double, dueling and noisy nets, priorities and n-step returns it is Rainbow (Hessel et al. 2018, arXiv:1710.02298).

Differs from the paper: priorities, where there are any, are Rainbow's KL(m || p).
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import ValueConfig
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.explore.noise import random_action
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed
from whorl.ops.targets import polyak_
from whorl.ops.transforms import categorical_projection
from whorl.ops.values import best, bootstrap, pick, pick_columns
from whorl.settings.schema import Range


@dataclass(frozen=True)
class C51Config(ExplorationConfig, ValueConfig):
    n_atoms: Annotated[int, Range(2, 100_000)] = 51
    """atoms of the return distribution"""
    v_min: Annotated[float, Range(-(10**9), 10**9)] = -10.0
    """lowest atom"""
    v_max: Annotated[float, Range(-(10**9), 10**9)] = 10.0
    """highest atom"""


class C51(Agent):
    """Categorical DQN: the whole distribution of the return."""

    Config = C51Config
    cfg: C51Config
    acts_with = ("observations", "critic", "explore")
    atoms: Tensor

    def __init__(self, spec: Spec, cfg: C51Config) -> None:
        super().__init__(spec, cfg)
        if not cfg.v_min < cfg.v_max:
            raise ConfigError(
                f"v_min is {cfg.v_min:g} and v_max {cfg.v_max:g}; v_min must be the smaller one"
            )
        self.critic = QNetwork("c51", spec, cfg, cfg.n_atoms)
        self.observations = Preprocessor(spec, cfg)
        self.explore = Exploration(spec, cfg)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("atoms", torch.linspace(cfg.v_min, cfg.v_max, cfg.n_atoms), persistent=False)
        given: dict[str, Any] = {"eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}
        self.add_optimizer("critic", self.critic, cfg.optimizer, cfg.learning_rate, **given)

    def initial_memory(self, num_envs: int) -> Tree:
        return self.critic.backbone.initial_memory(num_envs, self.device)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        if context.random:
            after = (
                self.critic.backbone.advance(self.observations(obs), memory, context.reset)
                if memory
                else memory
            )
            return Acted(random_action(self.spec, obs, context.generator), after)
        noise = {} if context.greedy else self.critic.draw(context.generator)
        logits, memory = self.critic.step(self.observations(obs), memory, context.reset, noise)
        return Acted(self.explore(self.mean(logits), obs, context, self.progress), memory)

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, move_targets=(self.updates + 1) % self.cfg.target_update_interval == 0)

    @captured
    def step(self, batch: Batch, *, move_targets: bool) -> Updated:
        cfg = self.cfg
        self.anneal()
        self.critic.renew()
        batch = self.observations.learn(batch, self.random("critic"))
        batch = self.critic.unrolled(batch)
        loss, error, q = self.critic_loss(batch, self.draw(batch))
        self.descend("critic", loss, cfg.max_grad_norm)
        if move_targets:
            polyak_(self.target_critic, self.critic, cfg.tau)
        if not cfg.target_memory:
            polyak_(self.target_critic.backbone.memories, self.critic.backbone.memories, 1.0)
        return Updated({"loss/critic": loss.detach(), "q/mean": q}, priority=error)

    def draw(self, batch: Batch) -> Tree:
        """The randomness of one update: of noisy layers, where there are any, for each pass its own."""
        nets = {"now": self.critic, "chosen": self.critic, "told": self.target_critic}
        return {name: net.draw(self.random("critic")) for name, net in nets.items()}

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """-E[sum_k m_k log p_k(s, a)]; the divergences [T, B]; the mean of Q"""
        target = self.target(batch, noise)  # [T, B, atoms]
        log_prob = pick_columns(self.critic(batch.now, noise["now"]), batch.action).log_softmax(-1)
        loss = -(target * log_prob).sum(-1)  # [T, B]
        divergence = loss.detach() + torch.special.xlogy(target, target).sum(-1)
        q = (log_prob.detach().exp() * self.atoms).sum(-1)
        # Rounding may leave a divergence just below 0.
        return (loss * batch.weight).mean(), divergence.clamp(min=0), q.mean()

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tree) -> Tensor:
        """m [T, B, atoms]"""
        following = self.target_critic(batch.next, noise["told"])  # [T, B, choices, atoms]
        judged = self.critic(batch.next, noise["chosen"]) if self.cfg.double else following
        choice = best(self.mean(judged), allowed(batch.next, self.spec))
        prob = pick_columns(following, choice).softmax(-1)
        atoms = self.atoms.expand(prob.shape)
        location = bootstrap(batch.reward, batch.discount, atoms, self.cfg.rescale_values)
        return categorical_projection(prob, location, self.atoms)

    def mean(self, logits: Tensor) -> Tensor:
        """Q = sum_k z_k p_k of logits [..., atoms]."""
        return (logits.softmax(-1) * self.atoms).sum(-1)

    def value(self, rows: Rows) -> Tensor:
        """max_a Q(s, a) of rows [T, B]."""
        q = self.mean(self.critic(rows))
        return pick(q, best(q, allowed(rows, self.spec)))
