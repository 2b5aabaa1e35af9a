"""Where an agent's batches come from: each rollout once, or replay. Its config decides which, at construction."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from whorl.agents.families import OffPolicyConfig
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.data.batch import LOG_PROB, Batch
from whorl.data.replay import MEMORIES, Replay
from whorl.data.replay_setup import check_replay, replay_of, view_of
from whorl.data.ring import history_of, replay_bytes
from whorl.data.rollouts import Rollouts
from whorl.data.trajectories import Trajectories

if TYPE_CHECKING:
    from whorl.agents.agent import Agent


class OnPolicy:
    """Each rollout is learned from once."""

    off_policy = False
    tolerates_stale_data = False
    stores_memory = True

    def __init__(self, cfg: Any) -> None:
        self.chunk_length = getattr(cfg, "chunk_length", 1)
        self.overlaps = getattr(cfg, "overlap_rollouts", False)

    def check(self, agent: "Agent", rows: int) -> None:
        """Any rollout is accepted."""

    def stride(self, agent: "Agent") -> int:
        return self.chunk_length if agent.initial_memory(1) else 1

    def observe(self, agent: "Agent", rollout: Batch) -> None:
        """Statistics of observations are updated after the rollout is learned from."""

    def replay_bytes(self, agent: "Agent") -> int:
        return 0

    def build(self, agent: "Agent", generator: torch.Generator) -> Rollouts:
        return Rollouts(agent.discounting(), device=agent.device, overlaps=self.overlaps)


class OffPolicy:
    """Batches are sampled from a replay buffer."""

    off_policy = True
    tolerates_stale_data = True

    def __init__(self, cfg: OffPolicyConfig) -> None:
        self.cfg, self.stores_memory = cfg, cfg.stores_memory

    def check(self, agent: "Agent", rows: int) -> None:
        check_replay(self.cfg, agent.spec, rows)
        if self.cfg.normalize_obs:
            _require(agent, "normalize_obs", "observe", ("observations",))
        if self.cfg.prioritized and self.cfg.priority_on_add:
            _require(agent, "priority_on_add", "errors", ("observations", "critic_loss", "draw"))

    def stride(self, agent: "Agent") -> int:
        return self.cfg.sequence_stride if agent.stores_memory else 1

    def observe(self, agent: "Agent", rollout: Batch) -> None:
        _merge(agent, rollout)

    def replay_bytes(self, agent: "Agent") -> int:
        stride = view_of(self.cfg).stride
        return replay_bytes(
            agent.spec,
            self.cfg.buffer_size,
            extras=agent.columns(),
            memory=agent.stored(),
            stride=stride,
            compress=self.cfg.compress,
        )

    def build(self, agent: "Agent", generator: torch.Generator) -> Replay:
        refreshed = (
            *((MEMORIES,) if self.cfg.refresh_memory and agent.stores_memory else ()),
            *((LOG_PROB,) if self.cfg.refreshes_log_prob else ()),
        )
        refresh = agent.refreshed if refreshed else None
        return replay_of(
            *(
                self.cfg,
                agent.spec,
                agent.device,
                generator,
                agent.errors,
                agent.stored(),
                refresh,
                refreshed,
            ),
            **agent.replay_options(),
        )


class WithoutReplay(OnPolicy):
    """Each rollout is learned from once, by an algorithm that may also learn from replay."""

    tolerates_stale_data = True

    def __init__(self, cfg: OffPolicyConfig) -> None:
        super().__init__(cfg)
        self.cfg = cfg

    def check(self, agent: "Agent", rows: int) -> None:
        for setting in ("prioritized", "shards", "refresh_memory", "whole_episodes", "her"):
            if getattr(self.cfg, setting) not in (False, 0, "none"):
                raise ConfigError(
                    f"{setting} is about the replay buffer, but use_replay_buffer is false; leave one of them out"
                )

    def stride(self, agent: "Agent") -> int:
        return 1

    def observe(self, agent: "Agent", rollout: Batch) -> None:
        _merge(agent, rollout)

    def build(self, agent: "Agent", generator: torch.Generator) -> Trajectories:
        limit = self.cfg.reward_clip_range if self.cfg.clip_reward else 0.0
        return Trajectories(agent.discounting(), device=agent.device, reward_clip=limit)


def experience_of(cfg: Any) -> OnPolicy | OffPolicy:
    """The kind of experience that a config declares by `off_policy` and `use_replay_buffer`."""
    if not getattr(cfg, "off_policy", False):
        return OnPolicy(cfg)
    return OffPolicy(cfg) if getattr(cfg, "use_replay_buffer", True) else WithoutReplay(cfg)


def second_buffer(agent: "Agent", rows: int, generator: torch.Generator) -> Replay:
    """A replay buffer with samples of the agent's kind for `rows` rows of each environment, drawn uniformly."""
    view = view_of(agent.cfg)
    slots = rows + -(-(view.span + history_of(agent.spec) + 1) // view.stride) * view.stride
    cfg = replace(agent.cfg, buffer_size=slots * agent.spec.num_envs, prioritized=False)
    return OffPolicy(cfg).build(agent, generator)


def _merge(agent: "Agent", rollout: Batch) -> None:
    """Merge the observations of a rollout into their statistics, if they are normalised."""
    if agent.cfg.normalize_obs:
        obs = tree.to(tree.index(rollout.obs, slice(0, rollout.shape[0])), agent.device)
        preprocessor: Any = agent.observations
        preprocessor.merge_(obs, rollout.observed.to(agent.device))


def _require(agent: "Agent", setting: str, method: str, parts: tuple[str, ...]) -> None:
    """Raise if a setting needs `Agent.method`, which is not overridden and would miss some of its `parts`."""
    missing = [part for part in parts if not hasattr(agent, part)]
    name = type(agent).__name__
    if missing and getattr(type(agent), method).__module__ == "whorl.agents.agent":
        raise ConfigError(
            f"{setting} is true, but {name} has no {' and no '.join(missing)}, which Agent.{method} reads; define it, "
            f"override {method}, or leave {setting} out"
        )
