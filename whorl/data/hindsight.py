"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495) as a view of the replay buffer.

A part of each batch is learned from as if another goal had been desired: one that was achieved in the same episode.
Nothing is copied or stored twice. `Hindsight.relabelled` draws a goal for each sample and returns the rows of the ring
as they would be with it, from which every kind of sample is gathered as from the ring itself: desired goals, rewards
of all rows (so n-step returns, too) and ends of episodes are those of the new goal.

An episode is a run of rows of one environment that follow each other. Its last row is the one that is no transition:
the row of the final observation, or the last one before a gap. So a cut ends it as a reset does, and an episode that
has not ended yet has the newest row as its last.
"""

from typing import Any

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.goals import ACHIEVED, DESIRED, GoalRewards
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.config import ReplayConfig
from whorl.data.ring import Ring, slots_for


class Episodes:
    """The first and the last stored row of each row's episode, kept up to date when rows are added.

    Every episode of an environment has a number, counted modulo the slots: more episodes than rows are never stored.
    All of it follows from the ring's `mask`, so it is not saved but computed when rows are loaded.
    """

    def __init__(self, slots: int, num_envs: int, device: torch.device) -> None:
        self.slots, self.num_envs = slots, num_envs
        self.episode = torch.zeros(slots, num_envs, dtype=torch.int32, device=device)
        """[slots, environments] number of each row's episode"""
        self.first = torch.zeros(slots, num_envs, dtype=torch.int64, device=device)
        """[episodes, environments] number of its first row, which may be overwritten already"""
        self.last = torch.zeros_like(self.first)
        """[episodes, environments] number of its last row so far"""
        self.newest = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """[environments] episodes so far, the newest included"""
        self.oldest = torch.zeros((), dtype=torch.int64, device=device)
        """number of the oldest stored row"""

    def extend(self, ring: Ring, steps: int) -> None:
        """The ring's newest `steps` rows were added."""
        row = torch.arange(ring.rows - steps, ring.rows, device=self.newest.device)
        begins = ~ring.columns["mask"].index_select(0, (row - 1) % self.slots)  # [T, B]
        number = self.newest + begins.cumsum(0)
        place = number % self.slots
        self.episode.index_copy_(0, row % self.slots, place.int())
        row = row.unsqueeze(1).expand_as(place)
        # Numbers of rows grow, so the largest one is the newest; what an older episode left behind is smaller.
        self.last.scatter_reduce_(0, place, row, "amax")
        self.first.scatter_reduce_(0, place, torch.where(begins, row, 0), "amax")
        self.newest.copy_(number[-1])
        self.oldest.fill_(ring.oldest)

    def rebuild(self, ring: Ring) -> None:
        """The ring's rows were loaded."""
        for table in (self.episode, self.first, self.last, self.newest):
            table.zero_()
        if ring.rows:
            self.extend(ring, ring.rows - ring.oldest)

    def bounds(self, slot: Tensor, env_index: Tensor) -> tuple[Tensor, Tensor]:
        """How many rows of its episode are stored before and after each row, given by slot [B] and environment [B]."""
        episode = self.episode.flatten().index_select(0, slot * self.num_envs + env_index)
        cell = episode * self.num_envs + env_index
        first, last = (table.flatten().index_select(0, cell) for table in (self.first, self.last))
        # Modulo the slots, because `slot` is the row modulo the slots and no two stored rows are further apart.
        return (slot - torch.maximum(first, self.oldest)) % self.slots, (last - slot) % self.slots


class Hindsight:
    """Draws goals for samples.

    Args:
        strategy: where the new goal was achieved: future, a later row of the episode, uniformly; final, its last row;
            episode, any row of it, uniformly.
        goals: samples with a new goal for each one with its own, on average.
        reward_clip: rewards are clipped to [-reward_clip, reward_clip]; 0: not clipped.
    """

    def __init__(
        self, ring: Ring, rewards: GoalRewards, strategy: str, goals: int, reward_clip: float = 0.0
    ) -> None:
        self.ring, self.rewards, self.strategy, self.reward_clip = ring, rewards, strategy, reward_clip
        self.ratio = goals / (goals + 1)
        self.episodes = Episodes(ring.slots, ring.num_envs, ring.device)

    def relabelled(self, slot: Tensor, env_index: Tensor, generator: torch.Generator) -> "Relabelled":
        """The ring as seen by samples that start at `slot` [B] of environment `env_index` [B]."""
        chosen, uniform = torch.rand(
            2, len(slot), dtype=torch.float64, generator=generator, device=slot.device
        )
        goal = self.goal_slot(slot, env_index, uniform)
        cell = self.ring.cells(goal, env_index)
        goals = self.ring.columns["obs"][ACHIEVED].flatten(0, 1).index_select(0, cell)
        return Relabelled(self.ring, self.rewards, goals, chosen < self.ratio, self.reward_clip)

    def goal_slot(self, slot: Tensor, env_index: Tensor, uniform: Tensor) -> Tensor:
        """The slot [B] where the new goal of each sample was achieved; `uniform` [B] are random numbers in [0, 1)."""
        before, after = self.episodes.bounds(slot, env_index)
        if self.strategy == "future":
            return slot + 1 + (uniform * after).long()
        if self.strategy == "final":
            return slot + after
        return slot - before + (uniform * (before + after + 1)).long()


class Relabelled:
    """Rows of a ring in which sample b, the last axis of all cells, has `goal[b]` as its desired goal where `chosen`.

    Has of a `Ring` what views gather from. Ends of episodes for reasons other than a goal stay; an episode that ended
    because its own goal was achieved continues if the new goal was not, and bootstraps from its final observation.
    """

    def __init__(
        self, ring: Ring, rewards: GoalRewards, goal: Tensor, chosen: Tensor, reward_clip: float = 0.0
    ) -> None:
        self._ring, self._rewards, self._goal, self._chosen = ring, rewards, goal, chosen
        self._reward_clip = reward_clip
        self.num_envs, self.slots, self.stride = ring.num_envs, ring.slots, ring.stride
        self.memories, self.cells = ring.memories, ring.cells

    def take(self, name: str, cell: Tensor) -> Tree:
        """Values of a column at cells [..., B]: [..., B, ...]."""
        stored = self._ring.take(name, cell)
        if name == "reward":
            return self._rewarded(stored, cell)
        if name in ("continues", "keep") and self._rewards.terminates:
            before, now = self._ended(cell)
            if name == "keep":  # returns stop where the episode would have ended
                return torch.where(self._chosen, stored & ~now, stored)
            return torch.where(self._chosen, (stored | before) & ~now, stored)
        return stored

    def observe(self, cell: Tensor) -> Tree:
        """Observations at cells [..., B], with the desired goals of their samples."""
        obs = self._ring.observe(cell)
        return {**obs, DESIRED: self._desired(obs[DESIRED])}

    def _desired(self, stored: Tensor) -> Tensor:
        """Desired goals [..., B, ...] of samples."""
        chosen = self._chosen.reshape(-1, *[1] * (self._goal.dim() - 1))
        return torch.where(chosen, self._goal.to(stored.dtype), stored)

    def _rewarded(self, stored: Tensor, cell: Tensor) -> Tensor:
        achieved = self._achieved(cell)
        found = self._ask(self._rewards.reward, achieved, self._goal.expand_as(achieved), cell)
        if self._reward_clip:
            found = found.clamp(-self._reward_clip, self._reward_clip)
        if stored.dim() == cell.dim():
            return torch.where(self._chosen, found, stored)
        # Intrinsic rewards do not depend on the goal.
        own = torch.where(self._chosen, found, stored[..., 0])
        return torch.cat((own.unsqueeze(-1), stored[..., 1:]), -1)

    def _ended(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Whether rows at cells end the episode because of the stored goal, and because of the new one."""
        achieved = self._achieved(cell)
        stored = self._ring.columns["obs"][DESIRED].flatten(0, 1).index_select(0, cell.reshape(-1))
        goals = (stored.reshape(achieved.shape), self._goal.expand_as(achieved))
        before, now = (self._ask(self._rewards.terminated, achieved, goal, cell) for goal in goals)
        return before, now

    def _achieved(self, cell: Tensor) -> Tensor:
        """The goals that the steps of rows at cells [..., B] achieved: those of the rows after them."""
        after = (cell + self.num_envs) % (self.slots * self.num_envs)
        column = self._ring.columns["obs"][ACHIEVED]
        return column.flatten(0, 1).index_select(0, after.reshape(-1)).reshape(*cell.shape, *column.shape[2:])

    def _ask(self, function: Any, achieved: Tensor, desired: Tensor, cell: Tensor) -> Tensor:
        lead = cell.dim()
        return function(achieved.flatten(0, lead - 1), desired.flatten(0, lead - 1)).reshape(cell.shape)


def check_goals(cfg: ReplayConfig, spec: Spec) -> None:
    """Raise if the settings ask for new goals and the observation has none, or samples can't be given one."""
    if cfg.her == "none":
        return
    keys = spec.observation if isinstance(spec.observation, dict) else {}
    missing = [key for key in (ACHIEVED, DESIRED) if key not in keys]
    if missing:
        raise ConfigError(
            f"her is {cfg.her}, but the observation has no {' and no '.join(missing)}; use an environment with goals, "
            "as those of Gymnasium-Robotics, or leave her out"
        )
    achieved, desired = keys[ACHIEVED], keys[DESIRED]
    plain = all(
        isinstance(goal, Array) and goal.stack == 1 and goal.start is None and not goal.nvec
        for goal in (achieved, desired)
    )
    if not plain or achieved.shape != desired.shape:
        raise ConfigError(
            f"her is {cfg.her}, but {ACHIEVED} and {DESIRED} are not two Box spaces of one shape, without a stack of "
            "frames; leave her out"
        )
    if cfg.recurrent and not cfg.whole_episodes:
        raise ConfigError(
            f"her is {cfg.her}, but sequences may begin within an episode, with a memory that has seen another goal; "
            "set whole_episodes to true"
        )
    if cfg.refreshes_log_prob:
        raise ConfigError(
            f"her is {cfg.her}, and refresh_probabilities would store log-probabilities that belong to other goals; "
            "leave one of them out"
        )


def hindsight_bytes(cfg: ReplayConfig, spec: Spec, stride: int) -> int:
    """Size of what is stored besides the ring, in bytes, without allocating it."""
    return 0 if cfg.her == "none" else slots_for(spec, cfg.buffer_size, stride) * spec.num_envs * 20
