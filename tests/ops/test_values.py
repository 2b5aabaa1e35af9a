"""Values of choices with numbers worked by hand: the best, soft ones, and what follows for the row before."""

from math import exp, log

import pytest
import torch

from whorl.ops.values import best, bootstrap, pick, pick_columns, soft_policy

Q = torch.tensor([[1.0, 3.0, 2.0], [5.0, -1.0, 4.0]])
ALLOWED = torch.tensor([[True, False, True], [False, True, True]])


def test_the_best_choice_is_the_best_of_those_allowed() -> None:
    assert best(Q).tolist() == [1, 0]
    assert best(Q, ALLOWED).tolist() == [2, 2]
    # all allowed values below all others
    assert best(torch.tensor([9.0, -9.0, 9.0]), torch.tensor([False, True, False])).item() == 1


def test_where_nothing_is_allowed_the_best_is_still_a_choice() -> None:
    # the final observation of an episode may allow nothing; its value is multiplied by 0
    assert best(Q, torch.zeros_like(ALLOWED)).tolist() == [0, 0]


def test_picking_takes_one_value_or_all_columns_of_a_choice() -> None:
    assert pick(Q, torch.tensor([2, 0])).tolist() == [2.0, 5.0]
    columns = torch.arange(12.0).reshape(2, 3, 2)  # row r, choice a, column k: 6 r + 2 a + k
    assert pick_columns(columns, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    rows = torch.arange(24.0).reshape(2, 2, 3, 2)
    assert pick_columns(rows, torch.tensor([[0, 1], [2, 0]])).tolist() == [
        [[0, 1], [8, 9]],
        [[16, 17], [18, 19]],
    ]


def test_a_soft_policy_by_hand() -> None:
    # q / t = (2, 0): pi = (e^2, 1) / (e^2 + 1), t log pi = .5 * (2 - log(e^2 + 1), -log(e^2 + 1))
    prob, log_pi = soft_policy(torch.tensor([1.0, 0.0]), 0.5)
    assert prob.tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    assert log_pi.tolist() == pytest.approx([-0.063464, -1.063464], abs=1e-6)


def test_the_soft_value_is_the_temperature_times_the_log_of_a_sum() -> None:
    # sum pi (q - t log pi) = t log sum exp(q / t) = .5 * log(e^2 + 1)
    q = torch.tensor([1.0, 0.0])
    prob, log_pi = soft_policy(q, 0.5)
    assert float((prob * (q - log_pi)).sum()) == pytest.approx(0.5 * log(exp(2) + 1), abs=1e-6)


def test_a_cold_policy_takes_the_best_and_stays_finite() -> None:
    # .03 as in the Munchausen paper: the second choice is exp(-100 / .03) as likely, which is 0 in any precision
    q = torch.tensor([100.0, 0.0])
    prob, log_pi = soft_policy(q, 0.03)
    assert prob.tolist() == [1.0, 0.0]
    assert log_pi.tolist() == pytest.approx([0.0, -100.0])
    assert float((prob * (q - log_pi)).sum()) == 100.0


@pytest.mark.parametrize("temperature", [0.03, 0.5, 20.0])
def test_choices_that_are_not_allowed_have_no_part_in_a_soft_value(temperature: float) -> None:
    q = torch.tensor([1.0, 1e6, 0.0])
    prob, log_pi = soft_policy(q, temperature, torch.tensor([True, False, True]))
    others, others_log = soft_policy(q[[0, 2]], temperature)
    assert prob.tolist() == [pytest.approx(float(others[0])), 0.0, pytest.approx(float(others[1]))]
    value, wanted = (prob * (q - log_pi)).sum(), (others * (q[[0, 2]] - others_log)).sum()
    torch.testing.assert_close(value, wanted)


def test_a_soft_value_is_finite_where_nothing_is_allowed() -> None:
    # a final observation may allow nothing, and 0 * nan would be nan
    q = torch.tensor([1.0, 2.0])
    prob, log_pi = soft_policy(q, 0.03, torch.tensor([False, False]))
    assert (prob * (q - log_pi)).sum().isfinite()
    assert prob.isfinite().all() and log_pi.isfinite().all()


def test_a_bootstrap_by_hand() -> None:
    reward, discount, value = (
        torch.tensor([[1.0, -2.0]]),
        torch.tensor([[0.9, 0.0]]),
        torch.tensor([[10.0, 10.0]]),
    )
    assert bootstrap(reward, discount, value, False).tolist() == [[10.0, -2.0]]
    columns = torch.tensor([[[10.0, 20.0], [10.0, 20.0]]])
    assert bootstrap(reward, discount, columns, False).tolist() == [[[10.0, 19.0], [-2.0, -2.0]]]


def test_a_rescaled_bootstrap_goes_through_the_inverse() -> None:
    # r 1, gamma .99, V = h(50) = sqrt(51) - 1 + .05: h(50.5) = 6.226850, and 7.129514 without the inverse;
    # after a terminal state h(3) = 1.003
    reward, discount = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.99, 0.0]])
    value = torch.full((1, 2), 51**0.5 - 1 + 0.05)
    wanted = torch.tensor([[6.226850, 1.003]])
    torch.testing.assert_close(bootstrap(reward, discount, value, True), wanted, atol=2e-6, rtol=0)
    columns = value.unsqueeze(-1).expand(1, 2, 3)
    found = bootstrap(reward, discount, columns, True)
    torch.testing.assert_close(found, wanted.unsqueeze(-1).expand(1, 2, 3), atol=2e-6, rtol=0)
