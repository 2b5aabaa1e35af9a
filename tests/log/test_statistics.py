"""Statistics over runs, with numbers worked by hand."""

import numpy as np
import pytest

from whorl.log.statistics import align, bootstrap_interval, interquartile_mean, smooth


def test_interquartile_mean_ignores_a_quarter_at_each_end() -> None:
    # Sorted: -100, 1, 2, 3, 4, 5, 6, 900; two fall away on each side: (2 + 3 + 4 + 5) / 4.
    assert interquartile_mean([3, 900, 1, 5, 2, -100, 4, 6]) == 3.5


def test_interquartile_mean_of_three_runs_is_their_mean() -> None:
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0


def test_interquartile_mean_of_five_runs_drops_one_at_each_end() -> None:
    # A quarter of 5 is 1.25, rounded down to 1: (2 + 3 + 4) / 3, as scipy.stats.trim_mean(x, 0.25) gives.
    assert interquartile_mean([100.0, 2.0, 4.0, 3.0, 1.0]) == 3.0


def test_interquartile_mean_reduces_the_first_axis_only() -> None:
    np.testing.assert_array_equal(interquartile_mean([[0, 9], [1, 1], [3, 1], [90, -50]]), [2.0, 1.0])


def test_bootstrap_interval_of_the_mean_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap_interval(values, np.mean)
    # 1.96 standard errors on each side of the mean
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert low < values.mean() < high


def test_bootstrap_interval_repeats_with_its_seed() -> None:
    assert bootstrap_interval([1, 2, 5, 9], np.mean, seed=3) == bootstrap_interval(
        [1, 2, 5, 9], np.mean, seed=3
    )


def test_bootstrap_interval_of_equal_values_has_no_width() -> None:
    assert bootstrap_interval([4.0, 4.0, 4.0], interquartile_mean) == (4.0, 4.0)


def test_bootstrap_interval_works_point_by_point_on_curves() -> None:
    low, high = bootstrap_interval([[0, 5], [1, 5], [2, 5]], lambda runs: runs.mean(axis=0))
    assert low.shape == high.shape == (2,)
    assert low[0] < 1 < high[0] and low[1] == high[1] == 5


def test_bootstrap_interval_refuses_a_level_in_percent() -> None:
    with pytest.raises(ValueError, match=r"0\.95"):
        bootstrap_interval([1, 2], np.mean, level=95)


def test_smoothing_weighs_neighbours_by_their_distance_in_steps() -> None:
    # Weights seen from each point: 1 itself, 1/2 at distance ln(2) * span.
    found = smooth([0, np.log(2) * 10], [0.0, 3.0], span=10)
    np.testing.assert_allclose(found, [1.0, 2.0])


def test_smoothing_does_not_lag_behind_a_straight_line() -> None:
    steps = np.arange(1001.0)
    assert smooth(steps, 2 * steps, span=20)[500] == pytest.approx(1000)


def test_smoothing_keeps_a_constant_and_skips_what_is_not_finite() -> None:
    found = smooth([0, 1, 5, 6], [4.0, np.nan, np.inf, 4.0], span=3)
    np.testing.assert_allclose(found, 4.0)


def test_smoothing_with_no_span_returns_the_values() -> None:
    np.testing.assert_array_equal(smooth([0, 1], [3.0, 4.0], span=0), [3.0, 4.0])


def test_aligned_curves_share_the_steps_that_all_of_them_cover() -> None:
    first = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    second = (np.array([4.0, 20.0]), np.array([1.0, 1.0]))
    grid, values = align([first, second], points=4)
    np.testing.assert_allclose(grid, [4, 6, 8, 10])
    np.testing.assert_allclose(values, [[4, 6, 8, 10], [1, 1, 1, 1]])


def test_curves_can_be_aligned_from_a_place_on() -> None:
    grid, values = align([(np.array([0.0, 10.0]), np.array([0.0, 10.0]))], points=3, begin=6)
    np.testing.assert_allclose(grid, [6, 8, 10])
    np.testing.assert_allclose(values, [[6, 8, 10]])


def test_aligning_bridges_points_that_are_not_finite() -> None:
    _, values = align([(np.array([0.0, 1.0, 2.0]), np.array([0.0, np.nan, 2.0]))], points=3)
    np.testing.assert_allclose(values, [[0, 1, 2]])


def test_curves_that_share_no_steps_can_not_be_aligned() -> None:
    with pytest.raises(ValueError, match="share no steps"):
        align([(np.array([0.0, 1.0]), np.zeros(2)), (np.array([5.0, 6.0]), np.zeros(2))])
