"""What waiting for the slowest worker costs, on times worked by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from resets import in_turns, waiting


def test_groups_in_turns_by_hand() -> None:
    # one group: each of two workers is late once
    assert in_turns(np.array([[[4.0, 1.0]], [[1.0, 4.0]]])) == 8
    # Two groups: the second worker has group 0 at 3 and group 1 at 4, then both again at 5 and 6; the first one waits
    # for it from 2 to 3 only.
    two = np.array([[[1.0, 1.0], [1.0, 1.0]], [[3.0, 1.0], [1.0, 1.0]]])
    assert in_turns(two) == 6


def test_equal_rows_wait_for_nobody() -> None:
    assert set(waiting(np.ones(50), 4, 2, 16).values()) == {0.0}


def test_a_worker_with_one_slow_row_holds_up_all_in_that_row() -> None:
    cost = np.ones(100)
    cost[50] = 11.0
    found = waiting(cost, 2, 1, 100)
    # Each of two workers has 99 rows of 1 and one of 11, at times of their own: 120 in all, of which 110 are work.
    assert found["every row"] == pytest.approx(1 - 110 / 120, abs=0.01)
    assert found["every rollout"] == 0.0
