"""A plain record of random episodes, against which every sample of the ring is held."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import LAST, Batch

GAMMA = 0.9


def spec(lanes: int) -> Spec:
    """A vector that names its row, and a small image: two dtypes in one tree."""
    return Spec({"row": Array((2,)), "image": Array((2, 2), "uint8")}, Discrete(5), lanes)


@dataclass
class Row:
    """All that is known of one row of one lane."""

    number: int
    reset: bool
    action: int = 0
    reward: float = 0.0
    discount: float = 0.0
    keep: bool = False
    mask: bool = False


@dataclass
class Recorder:
    """Random episodes on several lanes with next-step autoreset; rows are numbered per lane from 0."""

    lanes: int
    seed: int = 0
    end: float = 0.15
    rows: list[list[Row]] = field(default_factory=list)
    """[lane][row], the open row last"""

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.rows = [[Row(0, True)] for _ in range(self.lanes)]

    def rollout(self, steps: int, memory_stride: int = 0, last: bool = False) -> Batch:
        """The next `steps` rows of every lane, as a collector would give them.

        Memory before a row is its number and lane; with `last` also what was done and earned in the row before.
        """
        first = [len(lane) - 1 for lane in self.rows]
        for lane in self.rows:
            for _ in range(steps):
                self._step(lane)
        taken = [lane[start : start + steps + 1] for lane, start in zip(self.rows, first)]

        def column(name: str, count: int = steps) -> Tensor:
            return torch.tensor([[getattr(lane[t], name) for lane in taken] for t in range(count)])

        numbers = column("number", steps + 1)
        lane = torch.arange(self.lanes).expand_as(numbers)
        memories: dict[str, Any] = {}
        if memory_stride:
            h = torch.stack((numbers[:steps:memory_stride], lane[:steps:memory_stride]), -1).float()
            memories = {"net": {"h": h}}
        if memory_stride and last:
            opened = range(first[0], first[0] + steps, memory_stride)
            before = [[lane[row - 1] if row else Row(-1, False) for lane in self.rows] for row in opened]
            memories[LAST] = {
                "action": torch.tensor([[row.action for row in lanes] for lanes in before]),
                "reward": torch.tensor([[row.reward for row in lanes] for lanes in before]),
            }
        return Batch(
            obs={"row": torch.stack((numbers, lane), -1).float(), "image": image(numbers, lane)},
            reset=column("reset", steps + 1),
            action=column("action"),
            reward=column("reward"),
            discount=column("discount"),
            keep=column("keep").float(),
            mask=column("mask").float(),
            memories=memories,
            extras={"log_prob": column("number") * 0.5, "unused": column("reward")},
        )

    def restart(self) -> None:
        """All lanes start anew: what the newest row led to is lost."""
        for lane in self.rows:
            if not lane[-1].reset:
                lane[-2].mask = lane[-2].keep = False
                if len(lane) > 2:
                    lane[-3].keep = False
            lane[-1].reset = True

    def _step(self, lane: list[Row]) -> None:
        row = lane[-1]
        action, drawn = (
            torch.randint(5, (), generator=self.generator),
            torch.rand(3, generator=self.generator),
        )
        row.action = int(action)
        over = len(lane) > 1 and not lane[-2].keep and lane[-2].mask and not row.reset
        if over:
            lane.append(Row(row.number + 1, True))
            return
        row.mask, row.reward = True, float(drawn[0])
        row.keep = bool(drawn[1] > self.end)
        row.discount = GAMMA if row.keep or drawn[2] < 0.5 else 0.0
        lane.append(Row(row.number + 1, False))

    def fold(self, lane: int, start: int, n: int) -> tuple[float, float, bool, int]:
        """Reward, discount, keep and the row to bootstrap from, by walking."""
        reward, discount, at = 0.0, 1.0, start
        for at in range(start, start + n):
            row = self.rows[lane][at]
            reward += discount * row.reward
            discount *= row.discount
            if not row.keep:
                return reward, discount, False, at + 1
        return reward, discount, True, at + 1


def image(number: Tensor, lane: Tensor) -> Tensor:
    """Four bytes made of row and lane."""
    return (
        torch.stack((number, lane, number // 256, lane * 0 + 7), -1)
        .reshape(*number.shape, 2, 2)
        .to(torch.uint8)
    )


def samples(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """(position in the batch, lane, row number) of where each sample starts."""
    for b, (number, lane) in enumerate(batch.obs["row"][0].long().tolist()):
        yield b, lane, number


def tree_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(tree_equal(a[key], b[key]) for key in a)
    return bool(torch.equal(a, b)) if isinstance(a, Tensor) else a == b
