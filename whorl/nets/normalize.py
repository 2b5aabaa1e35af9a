"""Running statistics inside the agent, so that a saved policy includes them.

They are frozen while a rollout is collected and learned from, and updated afterwards: acting and learning use the same
values, so the probability ratio of a fresh batch is exactly one. With several learners they cover the rows of all.
"""

from typing import Any

import torch
from torch import Tensor, nn

from whorl.core import collectives, tree
from whorl.core.errors import CheckpointError
from whorl.core.spec import MASK_KEY, Array, Spec, SpecTree
from whorl.core.tree import Tree
from whorl.ops.sums import sums_by

EPSILON = 1e-6


class RunningStatistics(nn.Module):
    """Mean and variance of rows, merged batch by batch (Chan et al. 1979)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def merge_(self, rows: Tensor, weight: Tensor) -> None:
        """Add `rows` [N, ...]; rows with `weight` [N] 0 are ignored."""
        weight = weight.to(rows.dtype)
        spread = tree.expand(weight, rows)
        total = collectives.total(weight.sum())
        size = total.clamp(min=1)
        mean = collectives.total((rows * spread).sum(0)) / size
        # The sum of large numbers is rounded, that of what is left is not: the mean of equal rows is their value.
        mean = mean + collectives.total(((rows - mean) * spread).sum(0)) / size
        var = collectives.total(((rows - mean).square() * spread).sum(0)) / size
        both = self.count + total
        share = (total / both.clamp(min=1)).to(mean.dtype)
        delta = mean - self.mean
        # The first batch replaces the initial statistics: its share is exactly one.
        self.var.copy_(self.var * (1 - share) + var * share + delta.square() * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(both)


class RecentStatistics(nn.Module):
    """Mean and variance of the newest rows: the last whole block of at least `window` rows, and what came since."""

    mean: Tensor
    var: Tensor

    def __init__(self, shape: tuple[int, ...], window: int) -> None:
        super().__init__()
        self.window = window
        self.before, self.since = RunningStatistics(shape), RunningStatistics(shape)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))

    @torch.no_grad()
    def merge_(self, rows: Tensor, weight: Tensor) -> None:
        """Add `rows` [N, ...]; rows with `weight` [N] 0 are ignored."""
        before, since = self.before, self.since
        since.merge_(rows, weight)
        share = (since.count / (before.count + since.count).clamp(min=1)).to(self.mean.dtype)
        delta = since.mean - before.mean
        between = delta.square() * (share * (1 - share))
        self.mean.copy_(before.mean + delta * share)
        self.var.copy_(before.var * (1 - share) + since.var * share + between)
        whole = since.count >= self.window
        for old, new in zip(before.buffers(), since.buffers()):
            old.copy_(torch.where(whole, new, old))
        since.count.masked_fill_(whole, 0)  # the next rows replace mean and variance


class Observations(nn.Module):
    """Per-key normalisation of float observations, (x - mean) / sqrt(var + 1e-6), clipped to [-clip, clip].

    Images (uint8) are scaled to [0, 1] instead; action masks, one-hots and other binary observations are left as they
    are: a flag that was never seen has no variance, and its first 1 would become 1000.

    Args:
        clip: 0: not clipped.
    """

    def __init__(self, observation: SpecTree, enabled: bool, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.kinds: dict[str, str] = {}
        self.statistics = nn.ModuleDict()
        for path, leaf in tree.items(observation):
            self.kinds[path] = kind = _kind(path, leaf, enabled)
            if kind == "running":
                self.statistics[_key(path)] = Scale(leaf.shape)
        self._plain = list(self.kinds) == [""]

    def forward(self, obs: Tree) -> Tree:
        if self._plain:
            return self._leaf("", obs)
        return _map_paths(self._leaf, obs)

    def _leaf(self, path: str, value: Tensor) -> Tensor:
        kind = self.kinds[path]
        if kind == "running":
            value = self._of(path)(value)
            return value.clamp(-self.clip, self.clip) if self.clip > 0 else value
        if kind == "image":
            return value.to(torch.float32, copy=True).div_(255)
        return value

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for path, kind in self.kinds.items():
            if kind == "binary" and f"{prefix}statistics.{_key(path)}.mean" in state_dict:
                raise CheckpointError(
                    f"this checkpoint normalises the observation{f' {path!r}' if path else ''}, which is one-hot or "
                    "binary and stays as it is in this version; load its policy, or train again"
                )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _of(self, path: str) -> "Scale":
        module = self.statistics[_key(path)]
        assert isinstance(module, Scale)
        return module

    @torch.no_grad()
    def merge_(self, obs: Tree, weight: Tensor) -> None:
        """Merge raw observations [T, B, ...]; rows with weight [T, B] 0 are ignored."""
        flat = weight.reshape(-1)
        for path, value in tree.items(obs):
            if self.kinds[path] == "running":
                self._of(path).merge_(value.flatten(0, 1), flat)

    def values(self) -> dict[str, dict[str, list[float] | float]]:
        """Mean, standard deviation, variance and count per key, as plain numbers."""
        return {
            path or "observation": {
                "mean": self._of(path).mean.flatten().tolist(),
                "std": (self._of(path).var + EPSILON).sqrt().flatten().tolist(),
                "var": self._of(path).var.flatten().tolist(),
                "count": float(self._of(path).count),
            }
            for path, kind in self.kinds.items()
            if kind == "running"
        }


class Scale(RunningStatistics):
    """Running statistics with a cached scale."""

    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, value: Tensor) -> Tensor:
        # Not value * scale - mean * scale, which rounds products: a constant of 1e5 would become 4.
        return (value - self.mean) * self.scale

    @torch.no_grad()
    def merge_(self, rows: Tensor, weight: Tensor) -> None:
        super().merge_(rows, weight)
        self.scale.copy_((self.var + EPSILON).rsqrt())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        state_dict.pop(f"{prefix}shift", None)  # of earlier versions, which held -mean * scale
        super()._load_from_state_dict(state_dict, prefix, *others)


class ReturnScale(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, without subtracting a mean (as CO-GYM).

    With reward streams [T, B, 1 + S] only the environment's, index 0, is followed and scaled.
    """

    running: Tensor

    def __init__(self, num_envs: int, enabled: bool, clip: float) -> None:
        super().__init__()
        self.enabled = enabled
        self.clip = clip
        self.statistics = RunningStatistics(())
        self.register_buffer("running", torch.zeros(num_envs))

    @torch.no_grad()
    def merge_(self, reward: Tensor, keep: Tensor, mask: Tensor, gamma: float) -> None:
        """Continue each environment's discounted return over a rollout [T, B] and merge its values."""
        if not self.enabled:
            return
        if reward.dim() > mask.dim():
            reward, keep = reward[..., 0], keep[..., 0]
        reward = torch.where(mask > 0, reward, 0.0)  # 0 * nan would be nan
        decay = torch.where(mask > 0, gamma, 1.0)  # what crosses episodes is not discounted between them
        seen = torch.empty_like(reward)
        running = collectives.part(self.running).clone()
        for row in range(reward.shape[0]):
            running = running * decay[row] + reward[row]
            seen[row] = running
            running = running * keep[row]
        self.running.copy_(collectives.whole(running))
        self.follow_(seen, mask)

    @torch.no_grad()
    def forget_(self, where: Tensor | None = None) -> None:
        """Start again from 0 in the environments `where` [B]; default: in all."""
        if where is None:
            self.running.zero_()
        elif self.enabled:
            self.running.masked_fill_(where.to(self.running.device), 0.0)

    def follow_(self, seen: Tensor, mask: Tensor) -> None:
        """Merge discounted returns [T, B]."""
        self.statistics.merge_(seen.flatten(), mask.flatten())

    def scale(self) -> Tensor:
        """The factor of rewards."""
        return (self.statistics.var + EPSILON).rsqrt()

    def forward(self, reward: Tensor) -> Tensor:
        """Scaled and clipped rewards [T, B] or [T, B, 1 + S]."""
        if reward.dim() > 2:
            return torch.cat((self(reward[..., 0]).unsqueeze(-1), reward[..., 1:]), -1)
        if self.enabled:
            reward = reward * self.scale()
        return reward.clamp(-self.clip, self.clip) if self.clip > 0 else reward


class BoundedReturnScale(ReturnScale):
    """Divides rewards by max(std(G), max|G| / bound), G the discounted return: no return seen so far exceeds `bound`
    then (FlashSAC, arXiv:2604.04539)."""

    largest: Tensor

    def __init__(self, num_envs: int, enabled: bool, bound: float) -> None:
        super().__init__(num_envs, enabled, 0.0)
        self.bound = bound
        self.register_buffer("largest", torch.zeros(()))

    def follow_(self, seen: Tensor, mask: Tensor) -> None:
        super().follow_(seen, mask)
        # In a masked row the return is that of the row before.
        self.largest.copy_(torch.maximum(self.largest, seen.abs().amax()))

    def scale(self) -> Tensor:
        return torch.minimum(super().scale(), self.bound / self.largest.clamp(min=EPSILON))


class DeviationByPolicy(nn.Module):
    """Running root mean square of errors for each of several policies."""

    square: Tensor

    def __init__(self, policies: int, rate: float = 0.01, least: float = 0.01) -> None:
        super().__init__()
        self.rate, self.least = rate, least
        self.register_buffer("square", torch.ones(policies))

    def of(self, index: Tensor) -> Tensor:
        """That of the policies `index` [...]."""
        return self.square[index].sqrt().clamp(min=self.least)

    @torch.no_grad()
    def merge_(self, error: Tensor, index: Tensor, mask: Tensor) -> None:
        """Follow the errors [T, B] of the policies `index` [T, B] where `mask` [T, B] is above 0."""
        flat, weight = index.flatten(), (mask > 0).float().flatten()
        error = torch.where(weight > 0, error.flatten(), 0.0)
        count = collectives.total(sums_by(flat, weight, len(self.square)))
        total = collectives.total(sums_by(flat, error.square(), len(self.square)))
        step = torch.where(count > 0, self.rate, 0.0)
        self.square.lerp_(total / count.clamp(min=1), step)


def normalizers(spec: Spec, cfg: Any) -> tuple[Observations, ReturnScale]:
    """Those of an on-policy agent's observations and rewards, as its settings describe them."""
    observations = Observations(
        spec.observation, cfg.normalize_obs, cfg.obs_clip_range if cfg.clip_obs else 0
    )
    clip = cfg.reward_clip_range if cfg.clip_reward else 0
    return observations, ReturnScale(spec.num_envs, cfg.normalize_reward, clip)


def _kind(path: str, leaf: Array, enabled: bool) -> str:
    if path.rpartition(".")[2] == MASK_KEY:
        return "mask"
    if leaf.dtype == "uint8":
        return "image"
    if leaf.binary:
        return "binary"
    return "running" if enabled and leaf.dtype.startswith("float") else "raw"


def _key(path: str) -> str:
    return path.replace(".", "/") or "observation"


def _map_paths(fn, value: Tree, prefix: str = "") -> Tree:  # type: ignore[no-untyped-def]  # fn: (path, leaf) -> leaf
    if isinstance(value, dict):
        return {k: _map_paths(fn, v, f"{prefix}.{k}" if prefix else k) for k, v in value.items()}
    return fn(prefix, value)
