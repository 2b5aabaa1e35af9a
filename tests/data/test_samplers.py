"""Samplers: published numbers, what settling may touch, and no row that is masked."""

import math
from types import SimpleNamespace

import pytest
import torch
from recorder import Recorder, samples, spec, tree_equal

from whorl.core import tree
from whorl.data import samplers
from whorl.data.replay import Replay
from whorl.data.samplers import Priorities, Prioritized, Uniform, sequence_priority
from whorl.data.sum_tree import DeviceSumTree
from whorl.data.views import Transitions

CPU = torch.device("cpu")


def settled(alpha: float, beta: float, **settings: object) -> Prioritized:
    """Four rows with priorities 1, 2, 3, 4."""
    cfg = Priorities(alpha, beta, beta_steps=100, epsilon=0.0, **settings)  # type: ignore[arg-type]
    sampler = Prioritized(4, CPU, cfg)
    sampler.admit(torch.arange(4), torch.ones(4, dtype=torch.bool))
    settle(sampler, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    return sampler


def settle(sampler: Prioritized, index: list[int], error: list[float]) -> None:
    sampler.settle(torch.tensor(index), torch.ones(1, len(index)), torch.tensor([error]))


def mass(sampler: Prioritized) -> list[float]:
    return sampler.state_dict()["leaves"].tolist()


@pytest.mark.parametrize(("alpha", "beta", "probability", "weight"), [
    (0.6, 0.4, (0.14823, 0.22467, 0.28655, 0.34054), (1, 0.84675, 0.76823, 0.71698)),
    (1.0, 1.0, (0.1, 0.2, 0.3, 0.4), (1, 0.5, 1 / 3, 0.25)),
])  # fmt: skip
def test_probabilities_and_weights_of_four_rows(
    alpha: float, beta: float, probability: tuple[float, ...], weight: tuple[float, ...]
) -> None:
    sampler = settled(alpha, beta)
    found = sampler.state_dict()["leaves"]
    assert (found / found.sum()).tolist() == pytest.approx(probability, abs=1e-5)
    index, extras = sampler.draw(100_000, torch.Generator().manual_seed(1))
    for row in range(4):
        drawn = (index == row).double().mean().item()
        assert abs(drawn - probability[row]) < 4 * (probability[row] * (1 - probability[row]) / 1e5) ** 0.5
        assert extras["weight"][index == row][0].item() == pytest.approx(weight[row], abs=1e-5)


def test_beta_grows_to_one_and_stops_there() -> None:
    sampler = settled(1.0, 0.4)
    place, seen = sampler.beta.data_ptr(), []
    for steps in (0, 50, 100, 1000):
        sampler.anneal(steps, 0.0)
        seen.append(sampler.beta.item())
    assert seen == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert sampler.beta.data_ptr() == place  # a captured draw reads it there


def test_without_a_horizon_of_its_own_beta_grows_over_the_training_budget() -> None:
    sampler, seen = Prioritized(4, torch.device("cpu"), Priorities(beta=0.4)), []
    for steps, progress in ((0, 0.0), (10**9, 0.25), (5, 0.5), (5, 1.0)):
        sampler.anneal(steps, progress)
        seen.append(sampler.beta.item())
    assert seen == pytest.approx([0.4, 0.55, 0.7, 1.0])


def test_weights_follow_beta() -> None:
    sampler = settled(1.0, 0.0)
    sampler.anneal(50, 0.0)  # halfway from 0 to 1
    index, extras = sampler.draw(100, torch.Generator().manual_seed(1))
    assert extras["weight"][index == 3][0].item() == pytest.approx(4**-0.5)


def test_a_new_row_gets_the_largest_priority_so_far() -> None:
    sampler = settled(1.0, 1.0)
    sampler.release(torch.tensor([0]), torch.tensor([True]))
    sampler.admit(torch.tensor([0]), torch.tensor([True]))
    assert mass(sampler) == [4, 2, 3, 4]


def test_of_a_row_drawn_twice_the_larger_priority_counts() -> None:
    sampler = settled(1.0, 1.0)
    settle(sampler, [2, 1, 2, 2], [0.5, 0.25, 9.0, 2.0])
    assert mass(sampler) == [1, 0.25, 9, 4]
    assert sampler.sum_tree.levels[-1].sum() == 14.25


def test_a_row_that_was_overwritten_since_stays_out() -> None:
    sampler = settled(1.0, 1.0)
    sampler.release(torch.tensor([3]), torch.tensor([True]))
    settle(sampler, [3, 0], [5.0, 5.0])
    assert mass(sampler) == [5, 2, 3, 0]


def test_appraisal_gives_new_rows_priorities_of_their_own_where_they_are_allowed() -> None:
    sampler = Prioritized(4, CPU, Priorities(alpha=0.5, epsilon=0.0))
    sampler.admit(torch.arange(4), torch.tensor([True, False, True, True]))
    sampler.settle(torch.arange(3), torch.ones(1, 3), torch.tensor([[4.0, 9.0, -16.0]]))
    assert mass(sampler) == [2, 0, 4, 1]  # |error|^0.5, and 1 where nobody said anything


def test_errors_are_clipped_before_they_become_priorities() -> None:
    sampler = settled(1.0, 1.0, clip=(1.5, 3.0))
    assert mass(sampler) == [1.5, 2, 3, 3]
    assert Prioritized(4, CPU, Priorities(alpha=0.5, clip=(0.0, 0.25))).sum_tree.largest == 0.5


def test_a_masked_single_row_has_no_say() -> None:
    sampler = Prioritized(2, CPU, Priorities(alpha=1.0, epsilon=0.5))
    sampler.admit(torch.arange(2), torch.ones(2, dtype=torch.bool))
    sampler.settle(torch.arange(2), torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, math.nan]]))
    assert mass(sampler) == [3.5, 0.5]


def test_sequence_priority_mixes_maximum_and_mean() -> None:
    error, mask = torch.tensor([[1.0], [-2.0], [3.0]]), torch.ones(3, 1)
    assert sequence_priority(error, mask, 0.9).item() == pytest.approx(2.9)
    # A masked row has no say: max 2, mean 1.5.
    garbage = torch.cat((error[:2], torch.full((1, 1), torch.nan)))
    assert sequence_priority(garbage, torch.tensor([[1.0], [1], [0]]), 0.9).item() == pytest.approx(1.95)


def test_a_state_goes_from_a_host_to_a_device_which_sums_other_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, error = torch.arange(3000), torch.rand(3000, generator=torch.Generator().manual_seed(0))
    host = Prioritized(3000, CPU, Priorities())
    host.admit(index, torch.ones(3000, dtype=torch.bool))
    host.settle(index, torch.ones(1, len(index)), error)
    host.anneal(1000, 0.5)
    monkeypatch.setattr(samplers, "HostSumTree", DeviceSumTree)
    device = Prioritized(3000, CPU, Priorities())
    device.load_state_dict(tree.clone(host.state_dict()))
    there, here = device.state_dict(), host.state_dict()
    assert there["sums"]["1"].shape != here["sums"]["1"].shape
    assert all(torch.equal(there[name], here[name]) for name in ("beta", "largest", "leaves"))
    drawn = [sampler.draw(64, torch.Generator().manual_seed(1))[0] for sampler in (host, device)]
    assert torch.equal(*drawn)


def test_a_restored_state_is_the_same_to_the_bit() -> None:
    sampler, generator = Prioritized(30_000, CPU, Priorities()), torch.Generator().manual_seed(0)
    sampler.admit(torch.arange(30_000), torch.ones(30_000, dtype=torch.bool))
    for _ in range(50):
        index, _ = sampler.draw(64, generator)
        sampler.settle(index, torch.ones(1, 64), torch.rand(1, 64, generator=generator))
    other = Prioritized(30_000, CPU, Priorities())
    other.load_state_dict(tree.clone(sampler.state_dict()))
    assert tree_equal(sampler.state_dict(), other.state_dict())


@pytest.mark.parametrize("masses", [samplers.HostSumTree, samplers.DeviceSumTree])
def test_prioritized_sampling_never_returns_a_masked_row(
    masses: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "HostSumTree", masses)
    record = Recorder(4, end=0.5)
    store = Replay(
        spec(4),
        "cpu",
        torch.Generator().manual_seed(0),
        view=Transitions(2),
        gamma=0.9,
        buffer_size=4 * 50,
        batch_size=200,
        priorities=Priorities(),
    )
    for _ in range(40):
        store.add(record.rollout(5))
        if store.steps > store.learning_starts:
            batch = store.sample()
            assert all(record.rows[env_index][row].mask for _, env_index, row in samples(batch))
            store.settle(batch, SimpleNamespace(priority=torch.rand(200) * (torch.rand(200) < 0.5)))
    # After many wraps the total still is the sum of what can be drawn.
    state = store.sampler.state_dict()
    assert store.ring.rows > 3 * store.ring.slots
    assert state["sums"]["1"].sum().item() == pytest.approx(math.fsum(state["leaves"].tolist()), rel=1e-12)


def test_a_uniform_draw_takes_what_was_admitted_and_is_not_yet_released() -> None:
    sampler, generator = Uniform(6, CPU), torch.Generator().manual_seed(0)
    sampler.admit(torch.arange(6), torch.tensor([True, False, True, True, False, True]))
    sampler.release(torch.tensor([0, 1]), torch.tensor([True, False]))
    sampler.admit(torch.tensor([0, 1]), torch.tensor([False, True]))  # went round
    index, extras = sampler.draw(40_000, generator)
    assert extras == {} and index.dtype == torch.int64
    # Four of six can be drawn: each a quarter of the time, within 4 standard deviations.
    counts = torch.bincount(index, minlength=6).tolist()
    assert [row for row, count in enumerate(counts) if count] == [1, 2, 3, 5]
    assert all(abs(count - 10_000) < 4 * (40_000 * 0.25 * 0.75) ** 0.5 for count in counts if count)


def test_a_uniform_sampler_takes_four_bytes_a_row() -> None:
    assert Uniform(1000, CPU).queue.element_size() == 4


def test_starts_that_are_not_allowed_leave_nothing_in_a_uniform_sampler() -> None:
    sampler = Uniform(4, CPU)
    sampler.admit(torch.tensor([1, 2, 3]), torch.tensor([False, True, False]))
    assert sampler.queue.tolist() == [2, 0, 0, 0, 0]  # else the state would depend on the order of writes
