"""Q values of discrete actions: greedy actions, softmax policies and Bellman targets.

`q` is [..., choices]; `allowed` is an action mask of that shape, or None.
"""

import torch
from torch import Tensor

from whorl.ops.returns import retrace
from whorl.ops.transforms import value_rescale, value_rescale_inverse


def best(q: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The allowed action with the highest value [...]."""
    return (q if allowed is None else q.masked_fill(~allowed, -torch.inf)).argmax(-1)


def pick(q: Tensor, choice: Tensor) -> Tensor:
    """The value of `choice` [...] in `q` [..., choices]."""
    return q.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def pick_columns(values: Tensor, choice: Tensor) -> Tensor:
    """The columns of `choice` [...] in `values` [..., choices, columns]."""
    index = choice[..., None, None].expand(*choice.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def soft_policy(q: Tensor, temperature: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """pi = softmax(q / temperature), and temperature * log pi.

    Actions that are not allowed have pi 0 and the lowest finite log; if none is allowed, all are equal.
    """
    lowest = torch.finfo(q.dtype).min
    logits = q / temperature
    if allowed is not None:
        # Not -inf: a final observation may allow no action, and 0 * inf would be nan.
        logits = logits.masked_fill(~allowed, lowest)
    log_pi = torch.log_softmax(logits, -1)
    return log_pi.exp(), (temperature * log_pi).clamp(min=lowest)


def bootstrap(reward: Tensor, discount: Tensor, value: Tensor, rescale: bool) -> Tensor:
    """r + discount * V; with `rescale`, where values are h(return): h(r + discount * h^-1(V)).

    `value` may have one axis more than the rewards, for quantiles or atoms.
    """
    if value.dim() > reward.dim():
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    if not rescale:
        return reward + discount * value
    return value_rescale(reward + discount * value_rescale_inverse(value))


def retrace_target(
    reward: Tensor,
    discount: Tensor,
    keep: Tensor,
    q: Tensor,
    choice: Tensor,
    action: Tensor,
    ratio: Tensor,
    lam: float,
    rescale: bool,
) -> Tensor:
    """The Retrace target of Q(s_t, a_t) [T, B]; with `rescale` of values h(return) (Badia et al. 2020, NGU, eq. 9).

    `q` [T+1, B, choices] are target values, `choice` [T+1, B] the actions of the target policy, which is deterministic,
    `ratio` [T, B] is its probability of `action` over the behaviour's.
    """
    if rescale:
        q = value_rescale_inverse(q)
    target = retrace(reward, discount, pick(q, choice), keep, pick(q[:-1], action), ratio, lam)
    return value_rescale(target) if rescale else target
