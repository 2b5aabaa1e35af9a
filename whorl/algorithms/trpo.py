"""Trust region policy optimisation (Schulman et al. 2015, arXiv:1502.05477).

policy:  maximise L(theta) = E[ratio * A] subject to E[KL(pi_old || pi)] <= max_kl, ratio = pi(a|s) / pi_old(a|s)
step:    theta_old + b^j * sqrt(2 max_kl / x^T F x) * x with F x = g, the smallest j with L above L(theta_old) and the
         KL divergence within its bound; none of them: no step                                      (appendix C)
critic:  minimise E[(V(s) - target)^2] / 2
g is the gradient of L and F the Fisher information matrix, the Hessian of the KL divergence at theta_old. Products F v
are gradients of (gradient of the KL divergence) . v; conjugate gradients solve for x with them alone. A = generalised
advantage estimate (Schulman et al. 2015, arXiv:1506.02438), target = A + V. With reward streams V has an output per
stream, A is the weighted sum of their advantages, and the critic's loss is their mean.

Differs from the paper: F is damped (F + cg_damping * I), as in the authors' code; the critic is fitted by minibatches.
All lengths of the line search are tried, and the longest that fits is taken, so that an update never waits for a value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OnPolicyConfig
from whorl.core import collectives
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.data.rollouts import check_batch_size, minibatches
from whorl.explore.acting import act_by_policy, by_policy
from whorl.nets.images import spectral_layers
from whorl.nets.memory import MemoryConfig
from whorl.nets.normalize import normalizers
from whorl.nets.policy import Policy, Value
from whorl.ops.losses import blank, explained_variance, masked_mean, masked_normalize, per_stream, row_weight
from whorl.ops.returns import gae
from whorl.settings.schema import Fraction, LearningRate, NonNegative, PositiveCount, PositiveLimit, Range


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    unused: ClassVar[tuple[str, ...]] = (
        *("actor_lr", "chunk_length"),
        *(field.name for field in fields(MemoryConfig)),  # their kernels have no second derivative
    )
    gamma: Fraction = 0.99
    """discount factor"""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation"""
    max_kl: PositiveLimit = 0.01
    """bound of the mean KL divergence between the policies before and after an update"""
    cg_iterations: PositiveCount = 10
    """iterations of conjugate gradients"""
    cg_damping: NonNegative = 0.1
    """multiple of the identity that is added to the Fisher matrix"""
    backtracks: PositiveCount = 10
    """step lengths that the line search tries"""
    backtrack_coef: Annotated[float, Range(0.01, 0.99)] = 0.8
    """factor between one length and the next"""
    normalize_advantage: bool = True
    """normalise advantages over the rollout"""
    critic_lr: LearningRate = 1e-3
    """learning rate of the critic"""
    critic_epochs: PositiveCount = 10
    """passes of the critic over each rollout"""
    batch_size: Annotated[int, Range(1, 10**7)] = 128
    """steps per minibatch of the critic; must divide num_envs * num_steps"""


class TRPO(Agent):
    """Trust region policy optimisation: the largest natural gradient step within a KL divergence of the old policy."""

    Config = TRPOConfig
    acts_with = ("observations", "actor")
    cfg: TRPOConfig
    separate_streams = True

    def __init__(self, spec: Spec, cfg: TRPOConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.rewards = normalizers(spec, cfg)
        self.actor, self.critic = Policy("actor", spec, cfg), Value("critic", spec, cfg)
        self.add_optimizers(critic=cfg.critic_lr)

    def trained(self) -> dict[str, nn.Parameter]:
        """Those of the actor too, which has no optimizer."""
        return {**{f"actor.{name}": p for name, p in self.actor.named_parameters()}, **super().trained()}

    def check(self, rows: int) -> None:
        check_batch_size(self.cfg.batch_size, rows, 1)

    @by_policy
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=True)

    @captured
    def update(self, rollout: Batch) -> Updated:
        batch = self.begin_update(rollout)
        advantage, target, value = self.estimate(batch)
        actor, critic = self.run_parallel(
            lambda: self.improve_policy(batch, advantage), lambda: self.fit_value(batch, target)
        )
        self.end_update(rollout)
        fit = explained_variance(value, target, per_stream(batch.mask, value))
        return Updated({**actor, **critic, "value/explained_variance": fit})

    @pure
    @torch.no_grad()
    def estimate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Advantage [T, B], value target and value [T, B] (or [T, B, streams]) of each row."""
        value = self.critic(batch.all)  # [T+1, B]
        advantage = gae(batch.reward, batch.discount, value, batch.keep, self.cfg.gae_lambda)
        advantage = blank(advantage, per_stream(batch.mask, advantage))
        target = advantage + value[:-1]
        advantage = self.sum_streams(advantage)
        if self.cfg.normalize_advantage:
            advantage = masked_normalize(advantage, batch.mask)
        return advantage, target, value[:-1]

    @sdpa_kernel(SDPBackend.MATH)  # fused attention has no second derivative
    def improve_policy(self, batch: Batch, advantage: Tensor) -> dict[str, Tensor]:
        """The actor's step."""
        cfg, parameters = self.cfg, list(self.actor.parameters())
        with torch.no_grad():
            old = self.actor(batch.now)
        policy = self.actor(batch.now)
        surrogate = self.surrogate(policy, batch, advantage)
        gradient = self.mean(derivative(surrogate, parameters))
        slope = derivative(self.divergence(old, policy, batch), parameters, create_graph=True)

        def fisher(vector: Tensor) -> Tensor:
            return self.mean(hessian_product(slope, parameters, vector)) + cfg.cg_damping * vector

        direction = conjugate_gradient(fisher, gradient, cfg.cg_iterations)
        length = (2 * cfg.max_kl / direction.dot(fisher(direction)).clamp(min=1e-12)).sqrt()
        start = collectives.mean(surrogate.detach())

        def measure() -> tuple[Tensor, Tensor]:
            policy = self.actor(batch.now)
            found = torch.stack(
                [self.surrogate(policy, batch, advantage), self.divergence(old, policy, batch)]
            )
            gain, kl = collectives.mean(found).unbind()
            return gain - start, kl

        lengths = [cfg.backtrack_coef**number for number in range(cfg.backtracks)]
        taken, gain, kl = line_search(parameters, length * direction, lengths, measure, cfg.max_kl)
        for layer in spectral_layers(self.actor):
            layer.iterate_()
        entropy = masked_mean(policy.entropy().detach().expand_as(batch.mask), batch.mask)
        return {
            "loss/actor": -(start + gain),
            "gradient/actor": gradient.norm(),
            "policy/entropy": entropy,
            "policy/kl": kl,
            "policy/step_fraction": taken,
        }

    def mean(self, vector: Tensor) -> Tensor:
        """The mean over several learners, which share a rollout."""
        if self.exchange is not None:
            self.exchange([vector])
        return vector

    @pure
    def surrogate(self, policy: Any, batch: Batch, advantage: Tensor) -> Tensor:
        """L = E[ratio * A]"""
        log_prob = blank(batch.extras["log_prob"], batch.mask)
        log_ratio = (policy.log_prob(batch.action) - log_prob).clamp(max=30)
        return masked_mean(log_ratio.exp() * advantage, batch.mask)

    def divergence(self, old: Any, policy: Any, batch: Batch) -> Tensor:
        """E[KL(pi_old || pi)]; not `pure`, because compiled functions have no second derivative."""
        return masked_mean(old.kl(policy).expand_as(batch.mask), batch.mask)

    def fit_value(self, batch: Batch, target: Tensor) -> dict[str, Tensor]:
        """The critic's passes over the rollout."""
        cfg = self.cfg
        columns = {"target": target, "weight": per_stream(row_weight(batch.mask), target)}
        found = []
        for epoch in range(cfg.critic_epochs):
            for rows, data in minibatches(batch, columns, cfg.batch_size, self.random("critic")):
                loss = self.critic_loss(rows, data)
                norm = self.minimize("critic", loss, cfg.max_grad_norm, measure=True)
                if epoch == cfg.critic_epochs - 1:
                    found.append(torch.stack([loss.detach(), norm]))
        loss, norm = torch.stack(found).mean(0).unbind()
        return {"loss/critic": loss, "gradient/critic": norm}

    @pure
    def critic_loss(self, rows: Rows, data: dict[str, Tensor]) -> Tensor:
        """E[(V(s) - target)^2] / 2"""
        error = 0.5 * (self.critic(rows) - data["target"]).square()
        return (error * data["weight"]).mean()


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All values as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def derivative(value: Tensor, parameters: Sequence[Tensor], create_graph: bool = False) -> Tensor:
    """The gradient of `value`, 0 for parameters that it does not depend on; its graph stays."""
    found = torch.autograd.grad(
        value,
        list(parameters),
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return flat(found)


def hessian_product(slope: Tensor, parameters: Sequence[Tensor], vector: Tensor) -> Tensor:
    """H v, H the matrix of second derivatives of what has the gradient `slope`, with its graph."""
    return derivative(slope.dot(vector), parameters)


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """x with A x = target for a positive definite A, of which only the products A v are known.

    Once the squared error is below `tolerance`, x stays as it is.
    """
    found = torch.zeros_like(target)
    rest = direction = target
    size = rest.dot(rest)
    for _ in range(iterations):
        moved = product(direction)
        going = size > tolerance
        step = torch.where(going, size / direction.dot(moved).clamp(min=1e-20), 0)
        found = found + step * direction
        rest = rest - step * moved
        after = rest.dot(rest)
        direction = rest + torch.where(going, after / size.clamp(min=1e-20), 0) * direction
        size = after
    return found


@torch.no_grad()
def line_search(
    parameters: Sequence[Tensor],
    step: Tensor,
    lengths: Sequence[float],
    measure: Callable[[], tuple[Tensor, Tensor]],
    max_kl: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Move the parameters by the first of `lengths` times `step` that fits, by nothing if none does.

    `measure` gives the gain and the KL divergence of the parameters as they are. A length fits if the gain is positive
    and the KL divergence at most `max_kl`. Returns the length, its gain and its KL divergence.
    """
    start = flat(parameters)
    chosen, result = start, start.new_zeros(3)
    searching = torch.ones((), dtype=torch.bool, device=start.device)
    for length in lengths:
        candidate = start + length * step
        write_(parameters, candidate)
        gain, kl = measure()
        fits = searching & (gain > 0) & (kl <= max_kl)
        chosen = torch.where(fits, candidate, chosen)
        result = torch.where(fits, torch.stack([torch.full_like(kl, length), gain, kl]), result)
        searching = searching & ~fits
    write_(parameters, chosen)
    taken, gain, kl = result.unbind()
    return taken, gain, kl


@torch.no_grad()
def write_(parameters: Sequence[Tensor], values: Tensor) -> None:
    """Set the parameters to the values of one vector, in place."""
    parts = values.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts):
        parameter.copy_(part.view_as(parameter))
