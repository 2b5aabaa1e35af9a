"""Random streams are independent, repeatable and resumable in place."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from whorl.core.errors import CheckpointError
from whorl.state.streams import NAMES, Streams


def draw(streams: Streams, name: str, part: str = "") -> Tensor:
    return torch.rand(8, generator=streams.generator(name, "cpu", part=part))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    assert torch.equal(draw(Streams(7), "act"), draw(Streams(7), "act"))
    assert not torch.equal(draw(Streams(7), "act"), draw(Streams(8), "act"))


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMES, 2)))
def test_no_two_streams_share_numbers(one: str, other: str) -> None:
    streams = Streams(0)
    assert not torch.equal(draw(streams, one), draw(streams, other))
    assert streams.seed(one) != streams.seed(other)


def test_drawing_from_one_stream_never_shifts_another() -> None:
    quiet, busy = Streams(3), Streams(3)
    for _ in range(5):
        draw(busy, "eval")
        draw(busy, "learner", "critic")
    assert torch.equal(draw(quiet, "learner"), draw(busy, "learner"))


def test_neither_devices_nor_the_order_of_first_uses_matters() -> None:
    eager, lazy = Streams(3, ["cpu"]), Streams(3, [])
    draw(lazy, "replay")
    assert torch.equal(draw(eager, "env"), draw(lazy, "env"))


def test_parts_of_a_stream_are_streams_of_their_own() -> None:
    streams = Streams(3)
    drawn = [draw(streams, "learner", part) for part in ("", "actor", "critic")]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 3
    assert streams.seed("learner", "actor") != streams.seed("learner", "critic")


def test_the_same_arguments_give_the_same_generator_object() -> None:
    streams = Streams(3)
    assert streams.generator("act", "cpu") is streams.generator("act", torch.device("cpu", 0))
    assert streams.generator("act", "cpu", part="x") is not streams.generator("act", "cpu")


def test_derived_seeds_fit_in_31_bits_and_repeat() -> None:
    assert all(0 <= Streams(2**63 - 1).seed(name) < 2**31 for name in NAMES)
    assert Streams(5).seed("env") == Streams(5).seed("env")


def test_the_first_seed_is_pinned_so_that_runs_repeat_across_versions() -> None:
    assert [Streams(0).seed(name) for name in NAMES] == [
        821328062,
        1817441348,
        993632895,
        465539299,
        1874364848,
    ]


def test_a_restored_stream_goes_on_in_the_same_generator_object() -> None:
    saved = Streams(3)
    draw(saved, "act")
    draw(saved, "learner", "a.b@c")
    state = {key: value.clone() for key, value in saved.state_dict().items()}
    restored = Streams(99)
    held = restored.generator("act", "cpu")
    draw(restored, "act")
    restored.load_state_dict(state)
    assert restored.generator("act", "cpu") is held
    assert torch.equal(torch.rand(8, generator=held), draw(saved, "act"))
    assert torch.equal(draw(restored, "learner", "a.b@c"), draw(saved, "learner", "a.b@c"))


def test_a_part_first_used_after_the_checkpoint_starts_as_it_did_in_the_saved_run() -> None:
    saved, restored = Streams(3), Streams(99)
    state = saved.state_dict()
    draw(restored, "replay", "early")
    restored.load_state_dict(state)
    assert torch.equal(draw(restored, "replay", "early"), draw(saved, "replay", "early"))
    assert torch.equal(draw(restored, "replay", "late"), draw(saved, "replay", "late"))
    assert restored.seed("env") == saved.seed("env")


def test_the_state_is_a_snapshot_made_of_tensors() -> None:
    streams = Streams(3)
    state = streams.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    first = draw(streams, "env")
    streams.load_state_dict(state)
    assert torch.equal(draw(streams, "env"), first)


def test_an_unknown_stream_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="random stream 'actor' is unknown; choose one of: env, act, replay, learner, eval"
    ):
        Streams(0).generator("actor", "cpu")


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Streams(seed)


def test_a_checkpoint_with_an_unknown_stream_changes_nothing() -> None:
    streams = Streams(3)
    with pytest.raises(CheckpointError, match="'dreams'"):
        streams.load_state_dict({**Streams(4).state_dict(), "dreams.@cpu": torch.zeros(1)})
    assert torch.equal(draw(streams, "act"), draw(Streams(3), "act"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_a_checkpoint_with_a_stream_on_an_absent_device_says_so() -> None:
    with pytest.raises(CheckpointError, match="cuda:0, but torch finds no GPU"):
        Streams(3).load_state_dict(
            {**Streams(3).state_dict(), "act.@cuda:0": torch.zeros(16, dtype=torch.uint8)}
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_goes_on_with_the_restored_numbers() -> None:
    streams = Streams(3, ["cpu", "cuda"])
    generator = streams.generator("learner", "cuda:0")
    out = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out.copy_(torch.rand(8, device="cuda", generator=generator))
    torch.cuda.synchronize()  # recording sets the generator on its stream
    graph.replay()
    state = streams.state_dict()
    graph.replay()
    expected = out.clone()
    graph.replay()
    streams.load_state_dict(state)
    graph.replay()
    assert torch.equal(out, expected)
