"""Learners other than the first as actors on a Ray cluster (extra `ray`); see `whorl.distributed.learners`.

Where the first learner is on a GPU each takes one. Gradients travel through host memory.
"""

import os
from collections import deque
from dataclasses import replace
from typing import Any

import cloudpickle
import torch

from whorl.core.errors import ConfigError
from whorl.distributed.fleet_ray import connect
from whorl.distributed.group import Backend, Lost
from whorl.distributed.learners import ANSWER, Order, Post, Replica

NOTICE = 10.0
"""seconds after which a node's death is known"""


class RayReplicas:
    """A process that is connected to Ray already goes on with that, and stays connected.

    Args:
        address: as the setting `ray` says.
    """

    def __init__(self, address: str) -> None:
        if address.startswith("ray://"):
            raise ConfigError(
                f"ray is {address!r}, but replicas must reach this process; run it on a node of the cluster, with auto"
            )
        self._ray, self._connected, _ = connect(address, 1)
        self.host: str = self._ray.util.get_node_ip_address()
        self.actors: list[Any] = []
        self._asked: list[deque[Any]] = []
        """what each has to answer yet, oldest first"""

    def backend(self, first: torch.device, size: int) -> Backend:
        return "gloo"

    def start(self, posts: list[Post]) -> None:
        gpus = 1 if posts[0].place.device.startswith("cuda") else 0
        there = self._ray.cluster_resources().get("GPU", 0)
        if gpus * len(posts) > there:
            raise ConfigError(
                f"{len(posts)} more learners take a GPU each, but the cluster has {there:g}; use fewer learners, or "
                "device cpu"
            )
        # No CPU is held: those of a small cluster may all be the actors'.
        kind = self._ray.remote(num_cpus=0, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD")(
            RayReplica
        )
        self.actors = [kind.remote(cloudpickle.dumps(post)) for post in posts]
        self._asked = [deque([actor.pid.remote()]) for actor in self.actors]

    def post(self, method: str, *arguments: Any) -> None:
        for actor, asked in zip(self.actors, self._asked):
            asked.append(getattr(actor, method).remote(*arguments))

    def take(self) -> None:
        for number, asked in enumerate(self._asked, 1):
            said = self._said(number, asked.popleft())
            if said:
                raise Lost(said)

    def why(self) -> str:
        waiting = {answer: number for number, asked in enumerate(self._asked, 1) for answer in asked}
        if not waiting:
            return ""
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=NOTICE)
        found = filter(None, (self._said(waiting[answer], answer) for answer in ready))
        return min(found, key=lambda said: Lost.__name__ in said, default="")

    def _said(self, number: int, answer: Any) -> str:
        """What went wrong with an answer; empty where nothing did."""
        try:
            self._ray.get(answer, timeout=ANSWER)
        except self._ray.exceptions.RayError as error:
            return f"learner {number}: {str(error).strip()}"
        return ""

    def stop(self) -> None:
        for actor in self.actors:
            # Ray would connect to some cluster by itself if it was shut down before.
            if self._ray.is_initialized():
                self._ray.kill(actor)
        self.actors, self._asked = [], []

    def close(self) -> None:
        self.stop()
        if self._connected:
            self._connected = False
            self._ray.shutdown()


class RayReplica:
    """Runs in the cluster."""

    def __init__(self, packed: bytes) -> None:
        import ray

        post: Post = cloudpickle.loads(packed)
        device = "cuda" if ray.get_gpu_ids() else "cpu"
        place = replace(post.place, host=ray.util.get_node_ip_address(), device=device)
        self._replica = Replica(replace(post, place=place))

    def pid(self) -> int:
        """Its process; the first answer says that it was made."""
        return os.getpid()

    def join(self) -> None:
        self._replica.join()

    def round(self, order: Order) -> None:
        self._replica.round(order)
