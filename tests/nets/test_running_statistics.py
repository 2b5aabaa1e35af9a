"""Running statistics of observations and returns, with numbers worked by hand."""

import pytest
import torch
from torch import Tensor

from whorl.core.spec import Array
from whorl.nets.normalize import Observations, ReturnScale, RunningStatistics


def merged(*blocks: list[float]) -> RunningStatistics:
    statistics = RunningStatistics(())
    for block in blocks:
        statistics.merge_(torch.tensor(block), torch.ones(len(block)))
    return statistics


def test_statistics_of_two_blocks_are_those_of_all_rows() -> None:
    statistics = merged([1.0, 3.0], [5.0, 7.0, 9.0])
    # The blocks vary by 1 and 8/3 around 2 and 7; all five around 5 by (16 + 4 + 0 + 4 + 16) / 5.
    assert float(statistics.mean) == pytest.approx(5.0)
    assert float(statistics.var) == pytest.approx(8.0)
    assert float(statistics.count) == 5


def test_the_first_block_replaces_the_initial_statistics() -> None:
    statistics = merged([1.0, 3.0])
    assert (float(statistics.mean), float(statistics.var)) == (2.0, 1.0)


@pytest.mark.parametrize("value", [1e5, 123456.7, -3.3e7, 0.1])
def test_a_constant_observation_becomes_0_however_large_it_is(value: float) -> None:
    observations = Observations(Array((1,)), True, 0)
    rows = torch.full((100, 7, 1), value)
    for _ in range(50):
        observations.merge_(rows, torch.ones(100, 7))
    assert float(observations(rows).abs().max()) == 0


def test_small_changes_of_a_large_observation_are_seen() -> None:
    observations = Observations(Array((1,)), True, 0)
    rows = 1e5 + torch.tensor([-0.5, 0.5]).repeat(1000).reshape(2000, 1, 1)
    for _ in range(50):
        observations.merge_(rows, torch.ones(2000, 1))
    assert observations(rows[:2]).flatten().tolist() == pytest.approx([-1, 1], abs=1e-3)


def test_statistics_of_earlier_versions_are_read() -> None:
    observations = Observations(Array((2,)), True, 0)
    observations.merge_(torch.rand(5, 3, 2), torch.ones(5, 3))
    saved = {**observations.state_dict(), "statistics.observation.shift": torch.zeros(2)}
    found = Observations(Array((2,)), True, 0)
    found.load_state_dict(saved)
    row = torch.rand(4, 2)
    assert torch.equal(found(row), observations(row))


def test_rows_of_weight_0_are_not_counted() -> None:
    statistics = RunningStatistics((2,))
    rows = torch.tensor([[1.0, 10], [3, 30], [100, 1000]])
    statistics.merge_(rows, torch.tensor([1.0, 1.0, 0.0]))
    assert statistics.mean.tolist() == [2, 20]
    assert statistics.var.tolist() == [1, 100]
    assert float(statistics.count) == 2


def test_a_block_without_rows_changes_nothing() -> None:
    statistics = merged([1.0, 3.0])
    statistics.merge_(torch.tensor([7.0]), torch.zeros(1))
    assert (float(statistics.mean), float(statistics.var), float(statistics.count)) == (2, 1, 2)


def seen(clip: float, *values: float) -> Tensor:
    """Values as a network reads them after rows 0 and 4: mean 2, variance 4."""
    observations = Observations(Array((1,)), True, clip)
    observations.merge_(torch.tensor([[[0.0]], [[4.0]]]), torch.ones(2, 1))
    return observations(torch.tensor(values).unsqueeze(-1)).squeeze(-1)


def test_observations_are_centred_and_divided_by_their_deviation() -> None:
    torch.testing.assert_close(seen(0.0, 2.0, 6.0, -18.0), torch.tensor([0.0, 2.0, -10.0]))


def test_normalised_observations_are_clipped_on_both_sides() -> None:
    torch.testing.assert_close(seen(1.5, 3.0, 6.0, -18.0), torch.tensor([0.5, 1.5, -1.5]))


def test_a_return_starts_again_with_the_episode_and_continues_across_rollouts() -> None:
    scale = ReturnScale(2, True, 0.0)
    reward = torch.tensor([[1.0, 1], [1, 1]])
    keep = torch.tensor([[0.0, 1], [1, 1]])
    scale.merge_(reward, keep, torch.ones(2, 2), 0.5)
    # Environment 0: 1 | 1. Environment 1: 1, 1 + 1/2.
    torch.testing.assert_close(scale.running, torch.tensor([1.0, 1.5]))
    values = torch.tensor([1.0, 1, 1, 1.5])
    torch.testing.assert_close(scale.statistics.var, values.var(correction=0))
    scale.merge_(reward[:1], keep[1:], torch.ones(1, 2), 0.5)
    torch.testing.assert_close(scale.running, torch.tensor([1.5, 1.75]))


def test_a_return_that_crosses_episodes_is_not_discounted_between_them() -> None:
    scale = ReturnScale(1, True, 0.0)
    reward, mask = torch.tensor([[1.0], [2.0], [9.0], [4.0]]), torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    scale.merge_(reward, torch.ones(4, 1), mask, 0.5)
    # the third row is no transition: 1, 2.5, then 1.25 + 4
    assert scale.running.tolist() == [5.25]
    assert float(scale.statistics.mean) == pytest.approx((1 + 2.5 + 5.25) / 3)


def test_rewards_are_scaled_and_then_clipped() -> None:
    scale = ReturnScale(1, True, 1.0)
    scale.merge_(torch.tensor([[0.0], [4.0]]), torch.ones(2, 1), torch.ones(2, 1), 1.0)
    # Returns 0 and 4: deviation 2. No mean is subtracted.
    torch.testing.assert_close(scale(torch.tensor([[1.0, 3.0, -8.0]])), torch.tensor([[0.5, 1.0, -1.0]]))


def test_of_several_reward_streams_the_environments_alone_is_scaled() -> None:
    scale = ReturnScale(1, True, 0.0)
    reward, ones = torch.tensor([[[0.0, 7]], [[4, 7]]]), torch.ones(2, 1, 2)
    scale.merge_(reward, ones, torch.ones(2, 1), 1.0)
    torch.testing.assert_close(scale(reward), torch.tensor([[[0.0, 7]], [[2, 7]]]))
