"""Masses, on host and device alike: exact sums, no mass of zero found, and the same draws from both."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from whorl.conformance import capture_safe
from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.data.sum_tree import DeviceSumTree, HostSumTree, SumTree

CPU = torch.device("cpu")
OFF = (0.0, math.inf)
KINDS = [HostSumTree, DeviceSumTree]


def make(kind: Any, mass: Tensor, *, clip: tuple[float, float] = OFF, **shape: int) -> Any:
    """Masses as given: alpha 1, epsilon 0."""
    masses = kind(len(mass), CPU, 1.0, 0.0, clip, **shape)
    write(masses, torch.arange(len(mass)), mass)
    return masses


def write(masses: Any, index: Tensor, mass: Tensor) -> None:
    given = (index, mass.float())
    masses.write(*(value.numpy() for value in given) if isinstance(masses, HostSumTree) else given)


def find(masses: Any, share: Tensor) -> Tensor:
    if isinstance(masses, HostSumTree):
        return torch.from_numpy(masses.find(share.numpy()))
    return masses.find(share)


def total(masses: SumTree) -> float:
    return masses.levels[-1].sum().item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5, 16, 17, 300, 5000])
def test_sums_stay_exact_over_many_writes_and_shares_find_their_masses(kind: Any, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    truth = torch.zeros(size)
    masses = make(kind, truth, width=8, top=20)
    for _ in range(30):
        index = torch.randperm(size, generator=generator)[: max(1, size // 3)]
        value = torch.rand(len(index), generator=generator)
        value[torch.rand(len(index), generator=generator) < 0.5] = 0
        write(masses, index, value)
        truth[index] = value
    truth[0] = 1e-9
    write(masses, torch.tensor([0]), truth[:1])
    assert torch.equal(masses.levels[0][:size], truth)
    exact = math.fsum(truth.tolist())
    assert total(masses) == pytest.approx(exact, rel=1e-14)
    share = 1 - torch.rand(20_000, generator=generator, dtype=torch.float64)
    share[0] = 1.0
    found = find(masses, share)
    assert (truth[found] > 0).all()
    # What is found is the mass whose part of the line from 0 to the total holds the point.
    upper, point = truth.double().cumsum(0)[found], share * exact
    assert ((point <= upper + 1e-9) & (point >= upper - truth[found] - 1e-9)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_at_a_boundary_belongs_to_the_mass_that_ends_there(kind: Any) -> None:
    masses = make(kind, torch.tensor([0.0, 1, 0, 2, 3, 0, 2, 0]), width=2, top=2)
    share = torch.tensor([1.0, 1.5, 3, 3.5, 6, 6.5, 8], dtype=torch.float64) / 8
    assert find(masses, share).tolist() == [1, 3, 3, 4, 4, 6, 6]


def everywhere(size: int) -> Tensor:
    """Shares that come near both ends of every mass of `size` equal ones."""
    ends = torch.arange(1, size + 1, dtype=torch.float64) / size
    return torch.cat((ends, ends * (1 - 2**-52), (ends - 1 / size) + 2**-53)).clamp(2**-60, 1)


ADVERSARIAL = {
    "equal": torch.ones(4096),
    "sevenths": torch.full((4096,), 1 / 7),
    "alternating": torch.arange(4096) % 2 / 3,
    "sparse": (torch.arange(4096) % 61 == 7) * 0.1,
    "small beside large": 10.0 ** (torch.arange(4096) * 7 % 61 - 30),
    "small after large": 10.0 ** -(torch.arange(4096) / 128),
    "zeros between extremes": 10.0 ** (torch.arange(4096) * 7 % 61 - 30) * (torch.arange(4096) % 3 == 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape", [{"width": 16, "top": 20}, {"width": 4, "top": 4}, {"width": 64, "top": 4096}]
)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_no_rounding_leads_to_a_mass_of_zero(kind: Any, shape: dict[str, int], name: str) -> None:
    mass = ADVERSARIAL[name].float()
    masses = make(kind, mass, **shape)
    found = find(masses, everywhere(4096))
    assert (mass[found] > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["alternating", "sparse", "zeros between extremes"])
def test_sums_that_are_a_little_off_lead_to_no_mass_of_zero(kind: Any, name: str) -> None:
    mass = ADVERSARIAL[name].float()
    masses = make(kind, mass, width=16, top=20)
    for level in masses.levels[1:]:
        level.mul_(1 + 1e-3 * torch.rand(level.shape, generator=torch.Generator().manual_seed(0)))
    assert (mass[find(masses, everywhere(4096))] > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_between_two_blocks_whose_sums_round_apart_stays_in_its_own(kind: Any) -> None:
    # With u = 2^-52 the first block sums to 2 - u, the second to 2.2 u, and both to 2 + 2 u, the nearest there is.
    # The point 2 is in the second: 2 + 2 u - 2.2 u rounds to 2, and nothing is left of the point, or less.
    u = 2.0**-52
    first = [1, 1 - 2**-24, 2**-24 - 2**-48, 2**-48 - u]
    masses = make(kind, torch.tensor([*first, 0, 2.2 * u, 0, 0]), width=4, top=1)
    assert masses.levels[1].tolist()[:2] == [2 - u, pytest.approx(2.2 * u)] and total(masses) == 2 + 2 * u
    assert find(masses, torch.tensor([1 - u], dtype=torch.float64)).tolist() == [5]


def test_a_parallel_scan_that_rounds_as_it_likes_leads_to_no_mass_of_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    in_order = Tensor.cumsum

    def scan(self: Tensor, *args: Any, **options: Any) -> Tensor:
        sums = in_order(self, *args, **options)
        return sums * (1 + 1e-3 * (torch.rand(sums.shape, generator=generator) - 0.5))

    monkeypatch.setattr(Tensor, "cumsum", scan)
    for name in ("alternating", "sparse", "zeros between extremes"):
        mass = ADVERSARIAL[name].float()
        found = find(make(DeviceSumTree, mass, width=16, top=20), everywhere(4096))
        assert (mass[found] > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_one_mass_among_a_million_is_always_found(kind: Any) -> None:
    mass = torch.zeros(1_000_000)
    mass[777_777] = 1e-20
    share = 1 - torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert set(find(make(kind, mass), share).tolist()) == {777_777}


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_mass_a_draw_stays_in_range(kind: Any) -> None:
    assert find(make(kind, torch.zeros(100), width=4, top=4), torch.tensor([0.3, 1.0]).double()).tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_as_frequent_as_their_masses(kind: Any) -> None:
    mass = torch.rand(200, generator=torch.Generator().manual_seed(3)) ** 4
    masses, generator, beta = (
        make(kind, mass, width=8, top=8),
        torch.Generator().manual_seed(1),
        torch.tensor(1.0),
    )
    drawn = torch.cat([masses.draw(50, generator, beta)[0] for _ in range(2000)])  # 10^5
    frequency = torch.bincount(drawn, minlength=200) / 1e5
    probability = mass / mass.sum()
    assert ((frequency - probability).abs() < 4 * (probability * (1 - probability) / 1e5).sqrt()).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 49, 256])
def test_every_equal_share_of_the_whole_gives_one_draw(kind: Any, count: int) -> None:
    masses = make(kind, torch.ones(count * 100))
    drawn, _ = masses.draw(count, torch.Generator().manual_seed(0), torch.tensor(1.0))
    assert (drawn // 100).tolist() == list(range(count))


def test_host_and_device_draw_the_same_from_the_same_uniform_numbers() -> None:
    pair = [kind(3000, CPU, 0.6, 1e-6, (0.01, 2.0), width=8, top=50) for kind in (HostSumTree, DeviceSumTree)]
    streams = [torch.Generator().manual_seed(5) for _ in pair]
    generator, beta = torch.Generator().manual_seed(6), torch.tensor(0.5)
    for number in range(40):
        start = (torch.arange(200) + number * 200) % 3000
        allowed = torch.rand(200, generator=generator) < 0.9
        error = torch.randn(64, generator=generator)
        for masses in pair:
            masses.release(start)
            masses.admit(start, allowed)
        (index, weight), (same, as_heavy) = (
            masses.draw(64, stream, beta) for masses, stream in zip(pair, streams)
        )
        assert torch.equal(index, same)
        assert torch.allclose(weight, as_heavy, rtol=1e-6)
        for masses in pair:
            masses.renew(index, error)
    for level, other in zip(pair[0].levels, pair[1].levels):
        assert torch.allclose(level, other, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_is_no_number_counts_as_none(kind: Any) -> None:
    masses = kind(4, CPU, 1.0, 0.25, OFF)
    masses.admit(torch.arange(4), torch.ones(4, dtype=torch.bool))
    masses.renew(torch.arange(4), torch.tensor([math.nan, math.inf, -math.inf, -2.0]))
    assert masses.levels[0][:4].tolist() == [0.25, 0.25, 0.25, 2.25]
    assert masses.largest == 2.25 and total(masses) == 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_sums_are_those_that_writes_had_left(kind: Any) -> None:
    masses = make(kind, torch.rand(1000, generator=torch.Generator().manual_seed(0)), width=4, top=10)
    sums = [level.clone() for level in masses.levels[1:]]
    for level in masses.levels[1:]:
        level.zero_()
    masses.recompute()
    assert all(torch.allclose(level, known) for level, known in zip(masses.levels[1:], sums))


def test_what_a_device_runs_can_be_captured() -> None:
    masses = make(DeviceSumTree, torch.rand(500), clip=(0.01, 1.0), width=4, top=10)
    generator, beta, error = torch.Generator(), torch.tensor(0.5), torch.rand(32)
    masses.draw(32, generator, beta)
    with capture_safe():
        index, _ = masses.draw(32, generator, beta)
        masses.renew(index, error)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_gpu_finds_what_the_host_finds(name: str) -> None:
    mass, share = ADVERSARIAL[name].float(), everywhere(4096)[:4096]
    masses = DeviceSumTree(4096, torch.device("cuda"), 1.0, 0.0, OFF, width=16, top=20)
    masses.write(torch.arange(4096, device="cuda"), mass.cuda())
    found = masses.find(share.cuda()).cpu()
    assert (mass[found] > 0).all()
    same = find(make(HostSumTree, mass, width=16, top=20), share) == found
    assert same.float().mean() > 0.9  # at boundaries either neighbour is right


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_draws_and_renewals_equal_eager_ones() -> None:
    def run(captured: bool) -> list[Tensor]:
        device = torch.device("cuda")
        masses = DeviceSumTree(50_000, device, 0.6, 1e-6, (0.01, 1.0))
        start = torch.arange(50_000, device=device)
        masses.admit(start, start % 7 > 0)
        generator, beta = torch.Generator(device).manual_seed(1), torch.full((), 0.4, device=device)

        def step() -> tuple[Tensor, Tensor]:
            index, weight = masses.draw(256, generator, beta)
            masses.renew(index, index % 1000 / 500)
            return index, weight

        graph = torch.cuda.CUDAGraph()
        result = record(graph, step, [*masses.levels, masses.largest], [generator]) if captured else None
        seen = []
        for number in range(20):
            if result is None:
                seen += step()
            else:
                graph.replay()
                seen += tree.clone(dict(enumerate(result))).values()
            if number == 10:
                masses.release(start[:5000])
                beta.fill_(0.8)
        assert not any((index < 5000).any() for index in seen[22::2])
        return [*seen, *masses.levels]

    assert all(torch.equal(eager, again) for eager, again in zip(run(False), run(True), strict=True))


def test_bytes_per_row_are_those_of_the_priority_and_little_more() -> None:
    # A float32 each, float64 sums of every 16 (host) or 128 (device) of them, and of every 16 or 128 of those.
    for kind, expected in ((HostSumTree, 4 + 8 / 16 + 8 / 256), (DeviceSumTree, 4 + 8 / 128)):
        masses = kind(1_000_000, CPU, 0.6, 1e-6, OFF)
        size = sum(level.numel() * level.element_size() for level in masses.levels)
        assert size / 1_000_000 == pytest.approx(expected, rel=1e-3)


def test_points_of_a_million_rows_fall_where_a_plain_search_puts_them() -> None:
    mass = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0))
    share = 1 - torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    running = np.cumsum(mass.numpy(), dtype=np.float64)
    expected = np.searchsorted(running, share.numpy() * running[-1]).tolist()
    for kind in KINDS:
        assert find(make(kind, mass), share).tolist() == expected
