"""Acting inside the worker processes: each holds a copy of the policy and collects its environments' part of a rollout alone.

This is CO-GYM's way (one policy version per rollout, statistics frozen in it) without its costs: weights travel
through shared memory once per rollout, rows come back the same way, and nobody waits for anybody within a rollout.
"""

from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.collect.collector import Collector, EpisodeStatistics, LocalCollector, Storage
from whorl.core import tree
from whorl.data.batch import Batch
from whorl.distributed.buffers import array_of, nested, padded, views
from whorl.distributed.pool import WorkerPool
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import Source
from whorl.state.streams import Streams

WEIGHTS = "weights"


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
    ) -> None:
        self.agent, self.steps = agent, steps
        layout = Storage.allocate(agent, num_envs, steps)
        shapes = {path: array_of(leaf) for path, leaf in tree.items(layout.tensors)}
        shapes[WEIGHTS] = ((sum(padded(tensor) for tensor in agent.acting_tensors()),), "uint8")
        self.env = WorkerPool(source.factory, num_envs, source.id, workers, arrays=shapes)
        self.storage = Storage(nested(layout.tensors, self.env.arrays))
        self.episode_statistics = EpisodeStatistics(num_envs, torch.device("cpu"), agent.spec.measures)
        self._weights = views(torch.from_numpy(self.env.arrays[WEIGHTS]), agent.acting_tensors())
        self.env.install("open", open_collector)
        self.env.install("collect", collect)
        self.env.install("reset", reset)
        self.env.install("state", state)
        self.env.install("load", load)
        packed = cloudpickle.dumps(agent)
        seeds = [streams.seed("act", f"worker {number}") for number in range(workers)]
        self._run("open", [(packed, steps, source.id, seed, hold) for seed in seeds])

    def reset(self, seed: int) -> None:
        """Start every environment anew; the next rollout begins there."""
        self._run("reset", [seed] * self.env.workers)

    def start(self, random: bool = False) -> None:
        """Send the weights out and let the workers roll, with `random` actions or the policy's."""
        for into, tensor in zip(self._weights, self.agent.acting_tensors()):
            into.copy_(tensor)
        self.env.start("collect", [random] * self.env.workers)

    def finish(self, cut: bool = False) -> Batch:
        """The rollout, as views of shared memory: learn from it before the next call."""
        self.env.collect("collect")
        batch = self.rollout()
        self.episode_statistics.add(batch, self.storage.soft, self.storage.measures)
        if cut:
            batch.keep[-1] = 0
            self.episode_statistics.forget()
        return batch

    def rollout(self) -> Batch:
        """The rows in the storage."""
        return self.storage.batch()

    def state_dict(self) -> dict[str, Any]:
        return {
            "workers": self._run("state", [None] * self.env.workers),
            "episode_statistics": self.episode_statistics.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._run("load", saved["workers"])
        self.episode_statistics.load_state_dict(saved["episode_statistics"])

    def close(self) -> None:
        self.env.close()

    def _run(self, name: str, arguments: list[Any]) -> list[Any]:
        self.env.start(name, arguments)
        return self.env.collect(name)


# What follows runs in the workers; `held` is the dict that stays with a worker between calls.


def open_collector(num_envs: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> None:
    """Build the policy copy and a collector over this worker's environments."""
    torch.set_num_threads(1)
    packed, steps, id, seed, hold = argument
    agent: Agent = cloudpickle.loads(packed)
    generator = torch.Generator().manual_seed(seed)
    env = GymnasiumVector.over(num_envs, id)
    held["weights"] = views(torch.from_numpy(arrays[WEIGHTS]), agent.acting_tensors())
    held["renew"] = partial(_renew, agent, held["weights"])
    renew = held["renew"] if hold else None
    held["collector"] = LocalCollector(env, agent, steps, generator, numbers=num_envs.numbers, renew=renew)
    held["shared"] = nested(held["collector"].storage.tensors, arrays)


@torch.inference_mode()
def collect(num_envs: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> None:
    """Take the newest weights, roll, and write this worker's columns of the rollout."""
    collector: LocalCollector = held["collector"]
    if collector.renew is None:
        held["renew"]()
    collector.roll(argument)
    tree.map(
        lambda into, value: _put(into, num_envs.numbers, value), held["shared"], collector.storage.tensors
    )


def _renew(agent: Agent, weights: list[Tensor]) -> None:
    for tensor, value in zip(agent.acting_tensors(), weights):
        tensor.copy_(value)


def reset(num_envs: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> None:
    held["collector"].reset(argument)


def state(
    num_envs: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any
) -> dict[str, Any]:
    collector: LocalCollector = held["collector"]
    return tree.clone({**collector.state_dict(), "generator": collector.generator.get_state()})


def load(num_envs: Any, arrays: dict[str, np.ndarray], held: dict[str, Any], argument: Any) -> None:
    collector: LocalCollector = held["collector"]
    collector.generator.set_state(argument["generator"])
    collector.load_state_dict(argument)


def _put(into: Tensor, num_envs: list[int], value: Tensor) -> None:
    into[:, num_envs] = value
