"""The replay buffer that settings describe: its kind of samples, its size, and whether both fit."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.goals import GoalRewards
from whorl.core.spec import Array, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.config import ReplayConfig
from whorl.data.discounting import Gamma
from whorl.data.hindsight import check_goals, hindsight_bytes
from whorl.data.memory_check import allocating, require_memory
from whorl.data.replay import Replay
from whorl.data.ring import history_of, replay_bytes, slots_for
from whorl.data.samplers import Priorities, sampler_bytes
from whorl.data.views import Sequences, Transitions, View


def replay_of(
    cfg: ReplayConfig,
    spec: Spec,
    learner: torch.device,
    generator: torch.Generator,
    initial_priority: Callable[[Batch], Tensor],
    memory: Tree | None = None,
    refresh: Callable[[Batch], Tree] | None = None,
    refreshed: tuple[str, ...] = (),
    *,
    gamma: Gamma | None = None,
    separate_streams: bool = False,
    extras: Mapping[str, Array] | None = None,
    successors: tuple[int, ...] = (),
    goal_rewards: GoalRewards | None = None,
) -> Replay:
    """The replay buffer that the settings describe; `gamma` is the settings' unless given.

    Transitions give the observations `successors` steps later too (`Transitions`).
    """
    view = view_of(cfg, successors)
    priorities = Priorities(
        alpha=cfg.priority_alpha,
        beta=cfg.priority_beta,
        beta_steps=cfg.priority_beta_steps,
        eta=cfg.priority_eta,
        clip=cfg.priority_clip,
    )
    device = generator.device
    size = allocated_bytes(cfg, spec, device, memory, extras)
    require_memory(size, device, cfg.buffer_size)
    with allocating(size, device, cfg.buffer_size):
        return Replay(
            spec,
            device,
            generator,
            learner=learner,
            initial_priority=initial_priority if cfg.prioritized and cfg.priority_on_add else None,
            view=view,
            gamma=cfg.gamma if gamma is None else gamma,
            separate_streams=separate_streams,
            buffer_size=cfg.buffer_size,
            compress=cfg.compress,
            batch_size=cfg.batch_size,
            updates_per_step=cfg.updates_per_step,
            learning_starts=cfg.learning_starts,
            priorities=priorities if cfg.prioritized else None,
            reward_clip=cfg.reward_clip_range if cfg.clip_reward else 0.0,
            extras=extras,
            memory=memory,
            stride=view.stride,
            refresh=refresh,
            refreshed=refreshed,
            her=cfg.her,
            her_goals=cfg.her_goals,
            goal_rewards=goal_rewards,
        )


def allocated_bytes(
    cfg: ReplayConfig,
    spec: Spec,
    device: torch.device,
    memory: Tree | None,
    extras: Mapping[str, Array] | None = None,
) -> int:
    """Size of the replay buffer that the settings describe, with what draws from it; of all shards together."""
    if cfg.shards:
        part = replace(cfg, buffer_size=cfg.buffer_size // cfg.shards, shards=0)
        envs = spec.num_envs // cfg.shards
        return cfg.shards * allocated_bytes(part, spec.with_num_envs(envs), device, memory, extras)
    stride = view_of(cfg).stride
    starts = slots_for(spec, cfg.buffer_size, stride) // stride * spec.num_envs
    size = replay_bytes(
        spec, cfg.buffer_size, extras=extras, memory=memory, stride=stride, compress=cfg.compress
    )
    return size + sampler_bytes(starts, device, cfg.prioritized) + hindsight_bytes(cfg, spec, stride)


def view_of(cfg: ReplayConfig, successors: tuple[int, ...] = ()) -> View:
    """The kind of sample: transitions, or sequences for recurrent networks."""
    if not cfg.recurrent:
        return Transitions(cfg.n_step, successors, cfg.needs_steps)
    return Sequences(
        cfg.sequence_length,
        cfg.burn_in,
        1 if cfg.whole_episodes else cfg.sequence_stride,
        cfg.n_step,
        cfg.whole_episodes,
        cfg.memory_inputs,
        cfg.needs_steps,
    )


def check_replay(cfg: ReplayConfig, spec: Spec, rows: int) -> None:
    """Raise if rollouts of `rows` rows over all environments and samples do not fit the buffer.

    Each environment needs as many possible starts as a rollout has rows and as `stride` has; and at least three, since
    two consecutive rows may not be transitions: the final row of an episode, and the first row of the next one if the
    environments were restarted after it.
    """
    if cfg.recurrent and cfg.whole_episodes and cfg.burn_in:
        raise ConfigError(
            f"burn_in is {cfg.burn_in}, but with whole_episodes sequences begin with an empty memory, and their first "
            "rows would never be learned from; use one of the two"
        )
    if cfg.refresh_memory and not cfg.stores_memory:
        raise ConfigError(
            "refresh_memory updates stored recurrent states, but these settings store none; leave it out, or set "
            "memory and stored_memory, without whole_episodes"
        )
    check_goals(cfg, spec)
    view = view_of(cfg)
    slots, steps = slots_for(spec, cfg.buffer_size, view.stride), rows // spec.num_envs
    needed = max(steps, view.stride, 3) + view.span + history_of(spec)
    if slots < needed:
        sample = f"n_step {cfg.n_step}"
        if cfg.recurrent:
            needed = -(-needed // view.stride) * view.stride
            sample = f"sequences of {view.span + 1} rows (burn_in, sequence_length and n_step)"
        raise ConfigError(
            f"buffer_size is {cfg.buffer_size}, {slots} rows for each of {spec.num_envs} environments, but num_steps "
            f"{steps} and {sample} need {needed}; use a buffer_size of at least {needed * spec.num_envs}, or make one "
            "of them smaller"
        )
