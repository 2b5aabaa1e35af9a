"""Aggregates over tasks: rliable's definitions, with numbers of rliable 1.2.0 and numbers worked by hand."""

import numpy as np
import pytest

from whorl.log import statistics

A = np.array(
    [[1.42, -0.42, 0.77], [0.37, 0.42, 0.51], [-0.21, 0.51, 0.25], [1.93, 0.69, 0.46], [0.49, 0.33, 0.18]]
)
B = np.array([[1.42, 0.59, 0.3], [0.78, 0.32, 0.41], [1.02, 0.62, 0.2], [0.33, 0.62, 1.17], [0.29, 0.3, 0.8]])


@pytest.mark.parametrize(
    "name, ours, theirs",
    [
        ("aggregate_mean", 0.5133333333, 0.6113333333),
        ("aggregate_median", 0.434, 0.576),
        ("aggregate_iqm", 0.4477777778, 0.53),
        ("optimality_gap", 0.5766666667, 0.4293333333),
    ],
)
def test_aggregates_are_those_of_rliable(name: str, ours: float, theirs: float) -> None:
    statistic = getattr(statistics, name)
    assert float(statistic(A)) == pytest.approx(ours)
    assert float(statistic(B)) == pytest.approx(theirs)
    metrics = pytest.importorskip("rliable.metrics")
    reference = getattr(metrics, "aggregate_optimality_gap" if name == "optimality_gap" else name, None)
    reference = reference or metrics.optimality_gap
    scores = np.random.default_rng(0).normal(size=(7, 4))
    assert float(statistic(scores)) == pytest.approx(float(reference(scores)))


def test_profiles_and_improvement_are_those_of_rliable() -> None:
    profile = statistics.performance_profile(A, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(profile, [13 / 15, 11 / 15, 6 / 15, 3 / 15, 2 / 15])
    assert float(statistics.probability_of_improvement(A, B)) == pytest.approx(0.46)
    metrics = pytest.importorskip("rliable.metrics")
    assert float(metrics.probability_of_improvement(A, B)) == pytest.approx(0.46)


def test_a_tie_counts_half() -> None:
    # Task 1: 1 > 0 and 1 = 1, so (1 + 0.5) / 2; task 2: never.
    assert float(statistics.probability_of_improvement([[1.0, 0.0]], [[0.0, 2.0], [1.0, 3.0]])) == 0.375


def test_the_optimality_gap_does_not_reward_more_than_the_target() -> None:
    assert float(statistics.optimality_gap([[3.0, 0.5]])) == 0.25
    assert float(statistics.optimality_gap([[3.0, 0.5]], target=2.0)) == 0.75


@pytest.mark.parametrize(
    "name, low, high",
    [("aggregate_iqm", 0.26, 0.6567), ("aggregate_mean", 0.258, 0.7713), ("optimality_gap", 0.4027, 0.7687)],
)
def test_intervals_are_those_of_rliable_up_to_the_draws(name: str, low: float, high: float) -> None:
    """Its numbers are of 20,000 draws of its own generator."""
    found = statistics.stratified_interval([A], getattr(statistics, name))
    np.testing.assert_allclose(np.array(found), [low, high], atol=0.02)


def test_runs_are_drawn_for_each_task_by_itself() -> None:
    """Drawn together, runs that balance each other would always do so, and the mean would have no interval."""
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    low, high = statistics.stratified_interval([scores], statistics.aggregate_mean)
    assert (low, high) == (0.0, 1.0)
    # A task keeps its own scores.
    apart = np.array([[0.0, 10.0], [0.0, 10.0]])
    assert statistics.stratified_interval([apart], statistics.aggregate_mean) == (5.0, 5.0)


def test_the_improvement_draws_both_sides() -> None:
    low, high = statistics.stratified_interval([A, B], statistics.probability_of_improvement)
    np.testing.assert_allclose([low, high], [0.24, 0.6867], atol=0.03)


def test_curves_have_an_interval_at_each_point() -> None:
    curves = np.stack([A, A + 1], axis=-1)  # [runs, tasks, points]
    np.testing.assert_allclose(statistics.aggregate_iqm(curves), [0.4477777778, 1.4477777778])
    low, high = statistics.stratified_interval([curves], statistics.aggregate_iqm)
    np.testing.assert_allclose(high - low, np.full(2, high[0] - low[0]))
