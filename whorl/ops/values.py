"""Values of choices: the best of them, soft ones, and what follows from them for the row before.

`q` is [..., choices]; `allowed` a mask of that shape, or None where every choice is.
"""

import torch
from torch import Tensor

from whorl.ops.transforms import value_rescale, value_rescale_inverse


def best(q: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The allowed choice of highest value [...]."""
    return (q if allowed is None else q.masked_fill(~allowed, -torch.inf)).argmax(-1)


def pick(q: Tensor, choice: Tensor) -> Tensor:
    """Of `q` [..., choices] the value of `choice` [...]."""
    return q.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def pick_columns(values: Tensor, choice: Tensor) -> Tensor:
    """Of `values` [..., choices, columns] the columns of `choice` [...]."""
    index = choice[..., None, None].expand(*choice.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def soft_policy(q: Tensor, temperature: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """pi = softmax(q / temperature), and temperature * log pi.

    Choices that are not allowed have pi 0 and the lowest finite log; where none is allowed all are alike.
    """
    lowest = torch.finfo(q.dtype).min
    logits = q / temperature
    if allowed is not None:
        # Not -inf: a final observation may allow nothing, and 0 times what came of that would be nan.
        logits = logits.masked_fill(~allowed, lowest)
    log_pi = torch.log_softmax(logits, -1)
    return log_pi.exp(), (temperature * log_pi).clamp(min=lowest)


def bootstrap(reward: Tensor, discount: Tensor, value: Tensor, rescale: bool) -> Tensor:
    """r + discount * V; with `rescale`, for values that are learned as h(return): h(r + discount * h^-1(V)).

    `value` may have one axis more than the rewards: quantiles or atoms.
    """
    if value.dim() > reward.dim():
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    if not rescale:
        return reward + discount * value
    return value_rescale(reward + discount * value_rescale_inverse(value))
