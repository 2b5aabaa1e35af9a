"""Initial priorities of new samples, computed by the actor that collected them (Horgan et al. 2018, Ape-X)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.discounting import Discounting
from whorl.data.replay import clipped, starts, weighted
from whorl.data.replay_setup import view_of
from whorl.data.ring import Ring, history_of
from whorl.data.samplers import sample_error


class InitialPriorities:
    """Computes the TD errors of all samples that new rows complete.

    A small ring of its own makes the same samples as the learner's replay buffer. Intrinsic rewards are computed at the
    learner, so these errors contain the environment's reward alone.

    Args:
        errors: TD errors of a batch [T, B].
        memory: recurrent state of one environment, if it is stored.
        steps: rows of a rollout.
        extras: columns that errors read besides those of every rollout.
        successors: as the learner's samples have them (`replay_of`).
    """

    def __init__(
        self,
        cfg: ReplayConfig,
        spec: Spec,
        device: torch.device,
        errors: Callable[[Batch], Tensor],
        memory: Tree,
        steps: int,
        extras: Mapping[str, Array],
        successors: tuple[int, ...],
    ) -> None:
        self.cfg, self.errors, self.num_envs = cfg, errors, spec.num_envs
        self.view = view_of(cfg, successors)
        stride = self.view.stride
        slots = -(-(steps + self.view.span + history_of(spec) + 1) // stride) * stride
        self.ring = Ring(
            replace(spec, streams=()),
            slots * spec.num_envs,
            device,
            extras=extras,
            memory=memory,
            stride=stride,
        )
        self.discounting = Discounting(cfg.gamma)
        self.count = completed(cfg, steps)

    def empty(self) -> Tensor:
        """The result of `add` for a rollout that completes no sample."""
        return torch.full((self.count, self.num_envs), torch.nan, device=self.ring.device)

    @torch.no_grad()
    def add(self, rollout: Batch) -> Tensor:
        """TD errors of the samples that became complete [starts, num_envs], newest last; nan where there is none."""
        ring, span, cfg = self.ring, self.view.span, self.cfg
        whole = max(0, ring.rows - span)
        ring.add(clipped(rollout, cfg.reward_clip_range if cfg.clip_reward else 0.0))
        new = starts(ring, self.view, whole, max(0, ring.rows - span))
        found = self.empty()
        if len(new):
            batch = weighted(self.view.gather(ring, new, self.discounting), {})
            errors = sample_error(self.errors(batch), batch.mask, cfg.priority_eta)
            found[-(len(new) // self.num_envs) :] = errors.reshape(-1, self.num_envs)
        return found


def completed(cfg: ReplayConfig, steps: int) -> int:
    """Number of samples per environment that each rollout of `steps` rows completes; it must be the same every time."""
    stride = view_of(cfg).stride
    if steps % stride:
        raise ConfigError(
            f"num_steps {steps} is not a multiple of sequence_stride {stride}, as priority_on_add with actors needs; "
            "change one of them, or leave priority_on_add out"
        )
    return steps // stride
