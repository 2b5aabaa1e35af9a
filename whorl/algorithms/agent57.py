"""Agent57 (Badia et al. 2020, arXiv:2003.13350): separate values of both rewards, and a bandit that chooses policies.

Q(s, a) = h(h^-1(Qe(s, a)) + beta_i * h^-1(Qi(s, a))) of two recurrent networks with the same inputs. Policy i is greedy
on Q. Qe learns from the environment's reward alone, Qi from the intrinsic reward alone, both with discount gamma_i:
minimise E[1/2 (Q_j(s_t, a_t) - h(G_j,t))^2],  G_j: Retrace with the target network of Q_j and the greedy policy of Q
A sliding-window UCB per environment chooses the policy of each episode by the undiscounted returns of the environment.
priority = w |error of Qe| + (1 - w) |error of Qi|

Options of MEME (Kapturowski et al. 2023, arXiv:2209.07550), off by default:
trust_region   targets are those of the online networks, Q_j in place of Q'_j, and there is no gradient where
               |Q_j - Q'_j| > trust_region * sigma_i and the step would lead further away
normalize_td   errors are divided by sigma_i, their running deviation for each policy
soft_lambda    Retrace continues where Q(s, a) >= V - soft_lambda * |V|, instead of at greedy actions only, with the
               networks of the targets
policy_head    a second output of Qe's network, pi, imitates the greedy policy of Q, and its best action replaces
               the greedy one in acting and in V': minimise -log pi(argmax Q) where KL(pi' || pi) <= policy_max_kl
The intrinsic reward is that of the component `episodic`. Evaluation follows the policy with the best recent returns.
Differs from the paper: the networks read h(max_beta * r_intrinsic); policy 0 may learn from the sequences of others
(`relabel`).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import ValueConfig
from whorl.agents.protocols import MemoryNet
from whorl.agents.targets import TargetNetworks
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import LAST, POLICY, Batch, Rows
from whorl.explore.epsilon_greedy import Exploration, ExplorationConfig
from whorl.explore.policies import (
    BEHAVIOUR,
    FAMILY,
    Bandit,
    BanditConfig,
    PoliciesConfig,
    PolicyReturns,
    act_as,
    as_policy,
    betas,
    gammas,
    relabelled,
    require_policies,
)
from whorl.nets.normalize import DeviationByPolicy
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_network import QNetwork, allowed
from whorl.ops.losses import masked_mean
from whorl.ops.transforms import value_rescale, value_rescale_inverse
from whorl.ops.values import best, pick, retrace_target
from whorl.settings.schema import Fraction, NonNegative, PositiveCount, Range

ILLEGAL = -1e9
"""logit of an action that the mask forbids"""
ENDED, RETURN = "ended_policy", "ended_return"
"""columns of the first row of an episode: the policy of the episode before, or -1, and its return"""


@dataclass(frozen=True)
class Agent57Config(BanditConfig, PoliciesConfig, ExplorationConfig, ValueConfig):
    unused = ("gamma", "n_step", "double", "noisy", "noisy_sigma")
    n_step: PositiveCount = 1
    """not used: Retrace replaces n-step returns"""
    rescale_values: bool = True
    """learn h(return) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 instead of the return (Pohlen et al. 2018)"""
    retrace_lambda: Fraction = 0.95
    """lambda of Retrace"""
    extrinsic_priority: Fraction = 0.8
    """weight of the error of the environment's values in the priorities"""
    trust_region: NonNegative = 0.0
    """MEME: learn from targets of the online network, and ignore errors that lead further than this many deviations
    away from the target network; 0: targets of the target network"""
    normalize_td: bool = False
    """MEME: divide errors by their running deviation for each policy"""
    soft_lambda: Annotated[float, Range(0, 100)] = 0.0
    """MEME: tolerance of soft Q(lambda), as a fraction of the value; 0: Retrace with the greedy policy"""
    policy_head: bool = False
    """MEME: act by a policy that imitates the greedy one, and so changes less from update to update"""
    policy_max_kl: NonNegative = 0.5
    """with policy_head: no update where its KL divergence from the target network's policy is above this"""


class Agent57(Agent):
    """Agent57: separate networks for both rewards, and a bandit over a family of exploring policies."""

    Config = Agent57Config
    cfg: Agent57Config
    acts_with = ("observations", "critic", "intrinsic", "explore", "returns")
    shares_unroll = ("critic", "intrinsic")
    separate_streams = True
    tracks = True
    beta: Tensor
    discounts: Tensor

    def __init__(self, spec: Spec, cfg: Agent57Config) -> None:
        super().__init__(spec, cfg)
        require_policies(self)
        if cfg.bandit_window < cfg.num_policies:
            raise ConfigError(
                f"bandit_window is {cfg.bandit_window}, but each of {cfg.num_policies} policies has to fit in; use a "
                "larger window or fewer num_policies"
            )
        self.critic = QNetwork("agent57", spec, cfg, columns=1 + cfg.policy_head)
        self.intrinsic = QNetwork("agent57_intrinsic", spec, cfg)
        self.observations, self.explore = Preprocessor(spec, cfg), Exploration(spec, cfg)
        self.bandit = Bandit(cfg.num_policies, cfg.bandit_window, cfg.bandit_beta, cfg.bandit_epsilon)
        self.returns = PolicyReturns(cfg.num_policies)
        self.register_buffer("beta", betas(cfg.num_policies, cfg.max_beta), persistent=False)
        discounts = gammas(cfg.num_policies, cfg.max_gamma, cfg.min_gamma)
        self.register_buffer("discounts", discounts, persistent=False)
        self.deviation = DeviationByPolicy(cfg.num_policies)
        self.intrinsic_deviation = DeviationByPolicy(cfg.num_policies)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        self.target_intrinsic = self.targets.add(self.intrinsic)
        self.add_optimizers(critic=cfg.learning_rate, intrinsic=cfg.learning_rate)

    @property
    def gamma(self) -> float:
        """Every policy has its own discount, which is applied in the update."""
        return 1.0

    # Acting

    def networks(self) -> list[MemoryNet]:
        return [self.critic, self.intrinsic]

    def initial_memory(self, num_envs: int) -> Tree:
        device = self.device
        family = {
            "index": torch.full((num_envs,), -1, device=device),
            "return": torch.zeros(num_envs, device=device),
            "bandit": {name: value.to(device) for name, value in self.bandit.initial(num_envs).items()},
        }
        return {**super().initial_memory(num_envs), FAMILY: family}

    def carry_over(self, memory: Tree, before: Tree) -> Tree:
        family = {**memory[FAMILY], "bandit": before[FAMILY]["bandit"]}
        return {**super().carry_over(memory, before), FAMILY: family}

    def stored(self, num_envs: int = 1) -> Tree:
        memory = super().stored(num_envs)
        return {key: value for key, value in memory.items() if key != FAMILY}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        held, reset = memory[FAMILY], context.reset
        # The last reward of an episode is known in the row of its final observation.
        total = torch.where(reset, held["return"], held["return"] + memory[LAST]["reward"])
        ended = reset & (held["index"] >= 0)
        bandit = self.bandit.add(held["bandit"], ended, held["index"].clamp(min=0), total)
        index = torch.where(reset, self.bandit.choose(bandit, context.generator), held["index"])
        if context.greedy:
            index = self.returns.best().expand_as(index)
        family = {"index": index, "return": total.masked_fill(reset, 0.0), "bandit": bandit}
        acted = act_as(self, index, obs, {**memory, FAMILY: family}, context)
        acted.extras.update({ENDED: torch.where(ended, held["index"], -1), RETURN: total})
        return acted

    def evaluate_row(self, obs: Tree, memory: Tree, reset: Tensor) -> tuple[Tensor, Tree]:
        """Q values [B, choices] of one row, or logits with `policy_head`, and the memory after it."""
        extrinsic, after = self.critic.step(obs, memory, reset)
        intrinsic, other = self.intrinsic.step(obs, memory, reset)
        after = {**after, **other}
        if self.cfg.policy_head:
            return extrinsic[..., 1], after
        return self.mixed(extrinsic[..., 0], intrinsic[..., 0], memory[LAST][POLICY]), after

    def q_of_rows(self, rows: Rows) -> Tensor:
        """Q values [T, B, choices] of the policy that evaluation follows."""
        rows = as_policy(rows, self.returns.best())
        return self.mixed(self.critic(rows)[..., 0], self.intrinsic(rows)[..., 0], rows.last[POLICY])

    def mixed(self, extrinsic: Tensor, intrinsic: Tensor, index: Tensor) -> Tensor:
        """Q [..., choices] of both values [..., choices] for the policies `index` [...]."""
        beta = self.beta[index].unsqueeze(-1)
        if not self.cfg.rescale_values:
            return extrinsic + beta * intrinsic
        return value_rescale(value_rescale_inverse(extrinsic) + beta * value_rescale_inverse(intrinsic))

    def columns(self) -> dict[str, Array]:
        return {**super().columns(), POLICY: Array((), "int64"), BEHAVIOUR: Array(())}

    def observe(self, rollout: Batch) -> None:
        super().observe(rollout)
        ended = torch.where(rollout.mask > 0, rollout.extras[ENDED], -1)
        self.returns.add_(ended.to(self.device), rollout.extras[RETURN].to(self.device))

    def row_metrics(self) -> dict[str, float]:
        episodes = {f"policies/episodes_{i}": count for i, count in enumerate(self.returns.count.tolist())}
        return {**episodes, "policies/best": float(self.returns.best())}

    # Learning

    def prepare_batch(self, batch: Batch) -> Batch:
        return super().prepare_batch(relabelled(self, batch))

    def update(self, batch: Batch) -> Updated:
        return self.step(batch, move_targets=self.targets.due(self.updates))

    @captured
    def step(self, batch: Batch, *, move_targets: bool) -> Updated:
        batch = self.prepare_batch(batch)
        losses, errors, metrics = self.losses(batch)
        self.minimize("critic", losses[0], self.cfg.max_grad_norm)
        self.minimize("intrinsic", losses[1], self.cfg.max_grad_norm)
        index, mask = batch.last[POLICY][:-1], batch.mask
        priority = self.priority(errors, index)
        for deviation, error in zip((self.deviation, self.intrinsic_deviation), errors):
            deviation.merge_(error, index, mask)
        self.targets.update_(move_targets)
        return Updated(metrics, priority=priority)

    @pure
    def losses(self, batch: Batch) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
        """Losses E[1/2 (Q(s, a) - h(G))^2] of both networks, TD errors [T, B], metrics."""
        rows, cfg, policies = batch.all, self.cfg, batch.last[POLICY]
        index, legal = policies[:-1], allowed(rows, self.spec)
        found, other = self.critic(rows), self.intrinsic(rows)  # [T+1, B, choices, columns]
        q = [found[..., 0], other[..., 0]]
        with torch.no_grad():
            old, other = self.target_critic(rows), self.target_intrinsic(rows)
            lagging = [old[..., 0], other[..., 0]]
            values = q if cfg.trust_region else lagging
            greedy = best(self.mixed(q[0], q[1], policies), legal)  # [T+1, B]
            choice = best(found[..., 1], legal) if cfg.policy_head else greedy
            ratio = self.ratio(batch, choice, self.mixed(values[0], values[1], policies))
            environment, *others = batch.reward.unbind(-1)
            discount = batch.discount[..., 0] * self.discounts[index]
            given = (choice, batch.action, ratio, cfg.retrace_lambda, cfg.rescale_values)
            targets = [
                retrace_target(reward, discount, batch.keep[..., 0], value, *given)
                for reward, value in zip((environment, torch.stack(others).sum(0)), values)
            ]
        losses, errors, means = [], [], []
        for online, before, target, deviation in zip(
            q, lagging, targets, (self.deviation, self.intrinsic_deviation)
        ):
            taken = pick(online[:-1], batch.action)
            error = taken - target
            spread = deviation.of(index)  # [T, B]
            used = batch.weight
            if cfg.trust_region:
                away = (taken - pick(before[:-1], batch.action)).detach()
                outside = (away.abs() > cfg.trust_region * spread) & (away.sign() != error.detach().sign())
                used = used * ~outside
            scaled = error / spread if cfg.normalize_td else error
            losses.append((0.5 * scaled.square() * used).mean())
            errors.append(error.detach())
            means.append((taken.detach() * batch.share).mean())
        names = ("loss/critic", "loss/intrinsic", "q/mean", "q/intrinsic")
        metrics = dict(zip(names, [*(loss.detach() for loss in losses), *means]))
        if cfg.policy_head:
            logits = [x[:-1, ..., 1] for x in (found, old)]
            loss, kl = self.policy_loss(logits[0], logits[1], greedy[:-1], legal, batch.weight)
            losses[0] = losses[0] + loss
            metrics.update({"loss/policy": loss.detach(), "policy/kl": kl})
        return losses, errors, metrics

    def policy_loss(
        self, logits: Tensor, old: Tensor, greedy: Tensor, legal: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """E[-log pi(greedy)] of logits [T, B, choices] where pi is near the target network's; mean KL(pi' || pi)."""
        if legal is not None:
            logits, old = (torch.where(legal[:-1], x, ILLEGAL) for x in (logits, old))
        log_prob, before = logits.log_softmax(-1), old.log_softmax(-1)
        kl = (before.exp() * (before - log_prob.detach())).sum(-1)  # [T, B]
        used = weight * (kl <= self.cfg.policy_max_kl)
        return -(pick(log_prob, greedy) * used).mean(), masked_mean(kl, (weight > 0).float())

    def ratio(self, batch: Batch, choice: Tensor, q: Tensor) -> Tensor:
        """pi(a) / mu(a) [T, B] of the greedy policy; with soft_lambda 1 where the action is nearly as good, else 0."""
        if not self.cfg.soft_lambda:
            return (batch.action == choice[:-1]) / batch.extras[BEHAVIOUR].clamp(min=1e-6)
        value = pick(q, choice)[:-1]
        return (pick(q[:-1], batch.action) >= value - self.cfg.soft_lambda * value.abs()).float()

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        batch = self.observations.learn(batch, self.random("critic"))
        return self.priority(self.losses(batch)[1], batch.last[POLICY][:-1])

    def priority(self, errors: list[Tensor], index: Tensor) -> Tensor:
        """The weighted size of the TD errors [T, B] of both networks, as their losses scale them."""
        weight, sizes = self.cfg.extrinsic_priority, [error.abs() for error in errors]
        if self.cfg.normalize_td:
            sizes[0] = sizes[0] / self.deviation.of(index)
            sizes[1] = sizes[1] / self.intrinsic_deviation.of(index)
        return weight * sizes[0] + (1 - weight) * sizes[1]
