"""Recording of CUDA graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def record(
    graph: torch.cuda.CUDAGraph,
    step: Callable[[], Any],
    tensors: Sequence[Tensor],
    generators: Sequence[torch.Generator],
) -> Any:
    """Warm `step` up on a side stream, put its state back, and record it into `graph`; returns its static result."""
    saved = [tensor.detach().clone() for tensor in tensors]
    states = [generator.get_state() for generator in generators]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved):
                tensor.copy_(value)
        for generator, state in zip(generators, states):
            generator.set_state(state)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
            put_back()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = step()
    put_back()
    return result
