"""First priorities of samples, found by whoever collects their rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.replay import starts, view_of, weighted
from whorl.data.ring import Ring, history_of
from whorl.data.samplers import sample_error


class InitialPriorities:
    """Follows the rows of some environments, and tells of every sample that they complete how wrong the agent is about it.

    A small ring of its own makes the samples just as the learner's replay will.

    Args:
        errors: those of a batch [T, B].
        memory: of one environment, where it is stored.
        steps: rows of a rollout.
    """

    def __init__(
        self,
        cfg: ReplayConfig,
        spec: Spec,
        device: torch.device,
        errors: Callable[[Batch], Tensor],
        memory: Tree,
        steps: int,
    ) -> None:
        self.cfg, self.errors, self.num_envs = cfg, errors, spec.num_envs
        self.view = view_of(cfg)
        stride = self.view.stride
        slots = -(-(steps + self.view.span + history_of(spec) + 1) // stride) * stride
        self.ring = Ring(spec, slots * spec.num_envs, device, memory=memory, stride=stride)
        self.count = completed(cfg, steps)

    def empty(self) -> Tensor:
        """As `add` gives it, with nothing found."""
        return torch.full((self.count, self.num_envs), torch.nan, device=self.ring.device)

    @torch.no_grad()
    def add(self, rollout: Batch) -> Tensor:
        """Errors of the samples that became whole [starts, environments], the newest last; nan where there was none."""
        ring, span, cfg = self.ring, self.view.span, self.cfg
        whole = max(0, ring.rows - span)
        clip = cfg.reward_clip_range if cfg.clip_reward else 0.0
        ring.add(rollout.replace(reward=rollout.reward.clamp(-clip, clip)) if clip else rollout)
        new = starts(ring, self.view, whole, max(0, ring.rows - span))
        found = self.empty()
        if len(new):
            batch = weighted(self.view.gather(ring, new), {})
            errors = sample_error(self.errors(batch), batch.mask, cfg.priority_eta)
            found[-(len(new) // self.num_envs) :] = errors.reshape(-1, self.num_envs)
        return found


def completed(cfg: ReplayConfig, steps: int) -> int:
    """How many samples of a environment a rollout of `steps` rows completes: as many each time, or nobody could match them."""
    stride = view_of(cfg).stride
    if steps % stride:
        raise ConfigError(
            f"num_steps {steps} is no multiple of stride {stride}, but actors find the priorities of samples that "
            "start every so many rows; change one of them, or leave priority_on_add out"
        )
    return steps // stride
