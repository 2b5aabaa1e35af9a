"""Makes `reward`, `discount` and `keep` of a learning batch from what rollouts and the ring store.

Stored are rewards and `continues` (bool, False after a terminal state, after a lost life and on masked rows). gamma is
applied here, when a batch is made, so it may differ between reward streams and between environments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from whorl.core.spec import Stream
from whorl.data.batch import Batch

Gamma: TypeAlias = float | Tensor
"""discount per step: one number, or one per environment [num_envs]"""


@dataclass(frozen=True)
class Discounting:
    """Discounts and reward streams of one agent.

    Without streams every result is [T, B]. With streams, stored rewards are [T, B, 1 + S], index 0 the environment's:
    by default they are mixed into their weighted sum [T, B], discounted with the agent's gamma. With `separate`, every
    stream keeps its own reward, discount and keep [T, B, 1 + S].

    A stream that is not episodic continues across the end of an episode: its discount there is gamma, its keep 1. The
    masked row between two episodes then has reward 0, discount 1 and keep 1. (GAE decays by lambda once more there.)

    Args:
        gamma: the environment stream's discount, or a tensor [num_envs, 1 + S] with the discounts of all streams.
    """

    gamma: Gamma = 1.0
    streams: tuple[Stream, ...] = ()
    separate: bool = False

    @property
    def per_stream(self) -> bool:
        """Whether rewards, discounts and keep have a trailing stream axis."""
        return self.separate and bool(self.streams)

    @property
    def differs(self) -> bool:
        """Whether environments have discounts of their own."""
        return isinstance(self.gamma, Tensor)

    def reward(self, stored: Tensor) -> Tensor:
        """Rewards to learn from: [T, B], or [T, B, 1 + S] where streams are separate."""
        if self.separate or not self.streams:
            return stored
        environment, *others = stored.unbind(-1)
        for stream, reward in zip(self.streams, others):
            environment = environment + stream.weight * reward
        return environment

    def discount(self, continues: Tensor, mask: Tensor | None, env_index: Tensor | None = None) -> Tensor:
        """Discounts of rows with bool `continues` and `mask` [T, B]; without a mask all are transitions.

        `env_index` [B] gives the environment of each column, where gamma differs between environments.
        """
        if not self.per_stream:
            return continues * self._of(self.gamma, env_index)
        mask = torch.ones_like(continues) if mask is None else mask
        found = []
        for gamma, episodic in zip(self._gammas(), self._episodic()):
            gamma = self._of(gamma, env_index)
            found.append(continues * gamma if episodic else torch.where(mask, mask * gamma, 1.0))
        return torch.stack(found, -1)

    def keep(self, keep: Tensor) -> Tensor:
        """`keep` [T, B] as float, per stream where streams are separate: 1 for streams that are not episodic."""
        keep = keep.float()
        if not self.per_stream:
            return keep
        return torch.stack([keep if episodic else torch.ones_like(keep) for episodic in self._episodic()], -1)

    def apply(self, rollout: Batch) -> Batch:
        """A rollout as a batch to learn from; one that has discounts already is returned as it is."""
        if rollout.continues is None:
            return rollout
        return rollout.replace(
            reward=self.reward(rollout.reward),
            discount=self.discount(rollout.continues, rollout.mask > 0),
            keep=self.keep(rollout.keep),
            continues=None,
        )

    def _of(self, gamma: Gamma, env_index: Tensor | None) -> Gamma:
        return (
            gamma if env_index is None or not isinstance(gamma, Tensor) else gamma.index_select(0, env_index)
        )

    def _gammas(self) -> Sequence[Gamma]:
        if isinstance(self.gamma, Tensor) and self.gamma.dim() == 2:
            return self.gamma.unbind(1)
        return [self.gamma, *(stream.gamma for stream in self.streams)]

    def _episodic(self) -> list[bool]:
        return [True, *(stream.episodic for stream in self.streams)]


def with_streams(rollout: Batch, streams: tuple[Stream, ...], rewards: dict[str, Tensor]) -> Batch:
    """A rollout whose reward [T, B] is joined by the named rewards [T, B] of its streams: [T, B, 1 + S].

    A stream without rewards has 0, and so has every masked row.
    """
    if not streams:
        return rollout
    zero = torch.zeros_like(rollout.reward)
    others = [torch.where(rollout.mask > 0, rewards.get(stream.name, zero), zero) for stream in streams]
    return rollout.replace(reward=torch.stack([rollout.reward, *others], -1))
