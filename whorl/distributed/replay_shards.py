"""Replay in several processes: each shard holds the rows of some environments, and samples while the learner learns.

Batches come from the shards in turn, so a priority is relative to those of its shard. A shard is asked for up to two
batches before the TD errors of the first come back; nothing is under way between two iterations, so checkpoints are
exact. A shard that dies is replaced by an empty one: its rows are lost, and the others serve until it has some again.

Rows come from actors directly where possible (see `fleet_collector.py`), else from the learner. With several learners
each reads its part of a batch from the shard.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.discounting import Discounting, with_streams
from whorl.data.experience import Experience
from whorl.data.memory_check import require_memory
from whorl.data.replay import weighted
from whorl.data.replay_setup import allocated_bytes, view_of
from whorl.data.ring import Ring, history_of
from whorl.data.samplers import sample_error
from whorl.data.transfer import Transfer
from whorl.distributed.actor import Trajectory
from whorl.distributed.fleet_collector import FleetCollector, StoredRollout
from whorl.distributed.remote import Notify, RemoteDied, RestartPolicy, make_backend, warn
from whorl.distributed.shard import AHEAD, Shard, ShardLink
from whorl.distributed.tensors import env_slice, layout_of
from whorl.settings.run import RunConfig
from whorl.state.streams import Streams


@dataclass
class ShardBatch(Batch):
    """A batch that other learners can read from the shard, too."""

    shard: int = 0
    token: Any = None


class ShardedReplay(Experience):
    """The experience of a learner whose replay buffer is in `cfg.shards` shards.

    Args:
        rows: a rollout of all environments, for its shapes.
        seed: of a shard's sampling, by its number and by how often it was replaced.
        device: where batches are wanted.
        policy: decides whether a shard that failed is replaced.
        ray: address of a Ray cluster; empty: processes of this machine.
        actors: the collector whose actors write to the shards directly.
        learners: how many share a batch.
    """

    overlaps = True

    def __init__(
        self,
        agent: Agent,
        rows: Batch,
        seed: Callable[[int, int], int],
        device: torch.device,
        policy: RestartPolicy,
        ray: str = "",
        actors: FleetCollector | None = None,
        learners: int = 1,
    ) -> None:
        cfg: ReplayConfig = agent.cfg
        self.cfg, self.seed, self._learners = cfg, seed, learners
        self.num_envs = agent.spec.num_envs // cfg.shards
        spec = agent.spec.with_num_envs(self.num_envs)
        part = replace(
            cfg,
            buffer_size=cfg.buffer_size // cfg.shards,
            priority_beta_steps=cfg.priority_beta_steps // cfg.shards,  # -1, the whole run, stays -1
            replay_device="cpu",
            shards=0,
        )
        setup = (part, spec, tree.to(agent.stored(), "cpu"), agent.replay_options())
        if not ray:  # each shard checks only its own part, and all are on this machine
            cpu = torch.device("cpu")
            size = allocated_bytes(cfg, agent.spec, cpu, agent.stored(), agent.columns())
            require_memory(size, cpu, cfg.buffer_size)
        template = _example_batch(*setup)
        self._template = ShardBatch(**{each.name: getattr(template, each.name) for each in fields(Batch)})
        self._policy, self._backend = policy, make_backend(ray)
        self._sources = [] if actors is None else actors.fleet.slots
        self._actor_envs = 0 if actors is None else actors.num_envs
        if actors is not None:
            actors.shards = self
        self._setup = setup
        row_layout = layout_of(env_slice(rows.tensors(), slice(0, self.num_envs)))
        batch_layout = layout_of(template.tensors())
        self._rows = [self._backend.slots(row_layout, AHEAD) for _ in range(cfg.shards)]
        self.batches = [self._backend.slots(batch_layout, AHEAD, learners > 1) for _ in range(cfg.shards)]
        """slots of each shard's batches"""
        self._ratio, view = Fraction(str(cfg.updates_per_step)), view_of(cfg, agent.successors)
        # As without shards: at least one sample of some environment is complete by then.
        self._learn_after = max(cfg.learning_starts, agent.spec.num_envs * (view.span + view.stride - 1))
        self.steps = self.drawn = self._turn = 0
        self.lives = [0] * cfg.shards
        """how often each shard was replaced"""
        self._cut = torch.zeros(agent.spec.num_envs, dtype=torch.bool)
        self._transfer = Transfer(device) if device.type == "cuda" else None
        self._from: tuple[ShardLink, Tensor] | None = None
        """with priorities: the shard of the newest batch, and the rows at which its samples start"""
        self._late: tuple[ShardLink, Tensor, Tensor] | None = None
        self._stored: tuple[Path, bool] | None = None
        self.links = [self._open(number) for number in range(cfg.shards)]

    def anneal(self, progress: float) -> None:
        if self.cfg.prioritized and self.cfg.priority_beta_steps < 0:
            for number in range(len(self.links)):
                self._try(number, lambda link: link.anneal(progress))

    def cut(self, where: Tensor | None = None) -> None:
        """The next rollout does not continue the newest row, in the environments `where` [B], by default in all."""
        self._cut.logical_or_(torch.ones_like(self._cut) if where is None else where)

    def add(self, rollout: Batch | StoredRollout) -> None:
        """Add a rollout, whose rows the shards may have already."""
        self._flush()  # here, so that saving, which does so too, changes no order
        for number, link in enumerate(self.links):
            envs, rows = self._envs(number), None
            if isinstance(rollout, Batch):
                rows = env_slice(rollout.tensors(), envs)
            elif link.staged != self._places(number):
                continue  # it was replaced, and the rows that it had are lost
            self._try(number, lambda link: link.add(rows, self._cut[envs]))  # noqa: B023 - called at once
        self._cut.zero_()
        self.steps += int(rollout.mask.sum()) if isinstance(rollout, Batch) else rollout.steps

    def stage(self, place: int, trajectory: Trajectory, lost: int) -> None:
        """Let the shards of a place's environments copy an actor's trajectory."""
        first = place * self._actor_envs
        for number in range(len(self.links)):
            if place not in self._places(number):
                continue
            envs = self._envs(number)
            start, stop = max(first, envs.start), min(first + self._actor_envs, envs.stop)
            columns = slice(start - first, stop - first), slice(start - envs.start, stop - envs.start)
            sent = (place, trajectory.actor, trajectory.token, columns, lost)
            self._try(number, lambda link: link.stage(*sent))  # noqa: B023 - called at once

    def staged(self) -> set[int]:
        """Wait until all trajectories are copied; returns the places whose trajectories were lost."""
        found = [self._try(number, lambda link: link.confirm() or set()) for number in range(len(self.links))]
        return set().union(*(lost for lost in found if isinstance(lost, set)))

    def due(self) -> Iterator[tuple[str, Batch]]:
        total = int(self._ratio * max(0, self.steps - self._learn_after))
        asked: deque[ShardLink] = deque()
        while self.drawn < total:
            while len(asked) < total - self.drawn and (number := self._next()) is not None:
                if self._try(number, lambda link: link.ask()):
                    asked.append(self.links[number])
            # What a dead one was asked for never comes.
            asked = deque(link for link in asked if link in self.links)
            if not asked:
                self._wait()
                if not any(link.free for link in self.links):
                    return  # no shard has enough rows yet
                continue
            link = asked.popleft()
            number = self.links.index(link)
            taken = self._try(number, lambda link: link.take())
            if not taken:
                continue
            self._policy.succeeded(link.remote.name)
            token, tensors = taken
            if self.cfg.prioritized:
                self._from = link, tensors["extras"]["index"].clone()
            self.drawn += 1
            batch = self._template.replace(**tensors)
            if self._transfer is not None:
                batch = self._transfer.send(batch)
            yield "update", batch if self._learners == 1 else batch.replace(shard=number, token=token)

    @torch.no_grad()
    def settle(self, batch: Batch, updated: Any) -> None:
        if self._from is None:
            return
        if updated.priority is None:
            raise ValueError("prioritized replay needs Updated.priority, errors [B] or [T, B]")
        error = sample_error(updated.priority.detach(), batch.mask, self.cfg.priority_eta)
        if self._transfer is None:
            self._settle(*self._from, error)
            return
        self._flush()  # the TD errors of the update before this one, which is over by now
        self._late = *self._from, self._transfer.fetch({"error": error})["error"]

    def metrics(self) -> dict[str, float]:
        return {
            "shards/ready": float(sum(link.ready for link in self.links)),
            "shards/replaced": float(sum(self.lives)),
        }

    # Files and state

    def open_store(self, folder: Path, ahead: bool) -> "ShardedReplay":
        """Let every shard keep its rows in a folder of its own; returns the store, which is this object."""
        folder.mkdir(exist_ok=True)
        self._stored = folder, ahead
        for number in range(len(self.links)):
            self._open_store(number, self.links[number])
        return self

    def names(self) -> list[str]:
        return [name for link in self.links for name in link.call("names")]

    def sweep(self, needed: Collection[str]) -> None:
        for link in self.links:
            with suppress(RemoteDied):  # a dead shard has nothing to sweep
                link.call("sweep", needed)

    def close(self) -> None:
        self._backend.close()

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        shards = []
        for number in range(len(self.links)):
            found = self._try(number, lambda link: link.call("state"))
            shards.append(found or self.links[number].call("state"))
        return {
            "steps": self.steps,
            "drawn": self.drawn,
            "turn": self._turn,
            "lives": self.lives,
            "ready": [link.ready for link in self.links],
            "cut": self._cut,
            "shards": shards,
        }

    def take_rows(self, state: dict[str, Any]) -> None:
        raise ConfigError("shards can't take the rows of another run; leave shards out to continue with them")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.drawn, self._turn = (int(state[name]) for name in ("steps", "drawn", "turn"))
        self.lives = [int(life) for life in state["lives"]]
        self._cut.copy_(state["cut"])
        for link, saved, ready in zip(self.links, state["shards"], state["ready"], strict=True):
            link.call("load", saved)
            link.ready = bool(ready)

    # Shards

    def _open(self, number: int) -> ShardLink:
        seed = self.seed(number, self.lives[number])
        slots = self._rows[number], self.batches[number], self._sources
        remote = self._backend.start(f"replay shard {number}", Shard, *self._setup, seed, *slots)
        return ShardLink(remote, self._rows[number], self.batches[number])

    def _open_store(self, number: int, link: ShardLink) -> None:
        if self._stored is not None:
            folder, ahead = self._stored
            link.call("open_store", str(folder / f"shard-{number}"), ahead)

    def _envs(self, number: int) -> slice:
        """The environments of a shard."""
        return slice(number * self.num_envs, (number + 1) * self.num_envs)

    def _places(self, number: int) -> set[int]:
        """The actors' shares of the environments that a shard has a part of."""
        envs = self._envs(number)
        return set(range(envs.start // self._actor_envs, (envs.stop - 1) // self._actor_envs + 1))

    def _try(self, number: int, step: Callable[[ShardLink], Any]) -> Any:
        """The result of `step`, True if it has none; None if the shard died, which is replaced then."""
        link = self.links[number]
        try:
            found = step(link)
            return True if found is None else found
        except RemoteDied as error:
            link.remote.close()
            self._policy.failed(link.remote.name, error)
            self.lives[number] += 1
            self.links[number] = self._open(number)
            self._open_store(number, self.links[number])
            return None

    def _next(self) -> int | None:
        """The shard to sample from next: in turn, among those that have rows and a free slot."""
        count = len(self.links)
        for number in (*range(self._turn, count), *range(self._turn)):
            if self.links[number].free:
                self._turn = (number + 1) % count
                return number
        return None

    def _wait(self) -> None:
        """Until the shards have added what was sent."""
        for number in range(len(self.links)):
            self._try(number, lambda link: link.wait())

    def _settle(self, link: ShardLink, index: Tensor, error: Tensor) -> None:
        if link in self.links:
            self._try(self.links.index(link), lambda link: link.settle(index, error))

    def _flush(self) -> None:
        if self._late is not None and self._transfer is not None:
            self._transfer.wait()
            late, self._late = self._late, None
            self._settle(*late)


def make_shards(
    agent: Agent,
    collector: Any,
    run: RunConfig,
    streams: Streams,
    device: torch.device,
    notify: Notify = warn,
) -> ShardedReplay:
    """The shards of an agent's replay buffer, fed by `collector`; `notify` shows messages about replaced ones."""
    check_shards(agent.cfg, run.num_envs, run.actors)

    def seed(shard: int, life: int) -> int:
        return streams.seed("replay", f"shard {shard} life {life}")

    fleet = isinstance(collector, FleetCollector)
    rows = with_streams(collector.rollout(), agent.spec.streams, {})
    actors = collector if fleet and collector.fleet.direct else None
    policy = RestartPolicy(run.actor_restarts, run.restarts_per_hour, notify)
    return ShardedReplay(agent, rows, seed, device, policy, run.ray, actors, run.learners)


def check_shards(cfg: ReplayConfig, num_envs: int, actors: int) -> None:
    """Raise if shards and the other settings do not fit."""
    if num_envs % cfg.shards:
        raise ConfigError(
            f"{cfg.shards} shards can't share {num_envs} environments evenly; use a number that divides {num_envs}"
        )
    if cfg.replay_device == "cuda":
        raise ConfigError("replay_device is 'cuda', but shards are in host memory; leave it or shards out")
    for setting, given in (
        ("refresh_memory", cfg.refresh_memory),
        ("refresh_probabilities", cfg.refreshes_log_prob),
    ):
        if given:
            raise ConfigError(f"{setting} needs a replay buffer without shards; leave one of them out")
    if cfg.prioritized and cfg.priority_on_add and not actors:
        raise ConfigError(
            "priority_on_add with shards needs actors, which compute the priorities; set actors, or leave one out"
        )


def _example_batch(cfg: ReplayConfig, spec: Spec, memory: Tree, options: dict[str, Any]) -> Batch:
    """A batch with the shapes of those that a shard samples."""
    view = view_of(cfg, options["successors"])
    slots = -(-(view.span + history_of(spec) + 2) // view.stride) * view.stride
    ring = Ring(spec, slots * spec.num_envs, extras=options["extras"], memory=memory, stride=view.stride)
    start = torch.zeros(cfg.batch_size, dtype=torch.int64)
    drawn = {"index": start, "weight": torch.ones(cfg.batch_size)} if cfg.prioritized else {}
    discounting = Discounting(options["gamma"], spec.streams, options["separate_streams"])
    return weighted(view.gather(ring, start, discounting), drawn)
