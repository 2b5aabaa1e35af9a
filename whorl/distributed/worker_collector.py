"""Acting inside the worker processes: each holds a copy of the policy and collects its part of the rollout alone.

Weights are sent through shared memory once per rollout, and rows come back the same way, so workers do not wait for
each other within a rollout. All rows of a rollout come from one policy version.
"""

from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector, LocalCollector, Storage
from whorl.collect.episodes import EpisodeStatistics
from whorl.core import tree
from whorl.data.batch import Batch
from whorl.distributed.pool import WorkerPool
from whorl.distributed.tensors import array_specs, layout_of, nested, padded, views
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import Source
from whorl.envs.stepping import EnvStepper
from whorl.state.streams import Streams

WEIGHTS, PROGRESS = "weights", "progress"
"""shared arrays: the weights, and the share of the rollout that each worker has collected"""


class WorkerCollector(Collector):
    """A collector whose environments, policy copies and random streams live in the workers."""

    episode_statistics: EpisodeStatistics

    def __init__(
        self,
        source: Source,
        agent: Agent,
        num_envs: int,
        steps: int,
        workers: int,
        streams: Streams,
        hold: bool = False,
        timeout: float = 0.0,
    ) -> None:
        self.agent, self.steps, self._streams = agent, steps, streams
        layout = layout_of(Storage.allocate(agent, num_envs, steps).tensors)
        arrays = {spec.name: (spec.shape, spec.dtype) for spec in array_specs(layout)}
        arrays[WEIGHTS] = ((sum(map(padded, agent.acting_tensors())),), "uint8")
        arrays[PROGRESS] = ((workers,), "float64")
        self.env = WorkerPool(source.factory, num_envs, source.id, workers, arrays, timeout)
        self._progress = self.env.arrays[PROGRESS]
        self.storage = Storage(nested(layout, self.env.arrays))
        self.episode_statistics = EpisodeStatistics(num_envs, torch.device("cpu"), agent.spec.measures)
        self._weights = views(torch.from_numpy(self.env.arrays[WEIGHTS]), agent.acting_tensors())
        packed = cloudpickle.dumps(agent)
        given = (packed, steps, source.id)
        seeds = self._seeds("")
        self.env.attach(ActingWorker, [(*given, seed, hold, number) for number, seed in enumerate(seeds)])

    def _seeds(self, more: str) -> list[int]:
        """Of each worker's exploration; `more` gives other ones."""
        return [self._streams.seed("act", f"worker {number}{more}") for number in range(self.env.workers)]

    def reset(self, seed: int) -> None:
        """Reset all environments; the next rollout begins there, with memories of the newest weights."""
        self._send_weights()
        self._call("reset", [(seed,)] * self.env.workers)

    def reseed(self, number: int) -> None:
        self._call("reseed", [(seed,) for seed in self._seeds(f" reset {number}")])

    def start(self, random: bool = False) -> None:
        """Send the weights and let the workers collect, with `random` actions or the policy's."""
        self._send_weights()
        self._progress[:] = 0.0
        self.env.start("collect", [(random,)] * self.env.workers)

    @torch.no_grad()
    def _send_weights(self) -> None:
        for into, tensor in zip(self._weights, self.agent.acting_tensors()):
            into.copy_(tensor)

    def finish(self, cut: bool = False) -> Batch:
        """The rollout, as views of shared memory: learn from it before the next call."""
        self.env.collect("collect", self._progress, self._watched)
        return self.storage.finish(self.episode_statistics, cut)

    def _watched(self) -> None:
        if self.watch is not None:
            self.watch(float(self._progress.mean()))

    def collect(self, cut: bool = False, random: bool = False) -> Batch:
        """One rollout, start to finish."""
        self.start(random)
        return self.finish(cut)

    def rollout(self) -> Batch:
        """The rows in shared memory."""
        return self.storage.batch()

    def state_dict(self) -> dict[str, Any]:
        return {
            "workers": self._call("state", [()] * self.env.workers),
            "episode_statistics": self.episode_statistics.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._call("load", [(state,) for state in saved["workers"]])
        self.episode_statistics.load_state_dict(saved["episode_statistics"])

    def close(self) -> None:
        self.env.close()

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        self.env.start(method, arguments)
        return self.env.collect(method)


class ActingWorker:
    """Runs in a worker: a policy copy and a collector over the worker's environments."""

    def __init__(
        self,
        stepper: EnvStepper,
        arrays: dict[str, np.ndarray],
        packed: bytes,
        steps: int,
        id: str,
        seed: int,
        hold: bool,
        number: int,
    ) -> None:
        torch.set_num_threads(1)
        self.agent: Agent = cloudpickle.loads(packed)
        self.hold, self.numbers = hold, stepper.numbers
        self._weights = views(torch.from_numpy(arrays[WEIGHTS]), self.agent.acting_tensors())
        self.collector = LocalCollector(
            GymnasiumVector.over(stepper, id),
            self.agent,
            steps,
            torch.Generator().manual_seed(seed),
            numbers=stepper.numbers,
            renew=self._read_weights if hold else None,
        )
        self.collector.watch = partial(arrays[PROGRESS].__setitem__, number)
        self._shared = nested(layout_of(self.collector.storage.tensors), arrays)

    @torch.inference_mode()
    def collect(self, random: bool) -> None:
        """Collect with the newest weights, and write this worker's columns of the rollout."""
        if not self.hold:
            self._read_weights()
        self.collector.roll(random)
        tree.map(self._write, self._shared, self.collector.storage.tensors)

    @torch.inference_mode()
    def reset(self, seed: int) -> None:
        self._read_weights()
        self.collector.reset(seed)

    def reseed(self, seed: int) -> None:
        self.collector.generator.manual_seed(seed)

    def state(self) -> dict[str, Any]:
        return tree.clone({**self.collector.state_dict(), "generator": self.collector.generator.get_state()})

    def load(self, state: dict[str, Any]) -> None:
        self.collector.generator.set_state(state["generator"])
        self.collector.load_state_dict(state)

    def _read_weights(self) -> None:
        for tensor, value in zip(self.agent.acting_tensors(), self._weights):
            tensor.copy_(value)

    def _write(self, into: Tensor, value: Tensor) -> None:
        into[:, self.numbers] = value
