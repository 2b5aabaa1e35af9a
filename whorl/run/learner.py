"""Runs updates: captured as CUDA graphs, with metrics that stay on the device until they are read.

Nothing here waits for the device except `drain`, `means` and `check_finite`, which read all values in one transfer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent, Updated
from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.core.errors import DivergedError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.nets.backbone import Backbone

REMEDY = "lower the learning rate or max_grad_norm, or check the scale of rewards"


class Learner:
    """Runs an agent's updates and keeps the running mean of their metrics.

    Args:
        shared: runs an update (phase, batch) on several learners.
    """

    def __init__(
        self,
        agent: Agent,
        capture: bool,
        compile: bool = False,
        shared: Callable[[str, Batch], Updated] | None = None,
    ) -> None:
        self.agent, self._shared = agent, shared
        self.count: dict[str, int] = {}
        self._sums: dict[str, Tensor] = {}
        agent.runner = Capture() if capture else None
        if compile:
            compile_pure(agent)

    def update(self, phase: str, batch: Batch) -> Updated:
        """One update of the agent: `phase` is the name of its method, "update" for most."""
        updated = (self._shared or self.agent.learn)(phase, batch)
        if phase in ("update", "apply_gradients"):
            self.agent.updates += 1
        self._add(updated.metrics)
        return updated

    def _add(self, metrics: dict[str, Tensor]) -> None:
        """Add to the sums. Not every update has every metric, so each has its own count."""
        sums, count = self._sums, self.count
        going = [name for name in metrics if count.get(name)]
        if going:
            torch._foreach_add_([sums[name] for name in going], [metrics[name] for name in going])
        for name, value in metrics.items():
            if not count.get(name):
                sums[name] = value.detach().clone()
            count[name] = count.get(name, 0) + 1

    def drain(self) -> dict[str, float]:
        """Means since the last call; raises if one of them is not finite."""
        found = self.means()
        self.count = dict.fromkeys(self.count, 0)
        return found

    def means(self) -> dict[str, float]:
        """The means that `drain` would return, without resetting them."""
        names = [name for name, count in self.count.items() if count]
        values = [self._sums[name].float() / self.count[name] for name in names]
        found = dict(zip(names, torch.stack(values).tolist())) if values else {}
        for name, value in found.items():
            if not math.isfinite(value):
                raise DivergedError(f"{name} became {value}; {REMEDY}")
        return found

    def check_finite(self) -> None:
        """Raise if a metric since the last `drain` or a trained weight is not finite."""
        self.means()
        trained = self.agent.trained()
        finite = [value.isfinite().all() for value in trained.values()]
        for name, good in zip(trained, torch.stack(finite).tolist() if finite else []):
            if not good:
                raise DivergedError(f"the weights {name} are no longer finite; {REMEDY}")

    def state_dict(self) -> dict[str, Any]:
        return {"count": dict(self.count), "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.agent.device
        count, sums = state["count"], state["sums"]
        if count.keys() != sums.keys():
            raise ValueError("sums and counts are of different metrics")
        self.count = {name: int(number) for name, number in count.items()}
        self._sums = {name: value.to(device).reshape(()) for name, value in sums.items()}


def compile_pure(agent: Agent) -> None:
    """Compile the agent's `@pure` methods: fused kernels, and no Python between operations.

    Recurrent memories are not compiled: each row of a sequence would be compiled separately, which takes minutes.
    """
    agent.by_hand.clear()
    for module in agent.modules():
        if isinstance(module, Backbone) and module.memories:
            module.summarise = torch.compiler.disable(module.summarise)  # type: ignore[method-assign]
    for name in dir(type(agent)):
        if getattr(getattr(type(agent), name), "pure", False):
            setattr(agent, name, torch.compile(getattr(agent, name), dynamic=False))


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tree]
    output: Updated


class Capture:
    """Captures each `@captured` step once per batch shape and static flags, then replays the graph.

    Warm-up runs on the real state; weights, optimizer state and random generators are restored after it.
    """

    def __init__(self) -> None:
        self._graphs: dict[Any, _Graph] = {}

    def __call__(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> Updated:
        key = (method.__qualname__, id(agent), tuple(sorted(static.items())), _signature(batch))
        found = self._graphs.get(key)
        if found is None:
            found = self._graphs[key] = self._record(method, agent, batch, static)
        elif not batch.static:
            tree.copy_(found.inputs, batch.tensors())
        found.graph.replay()
        return found.output

    def _record(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> _Graph:
        # A batch that always consists of the same tensors is read in place.
        inputs = batch.tensors() if batch.static else tree.clone(batch.tensors())
        held = batch.replace(**inputs)
        graph = torch.cuda.CUDAGraph()
        streams = list(agent.generators.values())
        output = record(graph, lambda: method(agent, held, **static), agent.state_tensors(), streams)
        return _Graph(graph, inputs, output)


def _signature(batch: Batch) -> tuple[Any, ...]:
    shapes = tuple((path, tuple(leaf.shape), leaf.dtype) for path, leaf in tree.items(batch.tensors()))
    return (batch.burn_in, batch.static, shapes)
