"""Priorities: published numbers, exact masses, and no row of mass zero."""

from types import SimpleNamespace

import pytest
import torch
from recorder import Recorder, samples, spec

from whorl.experience.batch import Batch
from whorl.experience.replay import Replay
from whorl.experience.samplers import BlockSums, Priorities, Prioritized, Transitions, sequence_priority

CPU = torch.device("cpu")


def settled(alpha: float, beta: float) -> Prioritized:
    """Four rows with priorities 1, 2, 3, 4."""
    sampler = Prioritized(4, CPU, Priorities(alpha, beta, beta_steps=100, epsilon=0.0))
    sampler.admit(torch.arange(4), torch.ones(4, dtype=torch.bool))
    sampler.settle(batch_of(torch.arange(4)), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return sampler


def batch_of(index: torch.Tensor) -> Batch:
    none = torch.zeros(1, len(index))
    return Batch({}, none, {}, none, none, none, none + 1, extras={"index": index})


@pytest.mark.parametrize(("alpha", "beta", "probability", "weight"), [
    (0.6, 0.4, (0.14823, 0.22467, 0.28655, 0.34054), (1, 0.84675, 0.76823, 0.71698)),
    (1.0, 1.0, (0.1, 0.2, 0.3, 0.4), (1, 0.5, 1 / 3, 0.25)),
])  # fmt: skip
def test_probabilities_and_weights_of_four_rows(
    alpha: float, beta: float, probability: tuple[float, ...], weight: tuple[float, ...]
) -> None:
    sampler = settled(alpha, beta)
    mass = sampler.sums.leaves[:4] / sampler.sums.total()
    assert mass.tolist() == pytest.approx(probability, abs=1e-5)
    index, extras = sampler.draw(100_000, 0, torch.Generator().manual_seed(1))
    for row in range(4):
        drawn = (index == row).double().mean().item()
        assert abs(drawn - probability[row]) < 4 * (probability[row] * (1 - probability[row]) / 1e5) ** 0.5
        assert extras["weight"][index == row][0].item() == pytest.approx(weight[row], abs=1e-5)


def test_beta_grows_to_one_and_stops_there() -> None:
    sampler = settled(1.0, 0.4)
    assert [sampler.beta(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])


def test_a_new_row_gets_the_largest_priority_so_far() -> None:
    sampler = settled(1.0, 1.0)
    sampler.release(torch.tensor([0]), torch.tensor([True]))
    sampler.admit(torch.tensor([0]), torch.tensor([True]))
    assert sampler.sums.leaves[:4].tolist() == [4, 2, 3, 4]


def test_of_a_row_drawn_twice_the_larger_priority_counts() -> None:
    sampler = settled(1.0, 1.0)
    sampler.settle(batch_of(torch.tensor([2, 1, 2, 2])), torch.tensor([0.5, 0.25, 9.0, 2.0]))
    assert sampler.sums.leaves[:4].tolist() == [1, 0.25, 9, 4]
    assert sampler.sums.total() == 14.25


def test_a_row_that_was_overwritten_since_stays_out() -> None:
    sampler = settled(1.0, 1.0)
    sampler.release(torch.tensor([3]), torch.tensor([True]))
    sampler.settle(batch_of(torch.tensor([3, 0])), torch.tensor([5.0, 5.0]))
    assert sampler.sums.leaves[:4].tolist() == [5, 2, 3, 0]


def test_sequence_priority_mixes_maximum_and_mean() -> None:
    error, mask = torch.tensor([[1.0], [-2.0], [3.0]]), torch.ones(3, 1)
    assert sequence_priority(error, mask, 0.9).item() == pytest.approx(2.9)
    # A masked row has no say: max 2, mean 1.5.
    garbage = torch.cat((error[:2], torch.full((1, 1), torch.nan)))
    assert sequence_priority(garbage, torch.tensor([[1.0], [1], [0]]), 0.9).item() == pytest.approx(1.95)


@pytest.mark.parametrize("size", [1, 5, 16, 17, 300, 5000])
def test_block_sums_stay_exact_and_never_find_a_zero(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    sums = BlockSums(size, CPU, width=16)
    truth = torch.zeros(size, dtype=torch.float64)
    for _ in range(30):
        index = torch.randperm(size, generator=generator)[: max(1, size // 3)]
        value = torch.rand(len(index), generator=generator, dtype=torch.float64)
        value[torch.rand(len(index), generator=generator) < 0.5] = 0
        sums.write(index, value)
        truth[index] = value
    truth[0] = 1e-9
    sums.write(torch.tensor([0]), truth[:1])
    assert torch.equal(sums.leaves[:size], truth)
    assert sums.total().item() == pytest.approx(truth.sum().item(), rel=1e-12)
    point = torch.rand(20_000, generator=generator, dtype=torch.float64) * sums.total()
    point[:2] = torch.stack((sums.total(), sums.total() * 1.0000001))  # beyond the end
    found = sums.find(point)
    assert (truth[found] > 0).all()
    # The leaf that is found is the one whose share of the line holds the point.
    upper = truth.cumsum(0)[found]
    assert ((point <= upper + 1e-9) & (point >= upper - truth[found] - 1e-9))[2:].all()


def test_prioritized_sampling_never_returns_a_masked_row() -> None:
    record = Recorder(4, end=0.5)
    store = Replay(
        spec(4),
        "cpu",
        torch.Generator().manual_seed(0),
        view=Transitions(2),
        capacity=4 * 50,
        batch_size=200,
        priorities=Priorities(),
    )
    for _ in range(40):
        store.add(record.rollout(5))
        if store.steps > store.learn_after:
            batch = store.sample()
            assert all(record.rows[lane][row].mask for _, lane, row in samples(batch))
            store.settle(batch, SimpleNamespace(priority=torch.rand(200) * (torch.rand(200) < 0.5)))
    # After many wraps the total still is the sum of what can be drawn.
    leaves = store.sampler.sums.leaves  # type: ignore[attr-defined]
    assert store.sampler.sums.total().item() == pytest.approx(leaves.sum().item(), rel=1e-12)  # type: ignore[attr-defined]
