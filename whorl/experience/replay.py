"""Off-policy experience: rollouts go into a ring, and batches are drawn from it in proportion to the steps seen."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Protocol

import torch
from torch import Tensor

from whorl.errors import ConfigError
from whorl.experience.batch import Batch
from whorl.experience.ring import Ring
from whorl.experience.samplers import Priorities, Prioritized, Sampler, Uniform, View
from whorl.spec import Array, Spec
from whorl.tree import Tree


class Experience(Protocol):
    """What turns rollouts into batches."""

    def add(self, rollout: Batch) -> None:
        """Take in a rollout; what is kept of it is copied."""

    def due(self) -> Iterator[tuple[str, Batch]]:
        """The batches to learn from now, each with the agent's method that learns from it."""

    def settle(self, batch: Batch, updated: Any) -> None:
        """What came of a batch; called before the next one is drawn."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Replay(Experience):
    """A ring with a view (transitions or sequences) and a sampler (even, or by `priorities`).

    Args:
        generator: on `device`; its position is saved with the random streams, not here.
        capacity: rows over all lanes.
        ratio: updates per environment step; fractions are carried over exactly.
        learn_after: no update is due for this many first steps.
        extras, memory, stride: see `Ring`.
    """

    def __init__(
        self,
        spec: Spec,
        device: torch.device | str,
        generator: torch.Generator,
        *,
        view: View,
        capacity: int,
        batch_size: int,
        ratio: float = 1.0,
        learn_after: int = 0,
        priorities: Priorities | None = None,
        extras: Mapping[str, Array] | None = None,
        memory: Tree | None = None,
        stride: int = 1,
    ) -> None:
        self.ring = Ring(spec, capacity, device, extras=extras, memory=memory, stride=stride)
        if memory and view.stride % stride:
            raise ConfigError(
                f"samples start every {view.stride} rows, but memory is stored every {stride}; use a multiple"
            )
        if self.ring.slots % view.stride or self.ring.slots <= view.span:
            raise ConfigError(
                f"a ring of {self.ring.slots} rows per lane holds no whole sample of {view.span + 1} rows "
                f"that starts every {view.stride}; change the replay capacity ({capacity}) or lanes ({spec.lanes})"
            )
        self.view, self.generator, self.batch_size = view, generator, batch_size
        self.ratio = Fraction(str(ratio))
        # At least one start of some lane is whole by then.
        self.learn_after = max(learn_after, spec.lanes * (view.span + view.stride - 1))
        self.steps = 0
        """environment steps seen"""
        self.drawn = 0
        """batches handed out"""
        size = self.ring.slots // view.stride * spec.lanes
        self.sampler: Sampler = (
            Prioritized(size, self.ring.device, priorities) if priorities else Uniform(size, self.ring.device)
        )

    @property
    def bytes(self) -> int:
        """Size of the ring; `replay_bytes` tells it beforehand."""
        return self.ring.bytes

    @torch.no_grad()
    def add(self, rollout: Batch) -> None:
        ring, span, steps = self.ring, self.view.span, rollout.shape[0]
        if steps + span > ring.slots:
            raise ConfigError(
                f"a rollout of {steps} rows leaves no sample of {span + 1} rows in a ring of {ring.slots} rows per "
                f"lane; use a replay capacity of at least {(steps + span) * ring.lanes}, or a smaller rollout_steps"
            )
        gone = self._starts(ring.oldest, max(ring.oldest, ring.rows + steps - ring.slots))
        self.sampler.release(gone, self.view.allowed(ring, gone))
        whole = max(0, ring.rows - span)
        ring.add(rollout)
        new = self._starts(whole, max(0, ring.rows - span))
        self.sampler.admit(new, self.view.allowed(ring, new))
        self.steps += int(rollout.mask.sum())  # once per rollout the host waits for the device

    def due(self) -> Iterator[tuple[str, Batch]]:
        total = int(self.ratio * max(0, self.steps - self.learn_after))
        while self.drawn < total:
            self.drawn += 1
            yield "update", self.sample()

    @torch.no_grad()
    def sample(self) -> Batch:
        """One batch; nothing here waits for the device."""
        start, extras = self.sampler.draw(self.batch_size, self.steps, self.generator)
        batch = self.view.gather(self.ring, start)
        return batch.replace(extras={**batch.extras, **extras})

    @torch.no_grad()
    def settle(self, batch: Batch, updated: Any) -> None:
        self.sampler.settle(batch, updated.priority)

    def cut(self) -> None:
        """Announce that the next rollout does not go on from the newest row."""
        self.ring.cut()

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "drawn": self.drawn,
            "ring": self.ring.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.drawn = int(state["steps"]), int(state["drawn"])
        self.ring.load_state_dict(state["ring"])
        self.sampler.load_state_dict(state["sampler"])

    def _starts(self, first: int, last: int) -> Tensor:
        """The starts among rows `first` to `last` - 1, oldest first."""
        stride, lanes, device = self.view.stride, self.ring.lanes, self.ring.device
        blocks = torch.arange(-(-first // stride), -(-last // stride), device=device)
        blocks = blocks % (self.ring.slots // stride)
        return (blocks.unsqueeze(1) * lanes + torch.arange(lanes, device=device)).reshape(-1)
