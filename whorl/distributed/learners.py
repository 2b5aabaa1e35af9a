"""Several learners of one batch: this process, the first, and replicas of its agent elsewhere.

For every update the batch is split along its environments. Each learner runs the same `update` on its part, gradients are
averaged before every optimizer step, and all step alike, so their weights stay equal to the last bit. A replica has
nothing that the first learner has not: one that dies is replaced, and the update is made again from where it began.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent, Updated
from whorl.core import collectives, tree
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.gradients import GradientQueue
from whorl.data.rollouts import Rollouts
from whorl.distributed.actor import envs_per_batch
from whorl.distributed.group import Backend, Group, Lost, Meeting, Place
from whorl.distributed.process import PATIENCE
from whorl.distributed.remote import RemoteObject, readable
from whorl.nets.renorm import BatchRenorm
from whorl.run.learner import keep_freed_memory
from whorl.settings.run import RunConfig
from whorl.state.streams import Streams

ANSWER = 300.0
"""seconds that a replica has to start, or to answer after a round; those that die are noticed at once"""


def check_learners(agent: Agent, run: RunConfig, experience: Any) -> None:
    """Raise where batches can't be shared by several learners."""
    name, batch_norms = type(agent).__name__, (BatchRenorm, nn.modules.batchnorm._BatchNorm)
    if isinstance(experience, GradientQueue):
        raise ConfigError(
            f"learners is {run.learners}, but with actor_gradients there are no rows to share; use one of them"
        )
    if run.compile:
        raise ConfigError(
            f"learners is {run.learners}, but compiled losses can't exchange counts; leave compile or learners out"
        )
    if any(isinstance(module, batch_norms) for module in agent.modules()):
        raise ConfigError(
            f"learners is {run.learners}, but {name} normalises by the statistics of a whole batch, and each learner "
            "would see a part; leave learners out, or use layers without them (sac in place of crossq)"
        )
    rollouts = isinstance(experience, Rollouts)
    if rollouts:
        shared = envs_per_batch(run)
        _check_even(run.learners, "num_envs" if shared == run.num_envs else "environments of a batch", shared)
    if hasattr(agent.cfg, "batch_size"):
        _check_even(run.learners, "batch_size", agent.cfg.batch_size, agent.stride if rollouts else 1)


def _check_even(learners: int, setting: str, given: int, chunk: int = 1) -> None:
    least = learners * chunk
    if given % least:
        rows = f" in whole chunks of {chunk} rows" if chunk > 1 else ""
        lower = [str(given // least * least)] if given > least else []
        nearest = " or ".join([*lower, str((given // least + 1) * least)])
        raise ConfigError(
            f"{learners} learners can't share {setting} {given} evenly{rows}; use {nearest}, or other learners"
        )


@dataclass(frozen=True)
class Post:
    """What a replica is made of."""

    agent: Agent
    """weights do not matter: the first learner's come with the first order"""
    run: RunConfig
    place: Place


@dataclass(frozen=True)
class Order:
    """One round of learning, as replicas are told of it; tensors come apart."""

    phase: str
    updates: int
    burn_in: int
    changed: list[int]
    """which tensors of the state are sent, since the first learner's have changed outside of a round"""
    batch: Tree
    """shape and dtype of each tensor of a part"""

    def like(self) -> Tree:
        """Tensors of these shapes, without memory."""
        return tree.map(lambda leaf: torch.empty(leaf[0], dtype=leaf[1], device="meta"), self.batch)


class Replicas(Protocol):
    """The other learners, wherever they run. Each call is made on all of them; a failure raises `Lost`."""

    host: str
    """the address under which they reach this process"""

    def start(self, posts: list[Post]) -> None:
        """Start them; nobody waits until they have."""

    def backend(self, first: torch.device, size: int) -> Backend:
        """How tensors travel, where the first learner is on this device."""

    def post(self, method: str, *arguments: Any) -> None:
        """Ask for a call of a `Replica`'s method."""

    def take(self) -> None:
        """Wait for the oldest answer; the first says that the replicas were made."""

    def why(self) -> str:
        """What one of them said last, or how it ended, where that is known."""

    def stop(self) -> None:
        """End them; others can be started."""

    def close(self) -> None:
        """End them for good; safe to call twice."""


class ProcessReplicas:
    """Replicas in processes of this machine."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.servants: list[RemoteObject] = []

    def backend(self, first: torch.device, size: int) -> Backend:
        return "nccl" if first.type == "cuda" and size <= torch.cuda.device_count() else "gloo"

    def start(self, posts: list[Post]) -> None:
        self.servants = []
        try:
            for post in posts:
                self.servants.append(RemoteObject(f"learner {post.place.rank}", Replica, (post,)))
        except EnvError as error:
            raise Lost(str(error)) from None

    def post(self, method: str, *arguments: Any) -> None:
        self._each(lambda remote_object: remote_object.post(method, *arguments))

    def take(self) -> None:
        self._each(_answer)

    def _each(self, what: Callable[[RemoteObject], Any]) -> None:
        try:
            for remote_object in self.servants:
                what(remote_object)
        except EnvError as error:
            raise Lost(str(error)) from None

    def why(self) -> str:
        found = []
        for remote_object in readable(self.servants, PATIENCE):
            try:
                remote_object.take()
            except EnvError as error:
                found.append(str(error))
        # Where one dies the others only lose it.
        return min(found, key=lambda said: Lost.__name__ in said, default="")

    def stop(self) -> None:
        for remote_object in self.servants:
            remote_object.close()

    close = stop


def _answer(remote_object: RemoteObject) -> None:
    if not readable([remote_object], ANSWER):
        raise Lost(f"{remote_object.name} has not answered for {ANSWER:.0f} seconds")
    remote_object.take()


class Learners:
    """This process and `run.learners` - 1 replicas of its agent as one learner.

    Args:
        copy: an agent like `agent`, not prepared yet, of which replicas are made.
    """

    def __init__(self, agent: Agent, copy: Agent, run: RunConfig, replicas: Replicas) -> None:
        self.agent, self.run, self.replicas = agent, run, replicas
        self._copy = copy
        self.replaced = 0
        """how often replicas were"""
        self._failures = 0
        self._state = agent.state_tensors()
        self._before = [tensor.detach().clone() for tensor in self._state]
        self._streams: dict[str, Tensor] = {}
        self._meeting: Meeting | None = None
        self._group: Group | None = None
        self._start()

    def update(self, phase: str, batch: Batch) -> Updated:
        """What the agent's method `phase` makes of a batch, by all learners."""
        self._remember()
        while True:
            try:
                updated = self._round(phase, batch)
            except Lost as error:
                self._replace(error)
            else:
                self._failures = 0
                return updated

    def metrics(self) -> dict[str, float]:
        """What became of the others."""
        return {"learners/replaced": float(self.replaced)}

    def close(self) -> None:
        """End the replicas; safe to call twice."""
        self._leave()
        self.replicas.close()

    def _leave(self) -> None:
        """A replica that waits for this process in the middle of a round hears of it."""
        if self._group is not None:
            self._group.close()
        self._meeting = self._group = None
        self.agent.exchange = None

    def _start(self) -> None:
        size, own = self.run.learners, self.agent.device
        host, backend = self.replicas.host, self.replicas.backend(own, size)
        meeting = self._meeting = Meeting(host, size)
        self._places = [
            Place(rank, size, _device_of(rank, own), meeting.address, host, backend) for rank in range(size)
        ]
        self._sent = [-1] * len(self._state)
        self.replicas.start([Post(self._copy, self.run, place) for place in self._places[1:]])

    def _met(self) -> Group:
        """All learners; replicas take seconds to start, and nobody waits for them before they are needed."""
        if self._meeting is None:
            self._start()
        if self._group is None:
            self.replicas.take()
            self.replicas.post("join")
            self._group = Group(self._places[0], self._meeting)
            self.replicas.take()
            self.agent.exchange = self._group.average_
        return self._group

    def _round(self, phase: str, batch: Batch) -> Updated:
        group = self._met()
        # Versions count writes: what was written since the last round, others do not know.
        changed = [n for n, tensor in enumerate(self._state) if tensor._version != self._sent[n]]
        fresh = [self._state[n] for n in changed]
        _check_even(group.size, "num_envs", batch.shape[1])
        parts = split(batch.tensors(), group.size)
        shapes = tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype), parts[0])
        self.replicas.post("round", Order(phase, self.agent.updates, batch.burn_in, changed, shapes))
        everything = [[*fresh, *tree.leaves(part)] for part in parts]
        own = group.scatter(everything[0], everything)[len(fresh) :]
        part = batch.replace(**filled(parts[0], own), static=False).to(self.agent.device)
        updated, found = learned(self.agent, group, phase, part)
        results = [filled(found, values) for values in group.gather(tree.leaves(found))]
        self.replicas.take()
        self._sent = [tensor._version for tensor in self._state]
        return joined(updated, results, self.agent.device)

    @torch.no_grad()
    def _remember(self) -> None:
        torch._foreach_copy_(self._before, self._state)
        self._streams = {name: stream.get_state() for name, stream in self.agent.generators.items()}

    @torch.no_grad()
    def _replace(self, error: Lost) -> None:
        """New replicas, and everything as it was before the round that failed."""
        self._leave()
        reason = self.replicas.why() or str(error)
        self.replicas.stop()
        torch._foreach_copy_(self._state, self._before)
        for name, stream in self.agent.generators.items():
            stream.set_state(self._streams[name])
        self._failures += 1
        if self._failures > self.run.actor_restarts:
            raise WhorlError(
                f"learners failed {self._failures} times in a row, the last time thus: {reason}"
            ) from error
        self.replaced += 1


class Replica:
    """A learner other than the first."""

    def __init__(self, post: Post) -> None:
        torch.set_num_threads(post.run.threads)
        torch.backends.cuda.matmul.allow_tf32 = post.run.tf32
        keep_freed_memory()
        self.place, self._device = post.place, torch.device(post.place.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._random = Streams(post.run.seed)
        self.agent = post.agent.prepare(self._device, lambda name: torch.Generator(self._device))
        self._state = self.agent.state_tensors()

    def join(self) -> None:
        """Find the other learners."""
        self._group = Group(self.place)
        self.agent.exchange = self._group.average_

    def round(self, order: Order) -> None:
        """Learn from a part of a batch."""
        like, fresh = order.like(), [self._state[n] for n in order.changed]
        found = self._group.scatter([*fresh, *tree.leaves(like)])
        with torch.no_grad():
            for tensor, value in zip(fresh, found):
                tensor.copy_(value)
        part = Batch(**filled(like, found[len(fresh) :]), burn_in=order.burn_in)
        self.agent.updates = order.updates
        self._seed(order)
        _, results = learned(self.agent, self._group, order.phase, part.to(self._device))
        self._group.gather(tree.leaves(results))

    def _seed(self, order: Order) -> None:
        """What is drawn depends on the round alone: a round made again, or a resumed run, draws the same."""
        for name, stream in self.agent.generators.items():
            part = f"{name} of learner {self.place.rank}, {order.phase} {order.updates}"
            stream.manual_seed(self._random.seed("learner", part))

    def close(self) -> None:
        """Nothing is open but what ends with the process."""


def split(tensors: dict[str, Tree], parts: int) -> list[dict[str, Tree]]:
    """A batch's tensors, cut evenly along the axis of environments."""
    found: list[dict[str, Tree]] = [{} for _ in range(parts)]
    for name, value in tensors.items():
        cut = tree.map(lambda leaf: leaf.chunk(parts, 0 if name == "memory" else _envs(leaf)), value)  # noqa: B023
        for number, part in enumerate(found):
            part[name] = tree.map(lambda pieces: pieces[number], cut)  # noqa: B023
    return found


def filled(like: Tree, values: list[Tensor]) -> Tree:
    """The tree `like` this one with these leaves."""
    left = iter(values)
    return tree.map(lambda _: next(left), like)


def learned(agent: Agent, group: Group, phase: str, part: Batch) -> tuple[Updated, dict[str, Tree]]:
    """A learner's own part of a round; and of what came of it the tensors that the first one needs."""
    with collectives.shared(group):
        updated = agent.learn(phase, part)
    found: dict[str, Tree] = {"kept": updated.kept}
    if updated.metrics:
        found["metrics"] = torch.stack([value.detach().float() for value in updated.metrics.values()])
    if updated.priority is not None:
        found["priority"] = updated.priority.detach()
    return updated, found


def joined(updated: Updated, parts: list[dict[str, Tree]], device: torch.device) -> Updated:
    """Metrics are means over learners, the rest lies side by side as in the batch."""

    def along_envs(*pieces: Tensor) -> Tensor:
        return torch.cat(pieces, _envs(pieces[0])).to(device)

    metrics: dict[str, Tensor] = {}
    if updated.metrics:
        means = torch.stack([part["metrics"] for part in parts]).mean(0).to(device)
        metrics = dict(zip(updated.metrics, means.unbind()))
    kept = tree.map(along_envs, *(part["kept"] for part in parts))
    priority = None if updated.priority is None else along_envs(*(part["priority"] for part in parts))
    return Updated(metrics, priority, kept)


def _envs(leaf: Tensor) -> int:
    """The axis of environments: [B] or [T, B, ...]."""
    return min(leaf.dim() - 1, 1)


def _device_of(rank: int, first: torch.device) -> str:
    """GPUs in turn, from the first learner's on."""
    if first.type != "cuda":
        return str(first)
    return f"cuda:{((first.index or 0) + rank) % torch.cuda.device_count()}"
