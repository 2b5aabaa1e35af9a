"""Replay in several processes: each shard holds the rows of its share of the environments, and draws while the learner learns.

Batches come from the shards in turn, so that a priority counts among those of its shard. A shard is asked for up to two
batches before the errors of the first are back; nothing is under way between two epochs, so checkpoints are exact. One
that dies is replaced by an empty one: its rows are lost, and the others serve until it has some again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.core import tree
from whorl.core.errors import CheckpointError, ConfigError, EnvError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.replay import Transfer, replay_of, view_of, weighted
from whorl.data.ring import Ring, history_of
from whorl.data.samplers import sample_error
from whorl.distributed.buffers import array, blocks_of, buffers_of, tensor_of
from whorl.distributed.remote import DiedError, RemoteObject
from whorl.distributed.shared_memory import Block, Segment
from whorl.state import files
from whorl.state.segments import Segments

AHEAD = 2
"""batches that a shard may be asked for, and rollouts it may be sent, before the first is done with"""
CUT = "cut"


class Shard:
    """Some environments' part of replay; runs in a remote object or wherever it was put."""

    def __init__(self, cfg: ReplayConfig, spec: Spec, memory: Tree, seed: int) -> None:
        torch.set_num_threads(1)
        self.generator = torch.Generator().manual_seed(seed)
        self.replay = replay_of(cfg, spec, torch.device("cpu"), self.generator, _nobody, memory)

    @torch.no_grad()
    def add(self, rows: dict[str, Tree]) -> bool:
        """Take in a rollout's rows; whether there is something to draw now."""
        given = dict(rows)
        self.replay.cut(given.pop(CUT))
        self.replay.add(Batch(**given))
        self.replay.require_start()
        ring = self.replay.ring
        return ring.rows > self.replay.view.span + ring.history + 1

    @torch.no_grad()
    def draw(self) -> dict[str, Tree]:
        return self.replay.sample().tensors()

    @torch.no_grad()
    def settle(self, index: np.ndarray, error: np.ndarray) -> None:
        """Errors of the samples that start at `index`."""
        found = tensor_of(error)
        self.replay.sampler.settle(tensor_of(index), torch.ones_like(found), found)

    def open_store(self, folder: str, ahead: bool) -> None:
        """Keep rows in files from now on."""
        try:
            Path(folder).parent.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"a replay shard can't write {folder}: {files.reason(error)}; where shards run on other machines the "
                "run folder must be on a disk that all of them share"
            ) from None
        self.replay.store = Segments(Path(folder), self.replay.ring, ahead=ahead)

    def names(self) -> list[str]:
        return self._store.names()

    def sweep(self, needed: Collection[str]) -> None:
        self._store.sweep(needed)

    def state(self) -> dict[str, Any]:
        return {**self.replay.state_dict(), "generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.replay.load_state_dict(state)

    def close(self) -> None:
        if self.replay.store is not None:
            self._store.close()

    @property
    def _store(self) -> Segments:
        assert isinstance(self.replay.store, Segments)
        return self.replay.store


class ProcessShard(Shard):
    """A shard whose rollouts and batches lie in shared memory."""

    def __init__(self, layout: dict[str, Tree], blocks: list[Block], handle: int | str, *told: Any) -> None:
        super().__init__(*told)
        self.shared = buffers_of(layout, Segment(blocks, handle), AHEAD)

    def add_from(self, buffer: int) -> bool:
        return self.add(self.shared[buffer]["rows"])

    def draw_into(self, buffer: int) -> None:
        tree.copy_(self.shared[buffer]["batch"], self.draw())


class Link:
    """The learner's side of a shard in a process of this machine."""

    def __init__(self, number: int, layout: dict[str, Tree], told: tuple[Any, ...]) -> None:
        blocks = blocks_of(layout, AHEAD)
        segment = Segment(blocks)
        try:
            self.remote_object = RemoteObject(
                f"replay shard {number}",
                ProcessShard,
                (layout, blocks, segment.handle, *told),
                [segment.handle],
            )
        finally:
            segment.release()
        self._shared = buffers_of(layout, segment, AHEAD)
        self._pending: deque[str] = deque(["make"])
        """answers that are to come"""
        self._added = self._drawn = self._taken = 0
        self.ready = False

    @property
    def free(self) -> bool:
        """Whether a batch may be asked for."""
        return self.ready and self._drawn - self._taken < AHEAD

    def add(self, rows: dict[str, Tree]) -> None:
        """Send rows; they are copied."""
        while self._pending.count("add_from") >= AHEAD:
            self._take()
        buffer, self._added = self._added % AHEAD, self._added + 1
        tree.copy_(self._shared[buffer]["rows"], rows)
        self._post("add_from", buffer)

    def ask(self) -> None:
        """Have a batch drawn."""
        buffer, self._drawn = self._drawn % AHEAD, self._drawn + 1
        self._post("draw_into", buffer)

    def take(self) -> dict[str, Tree]:
        """The oldest batch that was asked for; good until as many more are asked for as there are buffers."""
        while self._take() != "draw_into":
            pass
        self._taken += 1
        return self._shared[(self._taken - 1) % AHEAD]["batch"]

    def settle(self, index: Tensor, error: Tensor) -> None:
        """Errors [B] of the samples that start at `index`."""
        self._post("settle", array(index), array(error))

    def call(self, method: str, *arguments: Any) -> Any:
        """One of the shard's rarer methods, with its answer."""
        self.wait()
        return self.remote_object.ask(method, *arguments)

    def wait(self) -> None:
        """Until all that was sent is done."""
        while self._pending:
            self._take()

    def close(self) -> None:
        self.remote_object.close()

    def _post(self, method: str, *arguments: Any) -> None:
        self.remote_object.post(method, *arguments)
        self._pending.append(method)

    def _take(self) -> str:
        answer, kind = self.remote_object.take(), self._pending.popleft()
        if kind == "add_from":
            self.ready = bool(answer)
        return kind


class ShardedReplay:
    """The experience of a learner whose replay is in `cfg.shards` shards.

    Args:
        rows: a rollout of all environments, to see what it looks like.
        seed: of a shard's draws, by its number and by how often it was replaced.
        restarts: failures in a row after which a shard is given up, and the run ends.
        link: how a shard is started and spoken to.
    """

    overlaps = True

    def __init__(
        self,
        agent: Agent,
        rows: Batch,
        seed: Callable[[int, int], int],
        device: torch.device,
        restarts: int,
        link: Callable[[int, dict[str, Tree], tuple[Any, ...]], Any] = Link,
    ) -> None:
        cfg: ReplayConfig = agent.cfg
        self.cfg, self.seed, self.restarts, self._link = cfg, seed, restarts, link
        self.num_envs = agent.spec.num_envs // cfg.shards
        spec = agent.spec.with_num_envs(self.num_envs)
        part = replace(
            cfg,
            buffer_size=cfg.buffer_size // cfg.shards,
            priority_beta_steps=cfg.priority_beta_steps // cfg.shards,
            replay_device="cpu",
        )
        self._told = (part, spec, agent.stored())
        self._template = _sample(part, spec, agent.stored())
        sent = {**rows.tensors(), CUT: torch.zeros(agent.spec.num_envs, dtype=torch.bool)}
        self._layout = {
            "rows": _share(sent, slice(0, self.num_envs)),
            "batch": self._template.tensors(),
        }
        self._ratio, view = Fraction(str(cfg.updates_per_step)), view_of(cfg)
        # As beside the learner: at least one start of some environment is whole by then.
        self._learn_after = max(cfg.learning_starts, agent.spec.num_envs * (view.span + view.stride - 1))
        self.steps = self.drawn = self._turn = 0
        self.lives, self._failures = [0] * cfg.shards, [0] * cfg.shards
        self._cut = torch.zeros(agent.spec.num_envs, dtype=torch.bool)
        self._transfer = Transfer(device) if device.type == "cuda" else None
        self._from: tuple[Link, Tensor] | None = None
        """of the newest batch, where errors matter: the shard, and the rows at which samples start"""
        self._late: tuple[Link, Tensor, Tensor] | None = None
        self._stored: tuple[Path, bool] | None = None
        self.links = [self._open(number) for number in range(cfg.shards)]

    def cut(self, where: Tensor) -> None:
        """Announce that the next rollout does not go on from the newest row, in the environments `where` [B] says so."""
        self._cut.logical_or_(where)

    def add(self, rollout: Batch) -> None:
        sent = {**rollout.tensors(), CUT: self._cut}
        for number in range(len(self.links)):
            share = _share(sent, slice(number * self.num_envs, (number + 1) * self.num_envs))
            self._try(number, partial(_add, share))
        self._cut.zero_()
        self.steps += int(rollout.mask.sum())

    def due(self) -> Iterator[tuple[str, Batch]]:
        total = int(self._ratio * max(0, self.steps - self._learn_after))
        asked: deque[Link] = deque()
        while self.drawn < total:
            while len(asked) < total - self.drawn and (number := self._next()) is not None:
                if self._try(number, lambda link: link.ask()):
                    asked.append(self.links[number])
            # What a dead one was asked for never comes.
            asked = deque(link for link in asked if link in self.links)
            if not asked:
                self._look()
                if not any(link.free for link in self.links):
                    return  # the rows of all shards are too few yet
                continue
            link = asked.popleft()
            number = self.links.index(link)
            tensors = self._try(number, lambda link: link.take())
            if not tensors:
                continue
            self._failures[number] = 0
            if self.cfg.prioritized:
                self._from = link, tensors["extras"]["index"].clone()
            self.drawn += 1
            batch = self._template.replace(**tensors)
            yield "update", batch if self._transfer is None else self._transfer.send(batch)

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
        self._flush()  # of the update before this one, which is over by now
        self._late = *self._from, self._transfer.fetch({"error": error})["error"]

    def metrics(self) -> dict[str, float]:
        """What became of the shards."""
        return {
            "shards/ready": float(sum(link.ready for link in self.links)),
            "shards/replaced": float(sum(self.lives)),
        }

    # Files and state

    def open_store(self, folder: Path, ahead: bool) -> "ShardedReplay":
        """Have every shard keep its rows in a folder of its own; what else a store can do is asked for here."""
        folder.mkdir(exist_ok=True)
        self._stored = folder, ahead
        for number in range(len(self.links)):
            self.links[number].call("open_store", *self._files(number))
        return self

    def names(self) -> list[str]:
        return [name for link in self.links for name in link.call("names")]

    def sweep(self, needed: Collection[str]) -> None:
        for link in self.links:
            with suppress(DiedError):  # one that died has nothing to sweep
                link.call("sweep", needed)

    def close(self) -> None:
        for link in self.links:
            link.close()

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.drawn, self._turn = (int(state[name]) for name in ("steps", "drawn", "turn"))
        self.lives = [int(life) for life in state["lives"]]
        self._cut.copy_(state["cut"])
        for link, saved, ready in zip(self.links, state["shards"], state["ready"], strict=True):
            link.call("load", saved)
            link.ready = bool(ready)

    # Shards

    def _open(self, number: int) -> Link:
        told = (*self._told, self.seed(number, self.lives[number]))
        return self._link(number, self._layout, told)

    def _files(self, number: int) -> tuple[str, bool]:
        assert self._stored is not None
        folder, ahead = self._stored
        return str(folder / f"shard-{number}"), ahead

    def _try(self, number: int, step: Callable[[Link], Any]) -> Any:
        """What a shard answers; None, and a new one in its place, where it died."""
        link = self.links[number]
        try:
            return step(link) or True
        except DiedError as error:
            link.close()
            self._failures[number] += 1
            if self._failures[number] > self.restarts:
                raise EnvError(
                    f"replay shard {number} failed {self._failures[number]} times in a row, the last time thus: {error}"
                ) from error
            self.lives[number] += 1
            self.links[number] = self._open(number)
            if self._stored is not None:
                self.links[number].call("open_store", *self._files(number))
            return None

    def _next(self) -> int | None:
        """Whose turn it is, among those that have rows and are not asked for as much as they may be."""
        count = len(self.links)
        for number in (*range(self._turn, count), *range(self._turn)):
            if self.links[number].free:
                self._turn = (number + 1) % count
                return number
        return None

    def _look(self) -> None:
        """Hear what became of the rows that were sent."""
        for number in range(len(self.links)):
            self._try(number, lambda link: link.wait())

    def _settle(self, link: Link, index: Tensor, error: Tensor) -> None:
        if link in self.links:
            self._try(self.links.index(link), lambda link: link.settle(index, error))

    def _flush(self) -> None:
        if self._late is not None and self._transfer is not None:
            self._transfer.wait()
            late, self._late = self._late, None
            self._settle(*late)


def check_shards(cfg: ReplayConfig, num_envs: int, actors: int) -> None:
    """Raise where shards and the other settings do not fit."""
    if num_envs % cfg.shards:
        raise ConfigError(
            f"{cfg.shards} shards can't share {num_envs} environments evenly; use a number that divides {num_envs}"
        )
    if cfg.replay_device == "cuda":
        raise ConfigError("replay_device is 'cuda', but shards lie in host memory; leave it or shards out")
    if cfg.refresh_memory:
        raise ConfigError("refresh_memory is for replay beside the learner; leave it or shards out")
    if cfg.prioritized and cfg.priority_on_add and not actors:
        raise ConfigError(
            "priority_on_add with shards takes actors, who find the priorities; set actors, or leave one of them out"
        )


def _add(rows: dict[str, Tree], link: Link) -> None:
    link.add(rows)


def _nobody(batch: Batch) -> Tensor:
    raise AssertionError("actors find first priorities")


def _share(rows: dict[str, Tree], num_envs: slice) -> dict[str, Tree]:
    """The environments' part of a rollout: the second axis of most, the first of what has no time."""
    whole = {name: value for name, value in rows.items() if name not in ("memory", CUT)}
    timed = tree.map(lambda leaf: leaf[:, num_envs], whole)
    return {**timed, "memory": tree.index(rows["memory"], num_envs), CUT: rows[CUT][num_envs]}


def _sample(cfg: ReplayConfig, spec: Spec, memory: Tree) -> Batch:
    """A batch as a shard draws it, with nothing in it."""
    view = view_of(cfg)
    slots = -(-(view.span + history_of(spec) + 2) // view.stride) * view.stride
    ring = Ring(spec, slots * spec.num_envs, memory=memory, stride=view.stride)
    start = torch.zeros(cfg.batch_size, dtype=torch.int64)
    drawn = {"index": start, "weight": torch.ones(cfg.batch_size)} if cfg.prioritized else {}
    return weighted(view.gather(ring, start), drawn)
