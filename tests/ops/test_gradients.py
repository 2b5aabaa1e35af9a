"""Gradients of a further loss count only where they agree with the main ones."""

import torch

from whorl.conformance import capture_safe
from whorl.ops.gradients import add_agreeing_

MAIN = [[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]


def added(further: list[list[float]], separately: bool) -> list[list[float]]:
    """The sum, where the third parameter belongs to the further loss alone."""
    total = [torch.tensor(values) for values in MAIN]
    add_agreeing_(total, [torch.tensor(values) for values in further], total, (0, 1), separately)
    return [value.tolist() for value in total]


def test_an_opposing_gradient_leaves_the_main_one_as_it_is() -> None:
    further = [[-1.0, 5.0], [3.0, -1.0], [7.0, 8.0]]  # products -1 and -2
    for separately in (True, False):
        assert added(further, separately) == [[1.0, 0.0], [0.0, 2.0], [7.0, 8.0]]


def test_parameters_decide_alone_or_together() -> None:
    further = [[-1.0, 5.0], [3.0, 1.0], [7.0, 8.0]]  # products -1 and 2, together 1
    assert added(further, True) == [[1.0, 0.0], [3.0, 3.0], [7.0, 8.0]]
    assert added(further, False) == [[0.0, 5.0], [3.0, 3.0], [7.0, 8.0]]


def test_an_orthogonal_gradient_is_left_out() -> None:
    assert added([[0.0, 5.0], [3.0, 0.0], [0.0, 0.0]], False) == MAIN


def test_nothing_is_read_on_the_host() -> None:
    main = [torch.rand(3), torch.rand(2, 2)]
    with capture_safe():
        add_agreeing_(main, [torch.rand(3), torch.rand(2, 2)], main, (0,), True)
