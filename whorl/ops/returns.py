"""Returns and advantages over time-major blocks, all on one reverse scan.

Everywhere `reward`, `discount` and `keep` are [T, B]; `value` is [T+1, B] and its row t+1 is the value of the true
successor of row t. All may have further axes, such as [T, B, S] for reward streams. At the end of an episode the
successor is the final observation, whose own row is masked. Termination is `discount` 0, truncation bootstraps, and
`keep` 0 stops the trace in both cases. Results on masked rows are meaningless, and rewards, actions and ratios there
affect no other row.
"""

import torch
from torch import Tensor


def reverse_scan(term: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    """y_t = term_t + decay_t * y_{t+1}, with y_T = `last` [B].

    A non-finite entry of `term` stays in the result but affects no other row: it may be a masked row, and 0 * nan would
    carry it across the end of an episode.
    """
    _check_rows(term, decay=decay)
    _check_envs(term, last=last)
    finite = torch.nan_to_num(term, nan=0.0, posinf=0.0, neginf=0.0)
    carry = last
    rows = []
    for row, factor in zip(reversed(finite.unbind()), reversed(decay.unbind())):
        carry = torch.addcmul(row, factor, carry)
        rows.append(carry)
    rows.reverse()
    return torch.where(finite == term, torch.stack(rows), term)


def gae(reward: Tensor, discount: Tensor, value: Tensor, keep: Tensor, lam: float | Tensor) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    A_t = delta_t + discount_t * lam * keep_t * A_{t+1},   delta_t = r_t + discount_t * V_{t+1} - V_t
    """
    _check_rows(reward, discount=discount, keep=keep)
    _check_values(reward, value=value)
    delta = torch.addcmul(reward, discount, value[1:]).sub_(value[:-1])  # [T, B]
    return reverse_scan(delta, (discount * keep).mul_(lam), torch.zeros_like(value[-1]))


def lambda_return(
    reward: Tensor, discount: Tensor, value: Tensor, keep: Tensor, lam: float | Tensor
) -> Tensor:
    """The TD(lambda) target (Sutton & Barto 2018, eq. 12.18); equal to `gae` + V_t.

    G_t = r_t + discount_t * ((1 - lam * keep_t) * V_{t+1} + lam * keep_t * G_{t+1}),   G_T = V_T
    """
    _check_rows(reward, discount=discount, keep=keep)
    _check_values(reward, value=value)
    weight = lam * keep  # [T, B] share of the return that continues into the next row
    return reverse_scan(reward + discount * (1 - weight) * value[1:], discount * weight, value[-1])


def discounted_return(reward: Tensor, discount: Tensor, keep: Tensor, bootstrap_value: Tensor) -> Tensor:
    """Monte-Carlo return of each segment; `lambda_return` with lam = 1.

    G_t = r_t + discount_t * (G_{t+1} if keep_t else V_{t+1}),   G_T = V_T

    `bootstrap_value` [T+1, B] is used only at truncations and after the last row; zeros give the plain return.
    """
    return lambda_return(reward, discount, bootstrap_value, keep, 1.0)


def n_step_return(reward: Tensor, discount: Tensor, value: Tensor, keep: Tensor, n: int) -> Tensor:
    """At most `n` rewards, then a bootstrap; fewer where the episode or the block ends first (Watkins 1989).

    G^0_t = V_t,   G^k_t = r_t + discount_t * (G^{k-1}_{t+1} if keep_t else V_{t+1}),   G^k_T = V_T
    """
    _check_rows(reward, discount=discount, keep=keep)
    _check_values(reward, value=value)
    if n < 1:
        raise ValueError(f"n is {n}; an n-step return needs at least one reward")
    continues = keep > 0
    target = reward + discount * value[1:]  # [T, B]
    for _ in range(min(n, reward.shape[0]) - 1):
        successor = torch.where(continues, torch.cat((target[1:], value[-1:])), value[1:])
        target = reward + discount * successor
    return target


def vtrace(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    keep: Tensor,
    ratio: Tensor,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace value target and policy-gradient advantage (Espeholt et al. 2018, arXiv:1802.01561, eq. 1, 4).

    v_t = V_t + rho_t * delta_t + discount_t * lam * c_t * keep_t * (v_{t+1} - V_{t+1})
    A_t = rho_t * (r_t + discount_t * v_{t+1} - V_t)
    rho_t = min(rho_clip, ratio_t),   c_t = min(c_clip, ratio_t),   delta_t as in `gae`

    `ratio` [T, B] is pi(a_t|s_t) / mu(a_t|s_t). Where keep is 0, v_{t+1} is V_{t+1}.
    """
    _check_rows(reward, discount=discount, keep=keep, ratio=ratio)
    _check_values(reward, value=value)
    ends = keep == 0
    rho = ratio.clamp(max=rho_clip)  # [T, B]
    delta = rho * (reward + discount * value[1:] - value[:-1])
    decay = (discount * lam * ratio.clamp(max=c_clip)).masked_fill(ends, 0.0)
    target = value[:-1] + reverse_scan(delta, decay, torch.zeros_like(value[-1]))
    successor = torch.where(ends, value[1:], torch.cat((target[1:], value[-1:])))  # [T, B] v_{t+1}
    return target, rho * (reward + discount * successor - value[:-1])


def n_step_vtrace(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    keep: Tensor,
    ratio: Tensor,
    n: int,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lam: float = 1.0,
) -> Tensor:
    """The value target of `vtrace` over at most `n` rewards; fewer where the episode or the block ends first: [T+1, B].

    v^0_t = V_t,   v^k_t = V_t + rho_t * delta_t + discount_t * lam * c_t * keep_t * (v^{k-1}_{t+1} - V_{t+1})

    With rho = c = lam = 1 it is `n_step_return`. Row T is V_T.
    """
    _check_rows(reward, discount=discount, keep=keep, ratio=ratio)
    _check_values(reward, value=value)
    ends = keep == 0
    rho, c = ratio.clamp(max=rho_clip), lam * ratio.clamp(max=c_clip)
    error = rho * (reward + discount * value[1:] - value[:-1])  # [T, B]
    nothing, excess = torch.zeros_like(value[:1]), torch.zeros_like(value)  # v - V
    for _ in range(min(n, reward.shape[0])):
        # Not 0 times what follows: a masked row may hold nan.
        carried = torch.where(ends, 0.0, discount * c * excess[1:])
        excess = torch.cat((error + carried, nothing))
    return value + excess


def retrace(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    keep: Tensor,
    q: Tensor,
    ratio: Tensor,
    lam: float = 1.0,
    c_clip: float = 1.0,
) -> Tensor:
    """Retrace target for Q(s_t, a_t) (Munos et al. 2016, arXiv:1606.02647, eq. 3-4).

    G_t = r_t + discount_t * (V_{t+1} + keep_t * c_{t+1} * (G_{t+1} - Q_{t+1}))
    c_t = lam * min(c_clip, ratio_t)

    `q` [T, B] is Q(s_t, a_t), `value` [T+1, B] is E_{a ~ pi} Q(s_t, a) (row 0 is not read), `ratio` [T, B] is
    pi(a_t|s_t) / mu(a_t|s_t). No action follows the last row, so it is a one-step target.
    """
    _check_rows(reward, discount=discount, keep=keep, q=q, ratio=ratio)
    _check_values(reward, value=value)
    error = reward + discount * value[1:] - q  # [T, B]
    trace = lam * ratio.clamp(max=c_clip)
    following = torch.cat((trace[1:], torch.zeros_like(trace[:1])))  # [T, B] c_{t+1}
    decay = (discount * following).masked_fill(keep == 0, 0.0)
    return q + reverse_scan(error, decay, torch.zeros_like(value[-1]))


def _check_rows(first: Tensor, **others: Tensor) -> None:
    if first.dim() < 2 or first.shape[0] == 0:
        raise ValueError(
            f"expected time-major [T, B, ...] with at least one row, got shape {tuple(first.shape)}"
        )
    for name, tensor in others.items():
        if tensor.shape != first.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it needs [T, B, ...] = {tuple(first.shape)}"
            )


def _check_values(rows: Tensor, **values: Tensor) -> None:
    needed = (rows.shape[0] + 1, *rows.shape[1:])
    for name, tensor in values.items():
        if tensor.shape != needed:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it needs [T+1, B, ...] = {needed}, one row more than the "
                "rewards for the successor of the last row"
            )


def _check_envs(rows: Tensor, **num_envs: Tensor) -> None:
    for name, tensor in num_envs.items():
        if tensor.shape != rows.shape[1:]:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it needs [B, ...] = {tuple(rows.shape[1:])}"
            )
