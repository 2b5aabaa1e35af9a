"""Off-policy experience: rollouts go into a replay buffer, from which `updates_per_step` batches per step are drawn."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whorl.core import messages, tree
from whorl.core.cuda_graphs import Recorded
from whorl.core.errors import CheckpointError, ConfigError, DamagedError
from whorl.core.goals import GoalRewards
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.discounting import Discounting, Gamma
from whorl.data.experience import Experience
from whorl.data.hindsight import Hindsight
from whorl.data.ring import Ring, dense
from whorl.data.samplers import Priorities, Prioritized, Sampler, Uniform
from whorl.data.segments import Segments
from whorl.data.transfer import Transfer
from whorl.data.views import Rows, Sequences, Transitions, View
from whorl.ops.losses import row_weight

FIRST = "first"
"""in `Batch.extras` of a rollout: TD errors [starts, B] of the samples that it completes, if actors computed them"""
MEMORIES = "memories"
"""among what learning replaces in the buffer: the stored recurrent states"""
DRAWN_TOGETHER = 1 << 23
"""bytes of observations gathered at a time, where several batches are drawn together"""


class Replay(Experience):
    """A ring buffer with a view (transitions or sequences) and a sampler (uniform, or prioritized with `priorities`).

    On a GPU, sampling and priority updates are captured as CUDA graphs. A ring on the host serves a learner on a GPU
    through pinned memory; priorities are then applied exactly one update late, so that nothing waits for the GPU and
    results do not depend on timing.

    Args:
        device: device of the ring.
        generator: on `device`; its state is saved with the random streams, not here.
        learner: device of the batches, if it is another one.
        initial_priority: TD errors of a batch [T, B], from which new rows get their priorities; default: the largest
            priority seen so far.
        gamma: discount per step, one number or a tensor [num_envs]; applied when a batch is drawn.
        separate_streams: give reward, discount and keep of every reward stream [T, B, 1 + S] instead of the weighted
            sum of all streams.
        buffer_size: rows over all environments.
        updates_per_step: updates per environment step; fractions are carried over exactly.
        learning_starts: environment steps before the first update.
        reward_clip: the environment's rewards are clipped to [-reward_clip, reward_clip]; 0: not clipped.
        extras, memory, stride, compress: see `Ring`.
        refresh: computes with the current networks what replaces stored values: under `MEMORIES` the recurrent states
            before every `stride`-th row of a batch but the first, and columns of the extras for all its rows but the
            last, which are named in `refreshed`.
        her, her_goals: strategy of `Hindsight` and its number of goals; none: samples have their own goals.
        goal_rewards: rewards of other goals, for `her`.
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
        gamma: Gamma,
        separate_streams: bool = False,
        buffer_size: int,
        batch_size: int,
        updates_per_step: float = 1.0,
        learning_starts: int = 0,
        priorities: Priorities | None = None,
        reward_clip: float = 0.0,
        extras: Mapping[str, Array] | None = None,
        memory: Tree | None = None,
        stride: int = 1,
        compress: bool = False,
        refresh: Callable[[Batch], Tree] | None = None,
        refreshed: tuple[str, ...] = (),
        her: str = "none",
        her_goals: int = 4,
        goal_rewards: GoalRewards | None = None,
    ) -> None:
        self.ring = Ring(
            spec, buffer_size, device, extras=extras, memory=memory, stride=stride, compress=compress
        )
        self.reward_clip = reward_clip
        gamma = gamma.to(self.ring.device) if isinstance(gamma, Tensor) else gamma
        self.discounting = Discounting(gamma, spec.streams, separate_streams)
        if memory and view.stride % stride:
            raise ConfigError(
                f"samples start every {view.stride} rows, but memory is stored every {stride}; use a multiple of that"
            )
        if self.ring.slots % view.stride or self.ring.slots <= view.span + self.ring.history:
            raise ConfigError(
                f"a replay buffer of {self.ring.slots} rows per environment holds no whole sample of {view.span + 1} "
                f"rows that starts every {view.stride}; change buffer_size ({buffer_size}) or num_envs "
                f"({spec.num_envs})"
            )
        self.view, self.generator, self.batch_size = view, generator, batch_size
        self._gather: Callable[[Rows, Tensor, Discounting], Batch] = view.gather
        self.hindsight: Hindsight | None = None
        if her != "none":
            if goal_rewards is None:
                raise ConfigError(f"her is {her}, but the environment has no compute_reward; leave her out")
            self.hindsight = Hindsight(self.ring, goal_rewards, her, her_goals, reward_clip)
        self.initial_priority = initial_priority
        self._transfer = Transfer(learner) if learner and torch.device(learner) != self.ring.device else None
        self.refresh, self.refreshed = refresh, refreshed
        self._keeps_memories = refresh is None or MEMORIES not in refreshed
        if refresh is not None and self._transfer is not None:
            raise ConfigError(
                "refresh_memory and refresh_probabilities need the replay buffer on the learner's device; use "
                "replay_device auto"
            )
        self._late: dict[str, Tensor] = {}
        self._renew: Recorded | None = None
        self._draw: Recorded | None = None
        self._settle: Recorded | None = None
        self._priority: Tensor | None = None
        self.updates_per_step = Fraction(str(updates_per_step))
        # By then at least one environment has a complete sample.
        self.learning_starts = max(learning_starts, spec.num_envs * (view.span + view.stride - 1))
        self.steps = 0
        """environment steps added"""
        self.drawn = 0
        """batches drawn"""
        self.granted = 0
        """batches that are due besides those for steps"""
        self.dataset = ""
        """hash of the dataset whose rows were added first, if there was one"""
        self.demonstrations: Replay | None = None
        """a second buffer, from which a share of each batch is drawn"""
        self._demonstrated, self._demonstrations = 0, ""
        self._progress = 0.0
        self._gaps = False
        """whether rows were missing: only then may a buffer with rows have no start"""
        self._warned = False
        self.store: Segments | None = None
        """set where there is a run folder; without it the state holds the whole ring"""
        size = self.ring.slots // view.stride * spec.num_envs
        self.sampler: Sampler = (
            Prioritized(size, self.ring.device, priorities) if priorities else Uniform(size, self.ring.device)
        )

        row = sum(leaf.size * getattr(torch, leaf.dtype).itemsize for leaf in tree.leaves(spec.observation))
        # Rows of sequences are weighted within their own batch.
        alone = self.sampler.learns or self.ring.device.type == "cuda" or not isinstance(view, Transitions)
        alone = alone or refresh is not None  # the next sample reads what this one refreshes
        fitting = DRAWN_TOGETHER // (2 * row * batch_size)
        self._together = 1 if alone else max(1, min(fitting, 64))

    @property
    def bytes(self) -> int:
        """Size of the ring; `replay_bytes` computes it without allocating."""
        return self.ring.bytes

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        ring, span, steps = self.ring, self.view.span, rollout.shape[0]
        if steps + span + ring.history > ring.slots:
            least = (steps + span + ring.history) * ring.num_envs
            raise ConfigError(
                f"a rollout of {steps} rows leaves no sample of {span + 1} rows in a replay buffer of {ring.slots} "
                f"rows per environment; use a buffer_size of at least {least}, or a smaller num_steps"
            )
        if self.store is not None:
            self.store.advance(steps)
        gone = starts(ring, self.view, ring.first_start(), ring.first_start(steps))
        self.sampler.release(gone, self.view.allowed(ring, gone))
        whole = max(0, ring.rows - span)
        ring.add(clipped(rollout, self.reward_clip))  # before n-step returns; logged returns are not clipped
        if self.hindsight is not None:
            self.hindsight.episodes.extend(ring, steps)
        new = starts(ring, self.view, whole, max(0, ring.rows - span))
        self.sampler.admit(new, self.view.allowed(ring, new))
        if FIRST in rollout.extras:
            self._settle_first(new, rollout.extras[FIRST])
        elif self.initial_priority is not None and len(new):
            found = weighted(self.view.gather(ring, new, self.discounting), {})
            if self._transfer is not None:
                found = found.to(self._transfer.device)  # the pinned buffers have the size of a batch
            self.sampler.settle(new, found.mask.to(ring.device), self.initial_priority(found).to(ring.device))
        self.steps += int(rollout.mask.sum())  # on the collecting device: does not wait for the learner
        self.sampler.anneal(self.steps, self._progress)

    def fill(self, rollouts: Iterable[Batch], hash: str) -> None:
        """Add the rows of a dataset; no update is due for them."""
        for rollout in rollouts:
            self.add(rollout)
        self.drawn, self.dataset = self._due_by_now(), hash

    def grant(self, updates: int) -> None:
        self.granted += updates

    def demonstrate(self, demonstrations: "Replay", ratio: float, hash: str) -> None:
        """Draw `ratio` of every batch uniformly from another buffer, which keeps its rows (RLPD, Ball et al. 2023,
        arXiv:2302.02948). Demonstrations are the last samples of a batch; they have weight 1 and no priorities."""
        count = round(self.batch_size * ratio)
        if not 0 < count < self.batch_size:
            raise ConfigError(
                f"demonstration_ratio {ratio:g} of a batch of {self.batch_size} is {count}; both parts need one or more"
            )
        if self.refresh is not None:
            raise ConfigError(
                "refresh_memory and refresh_probabilities replace what the replay buffer stores, but demonstrations "
                "are in another one; leave one of them out"
            )
        self.demonstrations, self._demonstrated, self._demonstrations = demonstrations, count, hash
        self._together = 1

    def _settle_first(self, new: Tensor, first: Tensor) -> None:
        """Apply the TD errors that actors computed for these starts; where one is nan, the largest priority stays."""
        error = first.reshape(-1)[first.numel() - len(new) :]
        known = (
            error.isfinite().nonzero().squeeze(1)
        )  # on the collecting device: does not wait for the learner
        if len(known):
            index = new.index_select(0, known.to(new.device))
            error = error[known].to(new.device)
            self.sampler.settle(index, torch.ones_like(error), error)

    def due(self) -> Iterator[tuple[str, Batch]]:
        total = self._due_by_now()
        if self.drawn < total and not self.can_start():
            self._warn_of_gaps()
            return
        while self.drawn < total:
            # Uniform sampling does not depend on updates: several batches drawn together cost little more than one.
            for batch in self.samples(min(total - self.drawn, self._together)):
                self.drawn += 1
                yield "update", batch

    def _warn_of_gaps(self) -> None:
        """Warn once that no update is made, and why."""
        if self._warned or not isinstance(self.view, Sequences):
            return
        self._warned = True
        messages.warn(
            f"learning has not started: the replay buffer has no {self.view.burn_in + 2} rows of an environment "
            f"without a gap, which burn_in {self.view.burn_in} needs; environments that answer late leave "
            "a gap at the end of a rollout: raise num_steps, or lower burn_in"
        )

    def _due_by_now(self) -> int:
        """Batches that are due after these steps."""
        return self.granted + int(self.updates_per_step * max(0, self.steps - self.learning_starts))

    def samples(self, count: int) -> Iterator[Batch]:
        """Draw `count` batches from the current rows."""
        if count == 1:
            yield self.sample()
            return
        drawn = self._drawn(count)
        parts = tree.map(lambda leaf: leaf.split(self.batch_size, 1), drawn.tensors())
        for number in range(count):
            yield self._sent(drawn.replace(**tree.map(itemgetter(number), parts)))

    def sample(self) -> Batch:
        """Draw one batch, without waiting for a device."""
        if self.ring.device.type != "cuda":
            return self._sent(self._drawn())
        if self._draw is None:
            self._draw = Recorded(self._drawn, [], [self.generator])
            self._draw.result.static = True
        return self._draw.replay()

    def compile(self) -> None:
        """Compile the gathering of samples; not with `her`, where rewards are functions of the environment."""
        if self.hindsight is not None:
            return
        self._gather = torch.compile(self.view.gather, dynamic=False)
        self._together = 1  # one shape, one compilation
        if self.demonstrations is not None:
            self.demonstrations.compile()

    def _drawn(self, count: int = 1) -> Batch:
        start, extras = self.sampler.draw(count * self.batch_size - self._demonstrated, self.generator)
        if self.refresh is not None:
            extras = {**extras, "start": start}
        batch = self._gather(self._rows(start), start, self.discounting)
        if self.demonstrations is None:
            return weighted(batch, extras)
        shown = self.demonstrations.gathered(self._demonstrated, self.generator)
        if "weight" in extras:
            ones = torch.ones(self._demonstrated, device=start.device)
            extras = {**extras, "weight": torch.cat((extras["weight"], ones))}
        return weighted(joined(batch, shown), extras)

    def gathered(self, count: int, generator: torch.Generator) -> Batch:
        """`count` samples without weights."""
        start, _ = self.sampler.draw(count, generator)
        return self._gather(self._rows(start), start, self.discounting)

    def _rows(self, start: Tensor) -> Rows:
        """What samples that begin at these starts are gathered from."""
        if self.hindsight is None:
            return self.ring
        slot, env_index = start // self.ring.num_envs * self.view.stride, start % self.ring.num_envs
        return self.hindsight.relabelled(slot, env_index, self.generator)

    def _sent(self, batch: Batch) -> Batch:
        return batch if self._transfer is None else self._transfer.send(batch)

    def settle(self, batch: Batch, updated: Any) -> None:
        if self.refresh is not None:
            self._renew_stored(batch)
        if not self.sampler.learns:
            return
        if updated.priority is None:
            raise ValueError("prioritized replay needs Updated.priority, TD errors [B] or [T, B]")
        given = {"index": batch.extras["index"], "mask": batch.mask, "priority": updated.priority.detach()}
        if self._demonstrated:
            own = slice(0, batch.shape[1] - self._demonstrated)
            given |= {name: given[name][..., own] for name in ("mask", "priority")}
        if self._transfer is not None:
            if self._late:
                self._transfer.wait()  # for the previous update, which is finished by now
                self.sampler.settle(**self._late)
            self._late = self._transfer.fetch(given)
        elif self.ring.device.type != "cuda":
            self.sampler.settle(**given)
        else:
            self._settle_captured(given)

    def _settle_captured(self, given: dict[str, Tensor]) -> None:
        if self._settle is None:
            # Each captured update writes its errors to its own tensor: copy them to the one this graph reads.
            self._priority = given["priority"].clone()
            held = {**given, "priority": self._priority}
            changing = tree.leaves(self.sampler.state_dict())
            self._settle = Recorded(lambda: self.sampler.settle(**held), changing, [])
        assert self._priority is not None
        self._priority.copy_(given["priority"])
        self._settle.replay()

    def _renew_stored(self, batch: Batch) -> None:
        refresh = self.refresh
        assert refresh is not None

        @torch.no_grad()
        def renew() -> None:
            start, found = batch.extras["start"], refresh(batch)
            self.ring.renew(start, found.pop(MEMORIES, {}))
            for name, value in found.items():
                self.ring.renew_column(name, self.view.rows(self.ring, start)[: len(value)], value)

        if self.ring.device.type != "cuda":
            renew()
            return
        if self._renew is None:
            changing = [*tree.leaves(self.ring.memories), *tree.leaves(self._changing())]
            self._renew = Recorded(renew, changing, [])
        self._renew.replay()

    def anneal(self, progress: float) -> None:
        self._progress = progress
        self.sampler.anneal(self.steps, progress)

    def cut(self, where: Tensor | None = None) -> None:
        """Announce that the next rollout does not continue the newest row, in the environments `where` [B]."""
        self.ring.cut(where)
        self._gaps = self._gaps or where is None or bool(where.any())

    def expect_gaps(self) -> None:
        self._gaps = True

    def _changing(self) -> dict[str, Tensor]:
        """The columns that learning replaces."""
        columns = self.ring.columns["extras"]
        return {name: columns[name] for name in self.refreshed if name != MEMORIES}

    def open_store(self, folder: Path, ahead: bool) -> Segments:
        # What is refreshed changes later, while files are written once: it stays in the checkpoint.
        without = tuple(f"extras.{name}" for name in self._changing())
        self.store = Segments(folder, self.ring, ahead=ahead, memories=self._keeps_memories, without=without)
        return self.store

    def state_dict(self) -> dict[str, Any]:
        if self.store is None:
            ring = self.ring.state_dict()
        else:
            ring = {**self.ring.counters(), "changing": tree.map(dense, self._changing())}
            if not self._keeps_memories:  # refreshed memories change after they were written to files
                ring["memories"] = self.ring.memories
            ring["manifest"] = self.store.save()
        if self._late and self._transfer is not None:
            self._transfer.wait()
        return {
            "steps": self.steps,
            "drawn": self.drawn,
            "granted": self.granted,
            "dataset": self.dataset,
            "demonstrations": self._demonstrations,
            "gaps": self._gaps,
            "ring": ring,
            "sampler": self.sampler.state_dict(),
            "late": self._late,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shown, dataset = state.get("demonstrations", ""), state.get("dataset", "")
        if not isinstance(shown, str) or not isinstance(dataset, str):
            raise ValueError(f"the hashes of datasets are {shown!r} and {dataset!r}, not texts")
        if shown != self._demonstrations:
            raise CheckpointError(
                f"the demonstrations have changed since this checkpoint: their hash was {shown[:12] or 'none'} and is "
                f"{self._demonstrations[:12] or 'none'}; restore that dataset, or start a new run with load_model"
            )
        self.steps, self.drawn = int(state["steps"]), int(state["drawn"])
        # Runs of earlier versions have neither.
        self.granted, self.dataset = int(state.get("granted", 0)), dataset
        gaps = state.get("gaps", False)
        if not isinstance(gaps, bool):
            raise ValueError(f"gaps is {gaps!r}, not true or false")
        self._gaps = gaps
        self._load_rows(state["ring"])
        self.sampler.load_state_dict(state["sampler"])
        self._late = {name: tree.clone(value) for name, value in state["late"].items()}

    def _load_rows(self, saved: dict[str, Any]) -> None:
        self.ring.load_state_dict(saved)
        if "manifest" in saved:
            self._load_stored(saved)
        if self.hindsight is not None:
            self.hindsight.episodes.rebuild(self.ring)

    def _load_stored(self, saved: dict[str, Any]) -> None:
        """Read the rows that are in files."""
        if self.store is None:
            raise CheckpointError(
                "the rows of this replay buffer are in its run folder; use whorl.resume(run)"
            )
        self.store.load(saved["manifest"])
        if "memories" in saved:
            tree.restore_(self.ring.memories, saved["memories"])
        tree.restore_(self._changing(), saved.get("changing", {}))

    @torch.no_grad()
    def take_rows(self, state: dict[str, Any]) -> None:
        """See `Experience`. Samples may be others than there (n_step, sequences): starts are found among the rows, and
        priorities are taken where they are those of the same starts. No update is due for these rows."""
        ring = self.ring
        saved = state.get("ring")
        if not isinstance(saved, dict) or "manifest" not in saved:
            raise ConfigError("the checkpoint holds no replay buffer, or one in shards")
        ring.check(saved)
        assert self.store is not None
        try:
            self.store.check(saved["manifest"])
        except DamagedError as error:
            raise ConfigError(str(error)) from None
        missing = self._changing().keys() - saved.get("changing", {}).keys()
        if missing:
            raise ConfigError(f"the checkpoint's replay buffer has no {sorted(missing)[0]}")
        if not self._keeps_memories and _shapes(saved.get("memories", {})) != _shapes(ring.memories):
            raise ConfigError("its recurrent states have another size or are at other rows")
        self._load_rows(saved)
        self.steps, self._gaps = int(state["steps"]), state.get("gaps", False) is True
        self.drawn = self._due_by_now()
        every = starts(
            ring, self.view, ring.first_start(), max(ring.first_start(), ring.rows - self.view.span)
        )
        self.sampler.admit(every, self.view.allowed(ring, every))
        self.sampler.take_priorities(state["sampler"])
        self.cut()  # environments begin new episodes

    def can_start(self) -> bool:
        """Whether there is a start; raises if no stored episode has its first row in the buffer any more
        (whole_episodes)."""
        ring = self.ring
        if not isinstance(self.view, Sequences) or not self.view.whole or not ring.first_start():
            return not self._gaps or self.sampler.any()
        every = starts(ring, self.view, ring.first_start(), ring.rows - self.view.span)
        if not bool(self.view.allowed(ring, every).any()):
            raise ConfigError(
                f"whole_episodes is true, but no episode begins in the {ring.slots} rows that replay holds of each "
                "environment; use a larger buffer_size, or leave whole_episodes out"
            )
        return True


def starts(ring: Ring, view: View, first: int, last: int) -> Tensor:
    """The starts among rows `first` to `last` - 1, oldest first."""
    blocks = torch.arange(-(-first // view.stride), -(-last // view.stride), device=ring.device)
    blocks = blocks % (ring.slots // view.stride)
    return (blocks.unsqueeze(1) * ring.num_envs + torch.arange(ring.num_envs, device=ring.device)).reshape(-1)


def weighted(batch: Batch, extras: dict[str, Tensor]) -> Batch:
    """The batch with `share` and `weight` [T, B] in its extras."""
    share = row_weight(batch.mask) if batch.shape[0] > 1 else batch.mask  # single rows are never masked
    weight = share * extras["weight"] if "weight" in extras else share
    return batch.replace(extras={**batch.extras, **extras, "share": share, "weight": weight})


def joined(one: Batch, other: Batch) -> Batch:
    """Two batches joined along the samples."""
    first, second = one.tensors(), other.tensors()
    found = {name: tree.cat([first[name], second[name]], int(name != "memory")) for name in first}
    return one.replace(**found)


def clipped(rollout: Batch, limit: float) -> Batch:
    """The rollout with the environment's rewards clipped to [-limit, limit]; 0: not clipped."""
    if not limit:
        return rollout
    if rollout.reward.dim() == 2:
        return rollout.replace(reward=rollout.reward.clamp(-limit, limit))
    environment = rollout.reward[..., :1].clamp(-limit, limit)
    return rollout.replace(reward=torch.cat((environment, rollout.reward[..., 1:]), -1))


def _shapes(tensors: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in tree.items(tensors)}
