"""Returns and advantages against published tables, hand-worked numbers and O(T^2) sums."""

import pytest
import torch
from torch import Tensor

from whorl.ops import (
    discounted_return,
    gae,
    lambda_return,
    n_step_return,
    retrace,
    reverse_scan,
    value_rescale,
    value_rescale_inverse,
    vtrace,
)

NAN, INF = float("nan"), float("inf")


def column(*numbers: float) -> Tensor:
    """One environment, time-major: [T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def close(actual: Tensor, *expected: float, atol: float = 5e-6) -> None:
    torch.testing.assert_close(actual, column(*expected), atol=atol, rtol=0)


# Case A: r = (1, 0, -1, 2), V = (.5, 1, -.5, .2), 0.7 after the last step, gamma .9, lambda .8.
# An end after step 1 adds row 2, which leads from the final observation to the next episode and is no
# transition; its reward is poisoned, its value is that of the final observation.
REWARD = column(1, 0, -1, 2)
VALUE = column(0.5, 1.0, -0.5, 0.2, 0.7)
ENDED_REWARD = column(1, 0, NAN, -1, 2)
ENDED_KEEP = column(1, 0, 0, 1, 1)
REAL = [0, 1, 3, 4]


def ended(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """reward, discount, value, keep with an end after step 1; the final observation is worth 2."""
    discount = column(0.9, 0.0 if kind == "terminated" else 0.9, 0.9, 0.9, 0.9)
    return ENDED_REWARD, discount, column(0.5, 1.0, 2.0, -0.5, 0.2, 0.7), ENDED_KEEP


def test_reverse_scan_by_hand() -> None:
    # y_2 = 3 + 2 * 10 = 23, y_1 = 2 + 0 * 23 = 2, y_0 = 1 + 0.5 * 2 = 2
    close(reverse_scan(column(1, 2, 3), column(0.5, 0, 2), torch.tensor([10.0]).double()), 2, 2, 23)


def test_reverse_scan_keeps_what_is_not_finite_in_its_own_row() -> None:
    scanned = reverse_scan(column(1, 2, NAN, 4, INF), column(1, 0, 1, 1, 0), torch.zeros(1).double())
    assert scanned[:2].squeeze(-1).tolist() == [3.0, 2.0]
    assert scanned[2].isnan() and scanned[4].isinf()


def test_gae_without_a_boundary() -> None:
    # delta = (1.4, -1.45, -.32, 2.43); A_3 = 2.43, A_2 = -.32 + .72 * 2.43 = 1.4296, ...
    ones = torch.ones_like(REWARD)
    close(gae(REWARD, 0.9 * ones, VALUE, ones, 0.8), 1.0971, -0.42069, 1.4296, 2.43, atol=1e-5)
    close(lambda_return(REWARD, 0.9 * ones, VALUE, ones, 0.8), 1.5971, 0.57931, 0.9296, 2.63, atol=1e-5)


def test_gae_does_not_bootstrap_from_a_terminal_state() -> None:
    # delta_1 = 0 - 1 = -1, and the trace stops: A_0 = 1.4 - .72 = .68
    close(gae(*ended("terminated"), 0.8)[REAL], 0.68, -1, 1.4296, 2.43)
    close(lambda_return(*ended("terminated"), 0.8)[REAL], 1.18, 0, 0.9296, 2.63)


def test_gae_bootstraps_from_the_final_observation_of_a_truncated_episode() -> None:
    # delta_1 = .9 * 2 - 1 = .8, and the trace stops: A_0 = 1.4 + .72 * .8 = 1.976
    close(gae(*ended("truncated"), 0.8)[REAL], 1.976, 0.8, 1.4296, 2.43)
    close(lambda_return(*ended("truncated"), 0.8)[REAL], 2.476, 1.8, 0.9296, 2.63)


def test_gae_of_a_lost_life_needs_no_masked_row() -> None:
    # discount 0 and keep 0 in the ordinary layout: as the terminated case
    ones = torch.ones_like(REWARD)
    close(gae(REWARD, column(0.9, 0, 0.9, 0.9), VALUE, column(1, 0, 1, 1), 0.8), 0.68, -1, 1.4296, 2.43)
    # A terminal discount alone stops the trace as well.
    close(gae(REWARD, column(0.9, 0, 0.9, 0.9), VALUE, ones, 0.8), 0.68, -1, 1.4296, 2.43)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, (-1.45119, -4.45575, 2.53965, 0.5249, -0.49)),
        (0.7, (-0.67698, -5.24817, 2.48461, 0.67043, -0.49)),
    ],
)
def test_gae_matches_the_published_truncated_case(lam: float, expected: tuple[float, ...]) -> None:
    reward = column(0, 0, 1, 0, -0.5)
    ones = torch.ones_like(reward)
    close(gae(reward, 0.99 * ones, column(1, 4, -3, -2, -1, -1), ones, lam), *expected, atol=1e-5)


@pytest.mark.parametrize(("lam", "expected"), [(1.0, (3, 2, 1, 0, -4.9)), (0.7, (2.2899, 1.73, 1, 0, -4.9))])
def test_gae_matches_the_published_terminal_case(lam: float, expected: tuple[float, ...]) -> None:
    reward, discount = column(0, 0, 0, 0, 1), column(0.9, 0.9, 0.9, 0, 0.9)
    keep = torch.ones_like(reward)
    close(gae(reward, discount, column(-3, -2, -1, 0, 5, -1), keep, lam), *expected, atol=1e-5)


def test_gae_of_an_endless_loop_with_true_values_is_zero() -> None:
    # reward 1 for ever: V = 1 / (1 - .9) = 10 everywhere, also at the truncation after row 3
    reward, keep = column(1, 1, 1, 1, NAN, 1, 1), column(1, 1, 1, 0, 0, 1, 1)
    discount = torch.full_like(reward, 0.9)
    advantage = gae(reward, discount, torch.full((8, 1), 10.0, dtype=torch.float64), keep, 0.95)
    close(advantage[[0, 1, 2, 3, 5, 6]], 0, 0, 0, 0, 0, 0)


def test_lambda_return_matches_the_published_case() -> None:
    reward, discount = column(1, 0, -1, 0, 1), column(0.5, 0.9, 1, 0.5, 0.8)
    value = column(NAN, 3, 1, 5, -5, 3)  # the first value is not needed for a return
    keep = torch.ones_like(reward)
    close(lambda_return(reward, discount, value, keep, 0.75), 1.64605, 0.72281, 0.7375, 0.65, 3.4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, (2.5, 0.9, 4, -2.5, 3.4)),  # r + discount * v
        (3, (2.8, -3.15, 0.7, 1.7, 3.4)),
        (5, (1.315, 0.63, 0.7, 1.7, 3.4)),
        (50, (1.315, 0.63, 0.7, 1.7, 3.4)),
    ],
)
def test_n_step_return_matches_the_published_case(n: int, expected: tuple[float, ...]) -> None:
    reward, discount = column(1, 0, -1, 0, 1), column(0.5, 0.9, 1, 0.5, 0.8)
    value = column(NAN, 3, 1, 5, -5, 3)
    close(n_step_return(reward, discount, value, torch.ones_like(reward), n), *expected)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_n_step_return_never_reaches_past_the_end_of_a_chain(n: int) -> None:
    # 0 -> 1 -> 2 -> end with reward 1 on the last step, gamma .9 and true values: .81, .9, 1 for every n
    reward, keep = column(0, 0, 1, NAN, 0), column(1, 1, 0, 0, 1)
    discount, value = column(0.9, 0.9, 0, 0.9, 0.9), column(0.81, 0.9, 1, 7, 0.81, 0.9)
    close(n_step_return(reward, discount, value, keep, n)[[0, 1, 2, 4]], 0.81, 0.9, 1, 0.81)


def test_discounted_return_bootstraps_at_truncation_and_at_the_end_of_the_block_only() -> None:
    # 2 + .9 * .7 = 2.63, -1 + .9 * 2.63 = 1.367; truncated: .9 * 2 = 1.8, 1 + .9 * 1.8 = 2.62
    reward, discount, value, keep = ended("truncated")
    close(discounted_return(reward, discount, keep, value)[REAL], 2.62, 1.8, 1.367, 2.63)
    # terminated: 0, 1 + .9 * 0 = 1
    reward, discount, value, keep = ended("terminated")
    close(discounted_return(reward, discount, keep, value)[REAL], 1, 0, 1.367, 2.63)


RATIO = column(0.5, 2, 1.5, 0.8)


@pytest.mark.parametrize(
    ("rho_clip", "c_clip", "target", "advantage"),
    [
        (1, 1, (1.12649, 0.83664, 0.9296, 2.144), (0.62649, -0.16336, 1.4296, 1.944)),
        (2, 1, (0.40919, -0.75736, 0.7696, 2.144), (-0.09081, -0.61472, 2.1444, 1.944)),
        (1, 2, (2.41406, 3.69792, 1.8044, 2.144), (1.91406, 0.62396, 1.4296, 1.944)),
        (INF, INF, (1.63196, 1.95992, 1.6444, 2.144), (1.13196, 0.95992, 2.1444, 1.944)),
    ],
)
def test_vtrace_tells_its_two_thresholds_apart(
    rho_clip: float, c_clip: float, target: tuple[float, ...], advantage: tuple[float, ...]
) -> None:
    ones = torch.ones_like(REWARD)
    v, a = vtrace(REWARD, 0.9 * ones, VALUE, ones, RATIO, rho_clip, c_clip)
    close(v, *target, atol=1e-5)
    close(a, *advantage, atol=1e-5)


def test_vtrace_stops_at_a_terminal_state() -> None:
    # A_1 = -1 and v_1 = 0: v_0 = .5 + .5 * 1.4 + .9 * .5 * -1 = .75; A_0 = .5 * (1 + .9 * 0 - .5) = .25
    v, a = vtrace(*ended("terminated"), column(0.5, 2, NAN, 1.5, 0.8))
    close(v[REAL], 0.75, 0, 0.9296, 2.144)
    close(a[REAL], 0.25, -1, 1.4296, 1.944)


def test_vtrace_bootstraps_from_the_final_observation_of_a_truncated_episode() -> None:
    # v_1 = 1 + .8 = 1.8: v_0 = .5 + .5 * 1.4 + .9 * .5 * .8 = 1.56; A_0 = .5 * (1 + .9 * 1.8 - .5) = 1.06
    v, a = vtrace(*ended("truncated"), column(0.5, 2, NAN, 1.5, 0.8))
    close(v[REAL], 1.56, 1.8, 0.9296, 2.144)
    close(a[REAL], 1.06, 0.8, 1.4296, 1.944)


def test_vtrace_on_policy_is_the_n_step_return() -> None:
    ones = torch.ones_like(REWARD)
    v, a = vtrace(REWARD, 0.9 * ones, VALUE, ones, ones)
    close(v, 2.10727, 1.2303, 1.367, 2.63, atol=1e-5)
    torch.testing.assert_close(v, n_step_return(REWARD, 0.9 * ones, VALUE, ones, 4))
    torch.testing.assert_close(a, gae(REWARD, 0.9 * ones, VALUE, ones, 1.0))


def test_vtrace_with_lambda_on_policy_is_the_lambda_return() -> None:
    ones = torch.ones_like(REWARD)
    v, _ = vtrace(REWARD, 0.9 * ones, VALUE, ones, ones, lam=0.8)
    close(v, 1.5971, 0.57931, 0.9296, 2.63, atol=1e-5)


def test_vtrace_matches_the_published_errors() -> None:
    reward, discount = column(-1.3, -1.3, 2.3, 42), column(0, 0.89, 0.85, 0.99)
    value, ratio = column(2.1, 1.1, -3.1, 0, 8.4), column(0.47515, 22.31222, 0.03876, 3.2207)
    v, _ = vtrace(reward, discount, value, torch.ones_like(reward), ratio)
    # the ratios are printed to five digits
    close(v - value[:-1], -1.61551, -3.49732, 1.86705, 50.316, atol=1e-4)


# Published Retrace inputs, two environments, lambda .9. The behaviour took `ACTION` with probability `BEHAVIOUR`.
Q = torch.tensor(
    [[[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1], [-1.2, 0.0]], [[2.1, 3.1], [9.5, 0.1], [-2.1, -1.1], [0.1, 7.4]]]
).swapaxes(0, 1)
TARGET_Q = torch.tensor(
    [[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2], [-2.25, -6]], [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2], [1.5, 1]]]
).swapaxes(0, 1)
POLICY = torch.tensor(
    [[[0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]], [[0.1, 0.9], [1, 0], [0.3, 0.7], [0.7, 0.3]]]
).swapaxes(0, 1)
ACTION = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]]).T.unsqueeze(-1)
BEHAVIOUR = torch.tensor([[0.5, 0.1, 0.9, 0.3], [0.4, 0.6, 1.0, 0.9]]).T
Q_REWARD = torch.tensor([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]]).T
Q_DISCOUNT = torch.tensor([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]]).T
Q_RATIO = POLICY.gather(-1, ACTION).squeeze(-1) / BEHAVIOUR  # [4, 2]


def retrace_with_a_following_action(q: Tensor) -> Tensor:
    """The published case knows the action after the last row; a fourth row without error stands for it."""
    taken = q.gather(-1, ACTION).squeeze(-1)  # [4, 2]
    value = torch.cat(((POLICY * q).sum(-1), torch.zeros(1, 2)))  # [5, 2]
    reward = torch.cat((Q_REWARD, taken[3:]))  # r_3 = Q_3 and discount 0: G_3 - Q_3 = 0
    discount = torch.cat((Q_DISCOUNT, torch.zeros(1, 2)))
    return retrace(reward, discount, value, torch.ones(4, 2), taken, Q_RATIO, 0.9)[:3]


def test_retrace_matches_the_published_case() -> None:
    taken = Q.gather(-1, ACTION).squeeze(-1)[:3]
    loss = 0.5 * (retrace_with_a_following_action(TARGET_Q) - taken).square()
    expected = torch.tensor([[2.88, 3.8934109, 4.5942383], [0.31121615, 20.253206, 0.0031601219]]).T
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=2e-5)


def test_retrace_under_value_rescaling_matches_the_published_case() -> None:
    taken = Q.gather(-1, ACTION).squeeze(-1)[:3]
    target = value_rescale(retrace_with_a_following_action(value_rescale_inverse(TARGET_Q)))
    expected = torch.tensor([[-1.6179, -3.0165, -5.2699], [-2.7742, -9.9544, 2.3167]]).T
    # printed to four digits, from an inverse that cancels in single precision
    torch.testing.assert_close(target - taken, expected, atol=2e-4, rtol=0)


def episodes(seed: int, rows: int = 24, num_envs: int = 16) -> dict[str, Tensor]:
    """Random environments with ends of both kinds; the row after an end is no transition and full of nan."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask, keep, discount = (
        torch.ones(rows, num_envs),
        torch.ones(rows, num_envs),
        torch.full((rows, num_envs), 0.9),
    )
    for env_index in range(num_envs):
        row = 0
        while row < rows:
            chance = float(rand(1))
            if chance < 0.3:
                keep[row, env_index] = 0
                if chance < 0.15:
                    discount[row, env_index] = 0
                if row + 1 < rows and chance > 0.05:  # below: a lost life, no masked row
                    mask[row + 1, env_index] = keep[row + 1, env_index] = 0
                    row += 1
            row += 1
    data = {
        "reward": rand(rows, num_envs) - 0.5,
        "ratio": 2 * rand(rows, num_envs),
        "q": rand(rows, num_envs) - 0.5,
    }
    poisoned = {key: torch.where(mask > 0, found, NAN) for key, found in data.items()}
    value = rand(rows + 1, num_envs) - 0.5
    return {**poisoned, "value": value, "mask": mask, "keep": keep.double(), "discount": discount.double()}


def brute_force(e: dict[str, Tensor], kind: str, lam: float = 0.8, n: int = 3) -> Tensor:
    """Each row's sum written out forwards, until the episode or the block ends."""
    rows, num_envs = e["reward"].shape
    out = torch.full((rows, num_envs), NAN, dtype=torch.float64)
    for start in range(rows):
        for env_index in range(num_envs):
            if not e["mask"][start, env_index]:
                continue
            weight, total = 1.0, 0.0
            for t in range(start, rows):
                r, d, k = (float(e[key][t, env_index]) for key in ("reward", "discount", "keep"))
                here, after = float(e["value"][t, env_index]), float(e["value"][t + 1, env_index])
                ratio = float(e["ratio"][t, env_index])
                last = k == 0 or t == rows - 1
                if kind == "gae":
                    total += weight * (r + d * after - here)
                    weight *= d * lam
                elif kind == "monte_carlo":
                    total += weight * (r + (d * after if last else 0.0))
                    weight *= d
                elif kind == "n_step":
                    last = last or t == start + n - 1
                    total += weight * (r + (d * after if last else 0.0))
                    weight *= d
                elif kind == "vtrace":
                    total += weight * min(1.2, ratio) * (r + d * after - here)
                    weight *= d * min(0.9, ratio)
                elif kind == "retrace":
                    total += weight * (r + d * after - float(e["q"][t, env_index]))
                    if not last:
                        weight *= d * lam * min(1.0, float(e["ratio"][t + 1, env_index]))
                if last:
                    break
            out[start, env_index] = total
    return out


@pytest.mark.parametrize("seed", range(3))
def test_every_estimator_equals_its_sum_written_out(seed: int) -> None:
    e = episodes(seed)
    reward, discount, value, keep = e["reward"], e["discount"], e["value"], e["keep"]
    real = e["mask"] > 0

    def same(actual: Tensor, kind: str, plus: Tensor | None = None) -> None:
        expected = brute_force(e, kind)
        expected = expected if plus is None else expected + plus
        torch.testing.assert_close(actual[real], expected[real], atol=1e-10, rtol=0)

    same(gae(reward, discount, value, keep, 0.8), "gae")
    same(lambda_return(reward, discount, value, keep, 0.8), "gae", value[:-1])
    same(discounted_return(reward, discount, keep, value), "monte_carlo")
    same(n_step_return(reward, discount, value, keep, 3), "n_step")
    target, advantage = vtrace(reward, discount, value, keep, e["ratio"], 1.2, 0.9)
    same(target, "vtrace", value[:-1])
    same(retrace(reward, discount, value, keep, e["q"], e["ratio"], 0.8), "retrace", e["q"])

    follows = torch.where(keep > 0, torch.cat((target[1:], value[-1:])), value[1:])
    expected = e["ratio"].clamp(max=1.2) * (reward + discount * follows - value[:-1])
    torch.testing.assert_close(advantage[real], expected[real])


def test_gradients_flow_through_a_return() -> None:
    # G_0 = r_0 + .9 * (r_1 + .9 * V_2): dG_0/dr_1 = .9, dG_0/dV_2 = .81
    reward, value = column(1, 2).requires_grad_(), column(0, 0, 5).requires_grad_()
    ones = torch.ones(2, 1, dtype=torch.float64)
    discounted_return(reward, 0.9 * ones, ones, value)[0].sum().backward()
    assert reward.grad is not None and value.grad is not None
    close(reward.grad, 1, 0.9)
    close(value.grad, 0, 0, 0.81)


def test_shapes_are_checked_on_entry() -> None:
    rows, value = torch.zeros(4, 2), torch.zeros(5, 2)
    with pytest.raises(
        ValueError, match=r"value has shape \(4, 2\); it needs \[T\+1, B, \.\.\.\] = \(5, 2\)"
    ):
        gae(rows, rows, rows, rows, 0.9)
    with pytest.raises(ValueError, match=r"time-major \[T, B, \.\.\.\].*\(4,\)"):
        gae(rows[:, 0], rows[:, 0], value[:, 0], rows[:, 0], 0.9)
    with pytest.raises(ValueError, match=r"keep has shape \(4, 1\)"):
        lambda_return(rows, rows, value, rows[:, :1], 0.9)
    with pytest.raises(ValueError, match=r"last has shape \(1, 2\)"):
        reverse_scan(rows, rows, value[-1:])
    with pytest.raises(ValueError, match="at least one reward"):
        n_step_return(rows, rows, value, rows, 0)
