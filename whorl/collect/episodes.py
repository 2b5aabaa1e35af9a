"""Episodes that ended while rollouts were collected: sums over all of them, and on request each one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.arrays import SUCCESS
from whorl.data.batch import Batch


@dataclass(frozen=True)
class Episode:
    """One finished episode of training."""

    env_index: int
    """of its environment among all parallel environments"""
    total_reward: float
    """the episode's return: its rewards, undiscounted and not scaled"""
    length: int
    """steps"""
    success: bool | None = None
    """`is_success` or `success` in its last `info`; None where there is neither"""
    measures: dict[str, float] = field(default_factory=dict)
    """numbers in its last `info` that the environment names in its attribute `measures`"""


class Statistics(Protocol):
    """Sums over steps and episodes, see `EpisodeStatistics.FIELDS`."""

    ended: list[Episode]
    """the episodes since this list was last emptied, if they are recorded"""

    def drain(self) -> dict[str, float]:
        """Sums since the last call."""

    def forget(self) -> None:
        """Drop the episodes that have not ended."""


def reported(measure: str) -> str:
    """The name of the count of episodes that reported a measure."""
    return f"{measure} episodes"


class EpisodeStatistics:
    """Counts steps and episodes and sums returns across rollouts, without a loop and without a host sync.

    For each environment it keeps the sums of the episode that has not ended; ended episodes are summed over all.

    Args:
        numbers: of these environments in the run; default: from 0.
    """

    record = False
    """whether to keep each episode in `ended`"""
    FIELDS = ("steps", "episodes", "return", "length", "bad_observation", "bad_reward")

    def __init__(
        self,
        num_envs: int,
        device: torch.device,
        measures: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.measures, self.numbers = tuple(measures), numbers
        self.fields = (*self.FIELDS, *measures, *(reported(name) for name in measures))
        self.ended: list[Episode] = []
        self.open = torch.zeros(2, num_envs, dtype=torch.float64, device=device)
        self.sums = torch.zeros(len(self.fields), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, soft: Tensor, measures: Tensor) -> None:
        """Count a rollout. `soft` [T, B] ends do not end the episode; `measures` [T, B, N] count at its end.

        Measures that are nan were not reported.
        """
        ended = (batch.keep == 0) & (batch.mask > 0) & ~soft  # [T, B]
        earned = torch.stack([batch.reward.double(), batch.mask.double()]).cumsum(1)  # [2, T, B]
        rows = torch.arange(1, len(ended) + 1, device=ended.device).unsqueeze(1)
        last = (ended * rows).amax(0)  # [B], 0 where no episode ended
        until = earned.gather(1, (last - 1).clamp(min=0).expand(2, 1, -1)).squeeze(1)  # [2, B]
        any_ended = last > 0
        if self.record:
            self._record(ended, earned, measures)
        finished = torch.where(any_ended, self.open + until, 0.0).sum(1)
        self.open.copy_(torch.where(any_ended, earned[:, -1] - until, self.open + earned[:, -1]))
        bad_obs = sum(
            ~torch.isfinite(leaf).all() for leaf in tree.leaves(batch.obs) if leaf.is_floating_point()
        )
        counts = [batch.mask.sum(), ended.sum(), finished[0], finished[1]]
        bad = [torch.as_tensor(bad_obs, device=ended.device), ~torch.isfinite(batch.reward).all()]
        self.sums[: len(self.FIELDS)].add_(torch.stack([value.double() for value in [*counts, *bad]]))
        # On a CPU nothing waits for the answer, and most short rollouts end no episode.
        if self.measures and (ended.device.type != "cpu" or bool(any_ended.any())):
            known = ended.unsqueeze(-1) & measures.isfinite()  # [T, B, N]
            sums = torch.where(known, measures, 0.0).double().sum((0, 1))
            self.sums[len(self.FIELDS) :].add_(torch.cat((sums, known.sum((0, 1)).double())))

    def _record(self, ended: Tensor, earned: Tensor, measures: Tensor) -> None:
        """Keep each episode that ended, in the order of their ends."""
        earned, measures, before = earned.cpu(), measures.cpu(), -self.open.cpu()
        for row, env in ended.nonzero().tolist():
            total, length = (earned[:, row, env] - before[:, env]).tolist()
            before[:, env] = earned[:, row, env]
            found = dict(zip(self.measures, measures[row, env].tolist()))
            known = {name: value for name, value in found.items() if math.isfinite(value)}
            success = known.pop(SUCCESS, None)
            self.ended.append(
                Episode(
                    env if self.numbers is None else self.numbers[env],
                    total,
                    round(length),
                    None if success is None else bool(success),
                    known,
                )
            )

    def forget(self) -> None:
        """Drop the episodes that have not ended."""
        self.open.zero_()

    def drain(self) -> dict[str, float]:
        """Sums since the last call, in one transfer."""
        found = dict(zip(self.fields, self.sums.tolist()))
        self.sums.zero_()
        return found

    def state_dict(self) -> dict[str, Tensor]:
        return {"open": self.open, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        tree.restore_(self.open, state["open"])
        self.sums.zero_()[: len(state["sums"])] = state["sums"]  # runs of earlier versions have fewer fields
