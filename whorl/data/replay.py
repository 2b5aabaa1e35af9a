"""Off-policy experience: rollouts go into a ring, and batches are drawn from it in proportion to the steps seen."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.core.errors import CheckpointError, ConfigError
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.memory_check import allocating, require_memory
from whorl.data.ring import Ring, history_of, replay_bytes, slots_for
from whorl.data.samplers import Priorities, Prioritized, Sampler, Uniform, sampler_bytes
from whorl.data.views import Sequences, Transitions, View
from whorl.ops.losses import row_weight


class Experience(Protocol):
    """What turns rollouts into batches."""

    overlaps: bool
    """whether the updates that are due need nothing of the rollout that is being collected meanwhile"""

    def add(self, rollout: Batch) -> None:
        """Take in a rollout; what is kept of it is copied."""

    def due(self) -> Iterator[tuple[str, Batch]]:
        """The batches to learn from now, each with the agent's method that learns from it."""

    def settle(self, batch: Batch, updated: Any) -> None:
        """What came of a batch; called before the next one is drawn."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Store(Protocol):
    """What keeps a ring's rows in files, so that a checkpoint need not hold them (`whorl.state.segments`)."""

    def advance(self, steps: int) -> None:
        """`steps` rows are about to be added."""

    def save(self) -> dict[str, Any]:
        """Bring all rows to the disk; the manifest from which `load` gets them back."""

    def load(self, manifest: dict[str, Any]) -> None:
        """Fill the ring, whose row count is set already."""


FIRST = "first"
"""in `Batch.extras` of a rollout: errors [starts, B] of the samples that it completes, where actors found them"""
DRAWN_TOGETHER = 1 << 23
"""bytes of observations that are gathered at a time, where several batches are"""


class Replay(Experience):
    """A ring with a view (transitions or sequences) and a sampler (even, or by `priorities`).

    On a GPU drawing and settling are captured as graphs. A ring on the host serves a learner on a GPU through pinned
    buffers; priorities then apply exactly one update late, so that nobody waits and nothing depends on timing.

    Args:
        device: where the ring lies.
        generator: on `device`; its position is saved with the random streams, not here.
        learner: where batches are wanted, if elsewhere.
        appraise: errors of a batch [T, B]; new rows get priorities from it instead of the largest one seen.
        capacity: rows over all environments.
        updates_per_step: updates per environment step; fractions are carried over exactly.
        learning_starts: no update is due for this many first steps.
        reward_clip: where rewards are clipped, on both sides; 0: nowhere.
        extras, memory, stride: see `Ring`.
        refresh: what memory is by now before every `stride`-th row of a batch but the first; replaces what was stored.
    """

    overlaps = True

    def __init__(
        self,
        spec: Spec,
        device: torch.device | str,
        generator: torch.Generator,
        *,
        learner: torch.device | str | None = None,
        initial_priority: Callable[[Batch], Tensor] | None = None,
        view: View,
        buffer_size: int,
        batch_size: int,
        updates_per_step: float = 1.0,
        learning_starts: int = 0,
        priorities: Priorities | None = None,
        reward_clip: float = 0.0,
        extras: Mapping[str, Array] | None = None,
        memory: Tree | None = None,
        stride: int = 1,
        refresh: Callable[[Batch], Tree] | None = None,
    ) -> None:
        self.ring = Ring(spec, buffer_size, device, extras=extras, memory=memory, stride=stride)
        self.reward_clip = reward_clip
        if memory and view.stride % stride:
            raise ConfigError(
                f"samples start every {view.stride} rows, but memory is stored every {stride}; use a multiple"
            )
        if self.ring.slots % view.stride or self.ring.slots <= view.span + self.ring.history:
            raise ConfigError(
                f"a ring of {self.ring.slots} rows per environment holds no whole sample of {view.span + 1} rows "
                f"that starts every {view.stride}; change the replay capacity ({buffer_size}) or environments ({spec.num_envs})"
            )
        self.view, self.generator, self.batch_size = view, generator, batch_size
        self._gather: Callable[[Ring, Tensor], Batch] = view.gather
        self.initial_priority = initial_priority
        self._transfer = Transfer(learner) if learner and torch.device(learner) != self.ring.device else None
        self.refresh = refresh
        if refresh is not None and self._transfer is not None:
            raise ConfigError(
                "refresh_memory writes into the ring at once, so it must lie beside the learner; use replay_device auto"
            )
        self._late: dict[str, Tensor] = {}
        self._renew: _Recorded | None = None
        self._draw: _Recorded | None = None
        self._settle: _Recorded | None = None
        self._priority: Tensor | None = None
        self.updates_per_step = Fraction(str(updates_per_step))
        # At least one start of some environment is whole by then.
        self.learning_starts = max(learning_starts, spec.num_envs * (view.span + view.stride - 1))
        self.steps = 0
        """environment steps seen"""
        self.drawn = 0
        """batches handed out"""
        self.store: Store | None = None
        """set where there is a run folder; without it the state holds the whole ring"""
        size = self.ring.slots // view.stride * spec.num_envs
        self.sampler: Sampler = (
            Prioritized(size, self.ring.device, priorities) if priorities else Uniform(size, self.ring.device)
        )

        row = sum(leaf.size * getattr(torch, leaf.dtype).itemsize for leaf in tree.leaves(spec.observation))
        # Rows of sequences are weighted within their batch.
        alone = self.sampler.learns or self.ring.device.type == "cuda" or not isinstance(view, Transitions)
        fitting = DRAWN_TOGETHER // (2 * row * batch_size)
        self._together = 1 if alone else max(1, min(fitting, 64))

    @property
    def bytes(self) -> int:
        """Size of the ring; `replay_bytes` tells it beforehand."""
        return self.ring.bytes

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        ring, span, steps = self.ring, self.view.span, rollout.shape[0]
        if steps + span + ring.history > ring.slots:
            least = (steps + span + ring.history) * ring.num_envs
            raise ConfigError(
                f"a rollout of {steps} rows leaves no sample of {span + 1} rows in a ring of {ring.slots} rows per "
                f"environment; use a replay capacity of at least {least}, or a smaller num_steps"
            )
        if self.store is not None:
            self.store.advance(steps)
        gone = starts(ring, self.view, ring.first_start(), ring.first_start(steps))
        self.sampler.release(gone, self.view.allowed(ring, gone))
        whole = max(0, ring.rows - span)
        clip = self.reward_clip
        # Before they are folded; whoever counts returns has seen the whole ones.
        ring.add(rollout.replace(reward=rollout.reward.clamp(-clip, clip)) if clip else rollout)
        new = starts(ring, self.view, whole, max(0, ring.rows - span))
        self.sampler.admit(new, self.view.allowed(ring, new))
        if FIRST in rollout.extras:
            self._settle_first(new, rollout.extras[FIRST])
        elif self.initial_priority is not None and len(new):
            found = weighted(self.view.gather(ring, new), {})
            if self._transfer is not None:
                found = found.to(self._transfer.device)  # not through the buffers, which have a batch's size
            self.sampler.settle(new, found.mask.to(ring.device), self.initial_priority(found).to(ring.device))
        self.steps += int(rollout.mask.sum())  # on the device that collected: no learner is waited for
        self.sampler.anneal(self.steps)

    def _settle_first(self, new: Tensor, first: Tensor) -> None:
        """Errors that whoever collected found for these starts; nan, which leaves the largest, where they could not."""
        error = first.reshape(-1)[first.numel() - len(new) :]
        known = error.isfinite().nonzero().squeeze(1)  # where rows are collected: no learner is waited for
        if len(known):
            index = new.index_select(0, known.to(new.device))
            error = error[known].to(new.device)
            self.sampler.settle(index, torch.ones_like(error), error)

    def due(self) -> Iterator[tuple[str, Batch]]:
        total = int(self.updates_per_step * max(0, self.steps - self.learning_starts))
        if self.drawn < total:
            self.require_start()
        while self.drawn < total:
            # What is drawn evenly does not depend on what was learned: several batches cost little more than one.
            for batch in self.samples(min(total - self.drawn, self._together)):
                self.drawn += 1
                yield "update", batch

    @torch.no_grad()
    def samples(self, count: int) -> Iterator[Batch]:
        """Batches of the rows as they are now."""
        if count == 1:
            yield self.sample()
            return
        drawn = self._drawn(count)
        parts = tree.map(lambda leaf: leaf.split(self.batch_size, 1), drawn.tensors())
        for number in range(count):
            yield self._sent(drawn.replace(**tree.map(itemgetter(number), parts)))

    @torch.no_grad()
    def sample(self) -> Batch:
        """One batch; nothing here waits for a device."""
        if self.ring.device.type != "cuda":
            return self._sent(self._drawn())
        if self._draw is None:
            self._draw = _Recorded(self._drawn, [], [self.generator])
            self._draw.result.static = True
        return self._draw.replay()

    def compile(self) -> None:
        """Fuse the many small operations that make a batch of starts."""
        self._gather = torch.compile(self.view.gather, dynamic=False)
        self._together = 1  # one shape, one compilation

    def _drawn(self, count: int = 1) -> Batch:
        start, extras = self.sampler.draw(count * self.batch_size, self.generator)
        if self.refresh is not None:
            extras = {**extras, "start": start}
        return weighted(self._gather(self.ring, start), extras)

    def _sent(self, batch: Batch) -> Batch:
        return batch if self._transfer is None else self._transfer.send(batch)

    @torch.no_grad()
    def settle(self, batch: Batch, updated: Any) -> None:
        if self.refresh is not None:
            self._renew_memory(batch)
        if not self.sampler.learns:
            return
        if updated.priority is None:
            raise ValueError("prioritized replay needs Updated.priority, errors [B] or [T, B]")
        given = {"index": batch.extras["index"], "mask": batch.mask, "priority": updated.priority.detach()}
        if self._transfer is not None:
            if self._late:
                self._transfer.wait()  # for the update before this one, which is over by now
                self.sampler.settle(**self._late)
            self._late = self._transfer.fetch(given)
        elif self.ring.device.type != "cuda":
            self.sampler.settle(**given)
        else:
            self._settle_captured(given)

    def _settle_captured(self, given: dict[str, Tensor]) -> None:
        if self._settle is None:
            # Updates of different graphs leave their errors in different places: copied to one.
            self._priority = given["priority"].clone()
            held = {**given, "priority": self._priority}
            changing = tree.leaves(self.sampler.state_dict())
            self._settle = _Recorded(lambda: self.sampler.settle(**held), changing, [])
        assert self._priority is not None
        self._priority.copy_(given["priority"])
        self._settle.replay()

    def _renew_memory(self, batch: Batch) -> None:
        refresh = self.refresh
        assert refresh is not None

        def renew() -> None:
            self.ring.renew(batch.extras["start"], refresh(batch))

        if self.ring.device.type != "cuda":
            renew()
            return
        if self._renew is None:
            self._renew = _Recorded(renew, tree.leaves(self.ring.memories), [])
        self._renew.replay()

    def cut(self, where: Tensor | None = None) -> None:
        """Announce that the next rollout does not go on from the newest row, in the environments `where` [B] says so."""
        self.ring.cut(where)

    def state_dict(self) -> dict[str, Any]:
        ring = self.ring.state_dict()
        if self.store is not None:
            del ring["columns"]
            if self.refresh is None:
                del ring["memories"]  # else old ones change, while files are written once
            ring["manifest"] = self.store.save()
        if self._late and self._transfer is not None:
            self._transfer.wait()
        return {
            "steps": self.steps,
            "drawn": self.drawn,
            "ring": ring,
            "sampler": self.sampler.state_dict(),
            "late": self._late,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.drawn = int(state["steps"]), int(state["drawn"])
        self.ring.load_state_dict(state["ring"])
        if "manifest" in state["ring"]:
            if self.store is None:
                raise CheckpointError("the rows of this replay are in its run folder; use whorl.resume(run)")
            self.store.load(state["ring"]["manifest"])
            if "memories" in state["ring"]:
                tree.copy_(self.ring.memories, state["ring"]["memories"])
        self.sampler.load_state_dict(state["sampler"])
        self._late = tree.clone(state["late"])

    def require_start(self) -> None:
        """Raise where an episode is so long that the ring has lost its beginning, in every environment."""
        ring = self.ring
        if not isinstance(self.view, Sequences) or not self.view.whole or not ring.first_start():
            return
        every = starts(ring, self.view, ring.first_start(), ring.rows - self.view.span)
        if not bool(self.view.allowed(ring, every).any()):
            raise ConfigError(
                f"whole_episodes is true, but no episode begins in the {ring.slots} rows that replay holds of each "
                "environment; use a larger capacity, or leave whole_episodes out"
            )


def starts(ring: Ring, view: View, first: int, last: int) -> Tensor:
    """The starts among rows `first` to `last` - 1, oldest first."""
    blocks = torch.arange(-(-first // view.stride), -(-last // view.stride), device=ring.device)
    blocks = blocks % (ring.slots // view.stride)
    return (blocks.unsqueeze(1) * ring.num_envs + torch.arange(ring.num_envs, device=ring.device)).reshape(-1)


def weighted(batch: Batch, extras: dict[str, Tensor]) -> Batch:
    """With `share` and `weight` [T, B] among its extras."""
    share = row_weight(batch.mask) if batch.shape[0] > 1 else batch.mask  # single rows are never masked
    weight = share * extras["weight"] if "weight" in extras else share
    return batch.replace(extras={**batch.extras, **extras, "share": share, "weight": weight})


class _Recorded:
    """A step that a CUDA graph repeats."""

    def __init__(
        self, step: Callable[[], Any], tensors: list[Tensor], generators: list[torch.Generator]
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.result = record(self.graph, step, tensors, generators)

    def replay(self) -> Any:
        self.graph.replay()
        return self.result


class Transfer:
    """Batches from the host to a GPU and errors back, through pinned memory, without waiting."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._buffers: list[dict[str, Tree]] = []
        self._sent = [torch.cuda.Event(), torch.cuda.Event()]
        self._fetched = torch.cuda.Event()
        self._turn = 0

    def send(self, batch: Batch) -> Batch:
        """The batch on the device; its buffer is written again only after the copy is done."""
        tensors = batch.tensors()
        if len(self._buffers) < 2:
            self._buffers.append(tree.map(lambda leaf: torch.empty_like(leaf).pin_memory(), tensors))
        else:
            self._sent[self._turn].synchronize()
        buffer, event = self._buffers[self._turn], self._sent[self._turn]
        self._turn = 1 - self._turn
        tree.copy_(buffer, tensors)
        moved = batch.replace(**tree.to(buffer, self.device))
        event.record()
        return moved

    def fetch(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors on their way to the host; `wait` before they are read."""
        found = {
            name: torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
            for name, value in tensors.items()
        }
        self._fetched.record()
        return found

    def wait(self) -> None:
        """Until what was fetched has arrived."""
        self._fetched.synchronize()


def replay_of(
    cfg: ReplayConfig,
    spec: Spec,
    learner: torch.device,
    generator: torch.Generator,
    initial_priority: Callable[[Batch], Tensor],
    memory: Tree | None = None,
    refresh: Callable[[Batch], Tree] | None = None,
) -> Replay:
    """Replayed transitions or sequences as settings describe them; `memory` is stored with the rows, if any."""
    view = view_of(cfg)
    priorities = Priorities(
        alpha=cfg.priority_alpha,
        beta=cfg.priority_beta,
        beta_steps=cfg.priority_beta_steps,
        eta=cfg.priority_eta,
        clip=cfg.priority_clip,
    )
    device = generator.device
    starts = slots_for(spec, cfg.buffer_size, view.stride) // view.stride * spec.num_envs
    size = replay_bytes(spec, cfg.buffer_size, memory=memory, stride=view.stride)
    size += sampler_bytes(starts, device, cfg.prioritized)
    require_memory(size, device, cfg.buffer_size)
    with allocating(size, device, cfg.buffer_size):
        return Replay(
            spec,
            device,
            generator,
            learner=learner,
            initial_priority=initial_priority if cfg.prioritized and cfg.priority_on_add else None,
            view=view,
            buffer_size=cfg.buffer_size,
            batch_size=cfg.batch_size,
            updates_per_step=cfg.updates_per_step,
            learning_starts=cfg.learning_starts,
            priorities=priorities if cfg.prioritized else None,
            reward_clip=cfg.reward_clip_range if cfg.clip_reward else 0.0,
            memory=memory,
            stride=view.stride,
            refresh=refresh,
        )


def view_of(cfg: ReplayConfig) -> View:
    """What samples are: transitions, or sequences where nets have a memory."""
    if not cfg.recurrent:
        return Transitions(cfg.n_step)
    return Sequences(
        cfg.sequence_length,
        cfg.burn_in,
        1 if cfg.whole_episodes else cfg.sequence_stride,
        cfg.n_step,
        cfg.whole_episodes,
        cfg.reads_last_step,
    )


def check_replay(cfg: ReplayConfig, spec: Spec, rows: int) -> None:
    """Raise where rollouts of `rows` rows over all environments and samples do not fit the ring.

    The rows at which samples may start must be as many per environment as a rollout brings, and as from one start to the next;
    three at least, since two in a row may be no transition: the final row of an episode, and the first of the next
    where environments were started anew after it.
    """
    if cfg.recurrent and cfg.whole_episodes and cfg.burn_in:
        raise ConfigError(
            f"burn_in is {cfg.burn_in}, but whole_episodes begins with an empty memory, and the first rows would never "
            "be learned; use one of them"
        )
    if cfg.refresh_memory and not cfg.stores_memory:
        raise ConfigError(
            "refresh_memory renews stored states, but with these settings none are stored; leave it out, or set memory "
            "and stored_memory, without whole_episodes"
        )
    view = view_of(cfg)
    slots, steps = slots_for(spec, cfg.buffer_size, view.stride), rows // spec.num_envs
    needed = max(steps, view.stride, 3) + view.span + history_of(spec)
    if slots < needed:
        sample = f"n_step {cfg.n_step}"
        if cfg.recurrent:
            needed = -(-needed // view.stride) * view.stride
            sample = f"sequences of {view.span + 1} rows (burn_in, sequence and n_step)"
        raise ConfigError(
            f"capacity is {cfg.buffer_size}, {slots} rows for each of {spec.num_envs} environments, but num_steps {steps} and "
            f"{sample} need {needed}; use a capacity of at least {needed * spec.num_envs}, or make one of them smaller"
        )
