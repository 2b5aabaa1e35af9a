"""Recording of CUDA graphs: what graphs share with each other, and when generators are set."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.core import cuda_graphs
from whorl.core.cuda_graphs import Recorded

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class _Fake:
    """Stands in for a stream, a graph and a generator."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.device = torch.device("cuda", 1)

    def wait_stream(self, other: Any) -> None:
        self.log.append("wait")

    def register_generator_state(self, generator: Any) -> None:
        self.log.append("register")

    def get_state(self) -> str:
        return "state"

    def set_state(self, state: str) -> None:
        self.log.append("set generator")


def test_recording_ends_before_generators_are_set_and_keeps_no_workspace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a GPU the recording's own write to a generator's offset would otherwise come after that of the first replay.
    log: list[str] = []
    streams: list[Any] = []

    @contextmanager
    def graph(of: Any, stream: Any) -> Iterator[None]:
        log.append("record")
        streams.append(stream)
        yield
        log.append("recorded")

    fake = _Fake(log)
    for name, value in {
        "device": lambda device: log.append(str(device)) or nullcontext(),
        "Stream": lambda: _Fake(log),
        "current_device": lambda: 1,
        "current_stream": lambda: fake,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: log.append("synchronize"),
        "graph": graph,
        "CUDAGraph": lambda: fake,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda_graphs, "_STREAMS", {})
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: log.append("clear"), raising=False)
    generator: Any = fake
    on_host = torch.zeros(1)
    Recorded(lambda: log.append("step"), [on_host], [generator])
    assert log[0] == "cuda:1"  # whatever the current device is
    start = log.index("record")
    assert log[start - 1 :] == [
        "clear",
        "record",
        "step",
        "recorded",
        "clear",
        "synchronize",
        "set generator",
    ]
    Recorded(lambda: None, [on_host], [generator])
    assert len(streams) == 2 and streams[0] is streams[1] is cuda_graphs._STREAMS[1]


@pytest.mark.gpu
@needs_gpu
def test_graphs_that_replay_at_the_same_time_do_not_disturb_each_other() -> None:
    read: list[Tensor] = []  # the graphs know addresses alone

    def product(seed: int) -> tuple[Recorded, Tensor, torch.cuda.Stream]:
        # A long inner dimension is split among blocks, whose partial sums are in the workspace.
        draw = torch.Generator("cuda").manual_seed(seed)
        one = torch.randn(64, 65_536, generator=draw, device="cuda")
        other = torch.randn(65_536, 64, generator=draw, device="cuda")
        read.extend((one, other))
        made = Recorded(lambda: [one @ other for _ in range(20)], [], [])
        made.replay()
        torch.cuda.synchronize()
        return made, made.result[-1].clone(), torch.cuda.Stream()

    graphs = [product(seed) for seed in range(4)]
    for _ in range(20):
        for graph, _, stream in graphs:
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for graph, alone, _ in graphs:
            assert all(torch.equal(each, alone) for each in graph.result)


@pytest.mark.gpu
@needs_gpu
def test_the_first_replay_draws_from_where_the_generator_is() -> None:
    for attempt in range(20):
        generator = torch.Generator("cuda").manual_seed(attempt)
        torch.rand(1000, generator=generator, device="cuda")
        state = generator.get_state()
        wanted = torch.rand(1000, generator=generator, device="cuda")
        generator.set_state(state)
        drawn = Recorded(lambda: torch.rand(1000, generator=generator, device="cuda"), [], [generator])  # noqa: B023
        assert torch.equal(drawn.replay(), wanted)
