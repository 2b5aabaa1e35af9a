"""Several learners of one batch: this process, the first, and replicas of its agent in other processes or on Ray.

For every update the batch is split along its environments. Each learner runs the same `update` on its part, gradients
are averaged before every optimizer step, and all step alike, so their weights stay equal to the last bit. A replica has
no state that the first learner does not have: after a failure replicas are replaced and the update is repeated. With
replay shards each learner reads its part from the shard, else the first learner sends the parts.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent, Updated
from whorl.core import collectives, tree
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.process import configure_process
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.gradients import GradientQueue
from whorl.data.rollouts import Rollouts
from whorl.distributed.actor import envs_per_batch
from whorl.distributed.group import Group, GroupMember, LearnerLost, Rendezvous, Transport
from whorl.distributed.remote import Notify, Remote, RemoteError, RestartPolicy, Slots, make_backend, warn
from whorl.distributed.replay_shards import ShardBatch
from whorl.distributed.tensors import Layout, empty, env_slice, layout_of
from whorl.nets.bounded import BatchNorm
from whorl.nets.renorm import BatchRenorm
from whorl.settings.run import RunConfig
from whorl.state.streams import Streams

ANSWER_TIMEOUT = 300.0
"""seconds that a replica has to start, or to answer after a round; those that die are noticed at once"""
REASON_TIMEOUT = 10.0
"""seconds to find out which replica failed; Ray notices the death of a node after some time"""


def check_learners(agent: Agent, run: RunConfig, experience: Any) -> None:
    """Raise if several learners can't share the batches."""
    if run.ray.startswith("ray://"):
        raise ConfigError(
            f"ray is {run.ray!r}, but learner replicas must reach this process; run it on a node of the cluster and "
            "set ray to auto"
        )
    name, batch_norms = type(agent).__name__, (BatchRenorm, BatchNorm, nn.modules.batchnorm._BatchNorm)
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
            "would see only a part; leave learners out, or use an agent without batch normalisation "
            "(sac, not crossq or flash_sac)"
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
class Round:
    """One round of learning, as it is sent to the replicas; tensors are sent separately."""

    phase: str
    updates: int
    burn_in: int
    changed: list[int]
    """tensors of the state that are sent, because the first learner's were written outside of a round"""
    part: Layout
    """shapes of a part of the batch, if the first learner sends it"""
    source: tuple[int, Any] | None
    """else the shard to read the batch from, and its token"""


class Learners:
    """This process and `run.learners` - 1 replicas of its agent as one learner.

    Args:
        copy: an agent like `agent`, not prepared yet, of which replicas are made.
        batches: the slots of replay shards from which replicas read their parts.
        notify: shows messages about replicas that were replaced.
    """

    def __init__(
        self, agent: Agent, copy: Agent, run: RunConfig, batches: list[Slots], notify: Notify = warn
    ) -> None:
        self.agent, self.run = agent, run
        self._copy, self._batches = copy, batches
        self._backend = make_backend(run.ray)
        self._policy = RestartPolicy(run.actor_restarts, run.restarts_per_hour, notify)
        self.replicas: list[Remote] = []
        self.replaced = 0
        """how often replicas were replaced"""
        self._state = agent.state_tensors()
        self._before = [tensor.detach().clone() for tensor in self._state]
        self._streams: dict[str, Tensor] = {}
        self._rendezvous: Rendezvous | None = None
        self._group: Group | None = None
        self._start()

    def update(self, phase: str, batch: Batch) -> Updated:
        """The agent's method `phase` on a batch, by all learners."""
        self._remember()
        while True:
            try:
                updated = self._round(phase, batch)
            except (LearnerLost, RemoteError) as error:
                self._replace(error)
            else:
                self._policy.succeeded("a learner replica")
                return updated

    def metrics(self) -> dict[str, float]:
        return {"learners/replaced": float(self.replaced)}

    def close(self) -> None:
        """End the replicas; safe to call twice."""
        self._leave()
        self._backend.close()

    def _leave(self) -> None:
        """Leave the group: a replica that waits for this process gets an error."""
        if self._group is not None:
            self._group.close()
        self._rendezvous = self._group = None
        self.agent.exchange = None

    def _start(self) -> None:
        """Start the replicas, without waiting for them."""
        size = self.run.learners
        devices, transport = self._devices()
        self._rendezvous = Rendezvous(self._backend.host, size)
        self._members = [
            GroupMember(rank, size, device, self._rendezvous.address, transport)
            for rank, device in enumerate(devices)
        ]
        self._sent = [-1] * len(self._state)
        gpus = 1 if self._backend.gpus is not None and self.agent.device.type == "cuda" else 0
        # No CPU is reserved: those of a small cluster may all be the actors'.
        self.replicas = [
            self._backend.start(
                f"learner {member.rank}", Replica, self._copy, self.run, member, self._batches, gpus=gpus
            )
            for member in self._members[1:]
        ]

    def _devices(self) -> tuple[list[str], Transport]:
        """The device of each learner, and how tensors travel between them."""
        size, own, gpus = self.run.learners, self.agent.device, self._backend.gpus
        if own.type != "cuda":
            return [str(own)] * size, "gloo"
        if gpus is not None:
            if size - 1 > gpus:
                raise ConfigError(
                    f"{size - 1} more learners take a GPU each, but the cluster has {gpus:g}; use fewer learners, or "
                    "device cpu"
                )
            return [str(own), *["cuda"] * (size - 1)], "gloo"
        here = torch.cuda.device_count()
        devices = [f"cuda:{((own.index or 0) + rank) % here}" for rank in range(size)]
        return devices, "nccl" if size <= here else "gloo"

    def _joined(self) -> Group:
        """All learners; replicas take seconds to start, and are waited for only when they are needed."""
        if self._rendezvous is None:
            self._start()
        if self._group is None:
            self._take()
            self._post("join")
            self._group = Group(self._members[0], self._rendezvous)
            self._take()
            self.agent.exchange = self._group.average_
        return self._group

    def _post(self, method: str, *arguments: Any) -> None:
        for replica in self.replicas:
            replica.post(method, *arguments)

    def _take(self) -> None:
        for replica in self.replicas:
            replica.take(ANSWER_TIMEOUT)

    def _round(self, phase: str, batch: Batch) -> Updated:
        group = self._joined()
        # Versions count writes: replicas do not know what was written since the last round.
        changed = [n for n, tensor in enumerate(self._state) if tensor._version != self._sent[n]]
        fresh = [self._state[n] for n in changed]
        _check_even(group.size, "num_envs", batch.shape[1])
        parts = split(batch.tensors(), group.size)
        source = (
            (batch.shard, batch.token) if isinstance(batch, ShardBatch) and batch.token is not None else None
        )
        layout = {} if source is not None else layout_of(parts[0])
        self._post("learn", Round(phase, self.agent.updates, batch.burn_in, changed, layout, source))
        own = parts[0]
        if source is None:
            sent = [[*fresh, *tree.leaves(part)] for part in parts]
            own = filled(own, group.scatter(sent[0], sent)[len(fresh) :])
        elif fresh:
            group.scatter(fresh, [fresh] * group.size)
        part = batch.replace(**own, static=False).to(self.agent.device)
        updated, found = learned(self.agent, group, phase, part)
        results = [filled(found, values) for values in group.gather(tree.leaves(found))]
        self._take()
        self._sent = [tensor._version for tensor in self._state]
        return joined(updated, results, self.agent.device)

    @torch.no_grad()
    def _remember(self) -> None:
        """A failed round is repeated from the exact state before it, which may be half updated by then."""
        torch._foreach_copy_(self._before, self._state)
        self._streams = {name: stream.get_state() for name, stream in self.agent.generators.items()}

    @torch.no_grad()
    def _replace(self, error: WhorlError) -> None:
        """End the replicas, and restore the state before the round that failed."""
        self._leave()
        reason = self._reason(error)
        for replica in self.replicas:
            replica.close()
        torch._foreach_copy_(self._state, self._before)
        for name, stream in self.agent.generators.items():
            stream.set_state(self._streams[name])
        self._policy.failed("a learner replica", reason)
        self.replaced += 1

    def _reason(self, error: WhorlError) -> WhorlError:
        """Why a round failed: if one learner dies, the others only report that they lost it."""
        if isinstance(error, RemoteError):
            return error
        found = []
        for replica in self._backend.wait(self.replicas, REASON_TIMEOUT):
            try:
                replica.take()
            except RemoteError as failure:
                found.append(failure)
        return min(found, key=lambda failure: LearnerLost.__name__ in str(failure), default=error)


class Replica:
    """A learner other than the first, as a remote object."""

    def __init__(self, agent: Agent, run: RunConfig, member: GroupMember, batches: list[Slots]) -> None:
        configure_process(run.threads, run.tf32)
        self.member, self._device, self._batches = member, torch.device(member.device), batches
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._random = Streams(run.seed)
        self.agent = agent.prepare(self._device, lambda name: torch.Generator(self._device))
        self._state = self.agent.state_tensors()

    def join(self) -> None:
        """Join the other learners."""
        self._group = Group(self.member)
        self.agent.exchange = self._group.average_

    def learn(self, round: Round) -> None:
        """Learn from a part of a batch."""
        fresh, like = [self._state[n] for n in round.changed], empty(round.part, "meta")
        wanted = [*fresh, *tree.leaves(like)]
        found = self._group.scatter(wanted) if wanted else []
        with torch.no_grad():
            for tensor, value in zip(fresh, found):
                tensor.copy_(value)
        if round.source is None:
            tensors = filled(like, found[len(fresh) :])
        else:
            shard, token = round.source
            tensors = split(self._batches[shard].read(token), self.member.size)[self.member.rank]
        part = Batch(**tensors, burn_in=round.burn_in)
        self.agent.updates = round.updates
        self._seed(round)
        _, results = learned(self.agent, self._group, round.phase, part.to(self._device))
        self._group.gather(tree.leaves(results))

    def _seed(self, round: Round) -> None:
        """Seed the generators by the round alone, so that a repeated round or a resumed run draws the same numbers."""
        for name, stream in self.agent.generators.items():
            part = f"{name} of learner {self.member.rank}, {round.phase} {round.updates}"
            stream.manual_seed(self._random.seed("learner", part))

    def close(self) -> None:
        """Everything that is open ends with the process."""


def split(tensors: dict[str, Tree], parts: int) -> list[dict[str, Tree]]:
    """A batch's tensors, split evenly along the axis of environments."""
    size = tensors["mask"].shape[1] // parts
    return [env_slice(tensors, slice(part * size, (part + 1) * size)) for part in range(parts)]


def filled(like: Tree, values: list[Tensor]) -> Tree:
    """A tree with the structure of `like` and these leaves."""
    left = iter(values)
    return tree.map(lambda _: next(left), like)


def learned(agent: Agent, group: Group, phase: str, part: Batch) -> tuple[Updated, dict[str, Tree]]:
    """Learn from one learner's part of a batch; returns also the tensors that the first learner needs of it."""
    with collectives.shared(group):
        updated = agent.learn(phase, part)
    found: dict[str, Tree] = {"kept": updated.kept}
    if updated.metrics:
        found["metrics"] = torch.stack([value.detach().float() for value in updated.metrics.values()])
    if updated.priority is not None:
        found["priority"] = updated.priority.detach()
    return updated, found


def joined(updated: Updated, parts: list[dict[str, Tree]], device: torch.device) -> Updated:
    """The results of all learners: metrics are averaged, values per environment are concatenated."""

    def along_envs(*pieces: Tensor) -> Tensor:
        return torch.cat(pieces, min(pieces[0].dim() - 1, 1)).to(device)

    metrics: dict[str, Tensor] = {}
    if updated.metrics:
        means = torch.stack([part["metrics"] for part in parts]).mean(0).to(device)
        metrics = dict(zip(updated.metrics, means.unbind()))
    kept = tree.map(along_envs, *(part["kept"] for part in parts))
    priority = None if updated.priority is None else along_envs(*(part["priority"] for part in parts))
    return Updated(metrics, priority, kept)
