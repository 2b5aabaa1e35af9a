"""A plain record of random episodes, against which every sample of the ring is held."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import LAST, Batch

GAMMA = 0.9


def spec(num_envs: int) -> Spec:
    """A vector that names its row, and a small image: two dtypes in one tree."""
    return Spec({"row": Array((2,)), "image": Array((2, 2), "uint8")}, Discrete(5), num_envs)


@dataclass
class Row:
    """All that is known of one row of one environment."""

    number: int
    reset: bool
    action: int = 0
    reward: float = 0.0
    continues: bool = False
    keep: bool = False
    mask: bool = False


@dataclass
class Recorder:
    """Random episodes on several environments with next-step autoreset; rows are numbered per environment from 0."""

    num_envs: int
    seed: int = 0
    end: float = 0.15
    rows: list[list[Row]] = field(default_factory=list)
    """[environment][row], the open row last"""

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.rows = [[Row(0, True)] for _ in range(self.num_envs)]

    def rollout(self, steps: int, memory_stride: int = 0, last: bool = False) -> Batch:
        """The next `steps` rows of every environment, as a collector would give them.

        Memory before a row is its number and environment; with `last` also what was done and earned in the row before.
        """
        first = [len(env_index) - 1 for env_index in self.rows]
        for env_index in self.rows:
            for _ in range(steps):
                self._step(env_index)
        taken = [env_index[start : start + steps + 1] for env_index, start in zip(self.rows, first)]

        def column(name: str, count: int = steps) -> Tensor:
            return torch.tensor([[getattr(env_index[t], name) for env_index in taken] for t in range(count)])

        numbers = column("number", steps + 1)
        env_index = torch.arange(self.num_envs).expand_as(numbers)
        memories: dict[str, Any] = {}
        if memory_stride:
            h = torch.stack((numbers[:steps:memory_stride], env_index[:steps:memory_stride]), -1).float()
            memories = {"net": {"h": h}}
        if memory_stride and last:
            opened = range(first[0], first[0] + steps, memory_stride)
            before = [
                [env_index[row - 1] if row else Row(-1, False) for env_index in self.rows] for row in opened
            ]
            memories[LAST] = {
                "action": torch.tensor([[row.action for row in num_envs] for num_envs in before]),
                "reward": torch.tensor([[row.reward for row in num_envs] for num_envs in before]),
            }
        return Batch(
            obs={"row": torch.stack((numbers, env_index), -1).float(), "image": image(numbers, env_index)},
            reset=column("reset", steps + 1),
            action=column("action"),
            reward=column("reward"),
            continues=column("continues"),
            keep=column("keep").float(),
            mask=column("mask").float(),
            memories=memories,
            extras={"log_prob": column("number") * 0.5, "unused": column("reward")},
        )

    def restart(self) -> None:
        """All environments start again: what the newest row led to is lost."""
        for env_index in self.rows:
            if not env_index[-1].reset:
                env_index[-2].mask = env_index[-2].keep = False
                if len(env_index) > 2:
                    env_index[-3].keep = False
            env_index[-1].reset = True

    def _step(self, env_index: list[Row]) -> None:
        row = env_index[-1]
        action, drawn = (
            torch.randint(5, (), generator=self.generator),
            torch.rand(3, generator=self.generator),
        )
        row.action = int(action)
        over = len(env_index) > 1 and not env_index[-2].keep and env_index[-2].mask and not row.reset
        if over:
            env_index.append(Row(row.number + 1, True))
            return
        row.mask, row.reward = True, float(drawn[0])
        row.keep = bool(drawn[1] > self.end)
        row.continues = bool(row.keep or drawn[2] < 0.5)
        env_index.append(Row(row.number + 1, False))

    def fold(self, env_index: int, start: int, n: int) -> tuple[float, float, bool, int]:
        """Reward, discount, keep and the row to bootstrap from, by walking."""
        reward, discount, at = 0.0, 1.0, start
        for at in range(start, start + n):
            row = self.rows[env_index][at]
            reward += discount * row.reward
            discount *= GAMMA * row.continues
            if not row.keep:
                return reward, discount, False, at + 1
        return reward, discount, True, at + 1


def image(number: Tensor, env_index: Tensor) -> Tensor:
    """Four bytes made of row and environment."""
    return (
        torch.stack((number, env_index, number // 256, env_index * 0 + 7), -1)
        .reshape(*number.shape, 2, 2)
        .to(torch.uint8)
    )


def samples(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """(position in the batch, environment, row number) of where each sample starts."""
    for b, (number, env_index) in enumerate(batch.obs["row"][0].long().tolist()):
        yield b, env_index, number


def tree_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(tree_equal(a[key], b[key]) for key in a)
    return bool(torch.equal(a, b)) if isinstance(a, Tensor) else a == b
