"""Losses with their derivatives written out, for small networks on a CPU.

There, recording and running autograd's operations costs more than their arithmetic. Each function gives the loss of
rows [N] as `whorl.ops.losses` and `whorl.ops.distributions` do, and its derivative by the outputs of the network; tests
compare both with autograd. They run without gradients.
"""

from math import log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from whorl.ops.losses import MAX_LOG_RATIO


class Surrogate(NamedTuple):
    """Loss of the actor on rows [N]: PPO's -mean(weight * (min(r * A, A + clip * |A|) + ent_coef * H)), or without a
    clip A2C's -mean(weight * (log pi(a) * A + ent_coef * H))."""

    loss: Tensor
    log_ratio: Tensor
    """without a clip log pi(a)"""
    entropy: Tensor
    """[N], if it was asked for; else the log ratio"""
    slope: Tensor
    """[N, size] by the outputs of the network"""
    slope_of_log_std: Tensor | None = None
    """[size] of a Gaussian"""


class PolicyRows(NamedTuple):
    """What the actor's loss reads of rows [N] besides the outputs of the network."""

    action: Tensor
    advantage: Tensor
    weight: Tensor
    log_prob: Tensor | None = None
    """of the policy that acted; not needed without a clip"""


def categorical_surrogate(
    logits: Tensor, rows: PolicyRows, clip: float | None, ent_coef: float, measure: bool
) -> Surrogate:
    """`Surrogate` for one of n actions. d log pi(a) / d logits = onehot(a) - p,   dH / d logits = -p * (log p + H)"""
    log_probs = logits.log_softmax(-1)
    action = rows.action.unsqueeze(-1)
    log_ratio, loss, by_log_prob = _objective(log_probs.gather(-1, action).squeeze(-1), rows, clip)
    probs, by_log_prob = log_probs.exp(), by_log_prob.unsqueeze(-1)
    slope = probs * -by_log_prob
    slope.scatter_add_(-1, action, by_log_prob)
    entropy = log_ratio
    if measure or ent_coef:
        entropy = (probs * log_probs).sum(-1).neg_()
    if ent_coef:
        loss -= ent_coef * (entropy * rows.weight).mean()
        share = (rows.weight * (ent_coef / logits.shape[0])).unsqueeze(-1)
        slope += probs * (log_probs + entropy.unsqueeze(-1)) * share
    return Surrogate(loss, log_ratio, entropy, slope)


def gaussian_surrogate(
    mean: Tensor, log_std: Tensor, rows: PolicyRows, clip: float | None, ent_coef: float, measure: bool
) -> Surrogate:
    """`Surrogate` for a Gaussian with one log standard deviation per dimension, z = (a - mu) / sigma.

    d log pi(a) / d mu = z / sigma,   d log pi(a) / d log sigma = z^2 - 1,   dH / d log sigma = 1
    """
    size, inverse = mean.shape[-1], (-log_std).exp()
    z = (rows.action - mean).mul_(inverse)
    squares = z.square()
    log_prob = (0.5 * squares + log_std).sum(-1).neg_().sub_(0.5 * size * log(2 * pi))
    log_ratio, loss, by_log_prob = _objective(log_prob, rows, clip)
    slope = z.mul_(inverse).mul_(by_log_prob.unsqueeze(-1))
    of_std = by_log_prob @ squares.sub_(1.0)
    entropy = log_ratio
    if measure or ent_coef:
        entropy = (log_std.sum() + 0.5 * size * (log(2 * pi) + 1)).expand_as(log_ratio)
    if ent_coef:
        share = rows.weight.mean() * ent_coef
        loss -= share * entropy[0]
        of_std -= share
    return Surrogate(loss, log_ratio, entropy, slope, of_std)


def squared_loss(value: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """mean(weight * (V - G)^2) / 2 of rows [N], and its derivative by V."""
    error, count = value - target, value.numel()
    slope = error * weight
    return torch.dot(slope, error).div_(2 * count), slope.div_(count)


def huber_loss(value: Tensor, target: Tensor, weight: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """mean(weight * huber(Q - y)) of rows [N], and its derivative by Q.

    huber(e) = s * (e - s / 2),   d huber / de = s = clamp(e, -delta, delta)
    """
    error, count = value - target, value.numel()
    slope = error.clamp(-delta, delta)
    size = torch.add(error, slope, alpha=-0.5).mul_(slope)
    return size.mul_(weight).mean(), slope.mul_(weight).div_(count)


def _objective(log_prob: Tensor, rows: PolicyRows, clip: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The log ratio, in place of log pi(a); -mean(weight * min(r * A, A + clip * |A|)); its derivative by log pi(a):
    that of the ratio is the ratio, and 0 where the objective is clipped. Without `clip`: see `Surrogate`."""
    advantage, weight = rows.advantage, rows.weight
    count = weight.numel()
    if rows.log_prob is None or clip is None:
        slope = (advantage * weight).div_(-count)
        return log_prob, torch.dot(log_prob, slope), slope
    log_ratio = log_prob.sub_(rows.log_prob)
    gain = log_ratio.clamp(max=MAX_LOG_RATIO).exp_().mul_(advantage)
    bound = torch.add(advantage, advantage.abs(), alpha=clip)
    loss = torch.dot(torch.minimum(gain, bound), weight).div_(-count)
    moves = (gain <= bound).logical_and_(log_ratio <= MAX_LOG_RATIO)
    return log_ratio, loss, gain.mul_(moves).mul_(weight).div_(-count)
