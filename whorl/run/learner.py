"""Makes `update` fast and safe: capture as CUDA graphs, metrics that stay on the device until they are wanted.

Nothing here waits for the device, except `drain`, which reads all metrics in one transfer.
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

REMEDY = "lower the learning rate or the gradient norm, or look at the rewards' scale; the last good checkpoint is kept"


class Learner:
    """Runs an agent's updates and keeps the running mean of their metrics.

    Args:
        shared: makes an update by its phase and batch, where several learners share it.
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
        """One round of learning: `agent.update(batch)`, or another phase of the agent by its name."""
        updated = self._shared(phase, batch) if self._shared else getattr(self.agent, phase)(batch)
        if phase in ("update", "apply_gradients"):
            self.agent.updates += 1
        self._add(updated.metrics)
        return updated

    def _add(self, metrics: dict[str, Tensor]) -> None:
        """Add to the sums. Not every update has every metric: each is counted apart."""
        sums, count = self._sums, self.count
        going = [name for name in metrics if count.get(name)]
        if going:
            torch._foreach_add_([sums[name] for name in going], [metrics[name] for name in going])
        for name, value in metrics.items():
            if not count.get(name):
                sums[name] = value.detach().clone()
            count[name] = count.get(name, 0) + 1

    def drain(self) -> dict[str, float]:
        """Means since the last call; raises where one of them is no finite number. The one transfer from the device."""
        found = self.means()
        self.count = dict.fromkeys(self.count, 0)
        return found

    def means(self) -> dict[str, float]:
        """What `drain` would give, and all stays as it is."""
        names = [name for name, count in self.count.items() if count]
        values = [self._sums[name].float() / self.count[name] for name in names]
        found = dict(zip(names, torch.stack(values).tolist())) if values else {}
        for name, value in found.items():
            if not math.isfinite(value):
                raise DivergedError(f"{name} became {value}; {REMEDY}")
        return found

    def check_finite(self) -> None:
        """Raise where a metric gathered so far or a trained weight is no finite number; all stays as it is."""
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
        self.count = dict(state["count"])
        self._sums = tree.to(state["sums"], device)


def compile_pure(agent: Agent) -> None:
    """Replace the agent's `@pure` methods by compiled ones: fused kernels, and no Python between operations.

    Memories are left as they are: each row of a window would be compiled apart, for minutes.
    """
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
    """Records each captured step once per shape and static flags, then replays it.

    Warm-up runs on the real state, so weights, optimizer state and random streams are put back after it.
    """

    def __init__(self) -> None:
        self._graphs: dict[Any, _Graph] = {}

    def __call__(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> Updated:
        key = (method.__qualname__, tuple(sorted(static.items())), _signature(batch))
        found = self._graphs.get(key)
        if found is None:
            found = self._graphs[key] = self._record(method, agent, batch, static)
        elif not batch.static:
            tree.copy_(found.inputs, batch.tensors())
        found.graph.replay()
        return found.output

    def _record(self, method: Any, agent: Agent, batch: Batch, static: dict[str, Any]) -> _Graph:
        # A batch that is always the same tensors is read where it lies.
        inputs = batch.tensors() if batch.static else tree.clone(batch.tensors())
        held = batch.replace(**inputs)
        graph = torch.cuda.CUDAGraph()
        streams = list(agent.generators.values())
        output = record(graph, lambda: method(agent, held, **static), agent.state_tensors(), streams)
        return _Graph(graph, inputs, output)


def _signature(batch: Batch) -> tuple[Any, ...]:
    shapes = tuple((path, tuple(leaf.shape), leaf.dtype) for path, leaf in tree.items(batch.tensors()))
    return (batch.burn_in, batch.static, shapes)
