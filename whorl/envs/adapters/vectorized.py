"""Environments that step as one batch with Gymnasium's interface: its own `VectorEnv`s, and EnvPool's."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from whorl.core.action_masks import flatten_mask
from whorl.core.arrays import MASK_KEY, SUCCESS, SUCCESS_KEYS
from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.envs.adapters.gymnasium import arrays_of, buffers_of, to_arrays, to_spec, to_tensors
from whorl.envs.snapshot import decode, encode
from whorl.envs.spaces import (
    batch_decoder,
    choices_of,
    leaf_at,
    make_layout,
    mask_in,
    nest,
    observation_parts,
)
from whorl.envs.stepping import SOFT_END, measured
from whorl.envs.vector import Bindable, Step, VectorEnv

STATE = dict.fromkeys(("CartPole-v0", "CartPole-v1"), ("state", "steps", "prev_done", "np_random"))
"""ids that Gymnasium steps as one batch, and the attributes that hold the state"""
LEAST = 8
"""environments from which that is faster: a step of the batch costs 39 us, of 1, 4 and 8 single ones 9, 24 and 45 us"""


def is_envpool(env: Any) -> bool:
    return hasattr(env, "all_env_ids") and "num_envs" in getattr(env, "config", ())


def is_vectorized(env: Any) -> bool:
    """Whether `BatchedVector` can step this."""
    return isinstance(env, GymnasiumVectorEnv) or is_envpool(env)


class BatchedVector(VectorEnv, Bindable):
    """A `VectorEnv` over one of Gymnasium's, or EnvPool's, with next-step autoreset.

    Args:
        state: attributes that hold the environment's whole state, for snapshots; without them there are none.
    """

    def __init__(self, env: Any, id: str, state: tuple[str, ...] = ()) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if getattr(mode, "value", mode) not in (None, "NextStep"):
            raise EnvError(
                f"{id} has autoreset mode {getattr(mode, 'name', mode)}, which can't be used; "
                "make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP"
            )
        self.id, self._env, self._state, self.snapshots = id, env, state, bool(state)
        self._num_envs = int(env.config["num_envs"] if is_envpool(env) else env.num_envs)
        self._ended = np.zeros(self._num_envs, bool)
        observation = getattr(env, "single_observation_space", env.observation_space)
        action = getattr(env, "single_action_space", env.action_space)
        _, info = self._reset(0)
        mask = mask_in(observation, action, info)
        self.layout = make_layout(observation, action, mask, measures=(SUCCESS,))
        self._tells_success = False
        self.spec = to_spec(self.layout, self._num_envs)
        parts = observation_parts(observation, action, self.layout.mask, batch_dims=1)
        self._readers, self._decode = [read for _, read in parts], batch_decoder(action)

    def reset(self, seed: int) -> Tree:
        self._ended = np.zeros(self._num_envs, bool)
        return self._observe(*self._reset(seed))

    def step(self, action: Tree) -> Step:
        actions = [leaf_at(action, leaf).cpu().numpy() for leaf in self.layout.action]
        obs, reward, terminated, truncated, info = self._env.step(self._decode(actions))
        reset, self._ended = self._ended, np.logical_or(terminated, truncated)
        soft = np.asarray(info.get(SOFT_END, np.zeros(self._num_envs)), bool)
        flags = (torch.as_tensor(flag, dtype=torch.bool) for flag in (terminated, truncated, reset, soft))
        step = Step(self._observe(obs, info), torch.as_tensor(reward, dtype=torch.float32), *flags)
        if self._tells_success or not info.keys().isdisjoint(SUCCESS_KEYS):
            step.measures = self._success(info)
        return step

    def bound_step(self, action: Tree, out: Step) -> Callable[[], None] | None:
        layout = self.layout
        given, buffers = arrays_of(layout.action, action), buffers_of(layout, out)
        if given is None or buffers is None or layout.mask != "none" or len(buffers.obs) > 1:
            return None
        (obs,), (read,), env, decode = buffers.obs, self._readers, self._env, self._decode

        def step_into() -> None:
            seen, buffers.reward[:], terminated, truncated, info = env.step(decode(given))
            obs[:] = np.reshape(read(seen), obs.shape)
            buffers.reset[:] = self._ended
            buffers.terminated[:], buffers.truncated[:] = terminated, truncated
            self._ended = np.logical_or(terminated, truncated)
            buffers.soft[:] = info.get(SOFT_END, False)
            if self._tells_success or not info.keys().isdisjoint(SUCCESS_KEYS):
                buffers.measures[:] = self._success(info).numpy()

        return step_into

    def snapshot(self) -> dict[str, Any]:
        if not self._state:
            return super().snapshot()
        return to_tensors({name: encode(getattr(self._env, name)) for name in self._state})

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        if snapshot.keys() != set(self._state):
            raise EnvError(
                f"the snapshot does not fit {self.id}; pass the environment that the run was started with"
            )
        for name, value in to_arrays(snapshot).items():
            setattr(self._env, name, decode(value, None))
        self._ended = self._env.prev_done
        if len(self._ended) != self._num_envs:
            raise EnvError(
                f"the snapshot has {len(self._ended)} environments of {self.id}, but {self._num_envs} are stepped; "
                f"use num_envs {len(self._ended)}"
            )
        return self._observe(self._env.state.T, {})

    def close(self) -> None:
        self._env.close()

    def _reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        # The seeds of EnvPool are fixed when it is made.
        return self._env.reset() if is_envpool(self._env) else self._env.reset(seed=seed)

    def _observe(self, obs: Any, info: dict[str, Any]) -> Tree:
        values = [read(obs) for read in self._readers]
        if self.layout.mask == "info":
            values.append(self._mask(info))
        arrays = [
            np.ascontiguousarray(value, leaf.dtype).reshape(-1, *leaf.shape)
            for value, leaf in zip(values, self.layout.observation)
        ]
        return nest(self.layout.observation, [torch.from_numpy(array) for array in arrays])

    def _success(self, info: dict[str, Any]) -> torch.Tensor:
        """Whether each episode succeeded [num_envs, 1]; nan where `info` has no success."""
        self._tells_success = True
        found = np.full(self._num_envs, np.nan, np.float32)
        for key in reversed(SUCCESS_KEYS):
            if key in info:
                given, values = self._given(info, key), np.asarray(info[key])
                if values.shape != found.shape or values.dtype.kind not in "biuf":  # not numbers alone
                    each = [
                        measured({key: told_by(env, info, key)}, SUCCESS) for env in range(self._num_envs)
                    ]
                    values = np.array(each, np.float32)
                found[given] = values[given]
        return torch.from_numpy(found).unsqueeze(1)

    def _mask(self, info: dict[str, Any]) -> np.ndarray:
        """The action masks [num_envs, n]; everything is allowed where `info` has none, as at the end of an episode."""
        mask = np.ones((self._num_envs, *self.layout.observation[-1].shape), bool)
        if MASK_KEY in info:
            choices, told = choices_of(self.layout.action_space), info[MASK_KEY]
            given = self._given(info, MASK_KEY)
            if isinstance(told, np.ndarray) and told.dtype != object:
                mask[given] = flatten_mask(choices, told, 1)[given]
            else:  # Gymnasium stacks arrays, but not lists, tuples and dicts of them
                for env in np.flatnonzero(given).tolist():
                    mask[env] = flatten_mask(choices, told_by(env, info, MASK_KEY))
        return mask

    def _given(self, info: dict[str, Any], key: str) -> np.ndarray:
        """Which environments have `key` in their infos [num_envs]."""
        return np.asarray(info.get(f"_{key}", np.ones(self._num_envs)), bool)


def told_by(env: int, info: Mapping[str, Any], key: str) -> Any:
    """The value of `key` in the info of one environment, out of the info of all; None where it has none."""
    if f"_{key}" in info and not info[f"_{key}"][env]:
        return None
    told = info[key]
    if isinstance(
        told, Mapping
    ):  # its entries are told apart by environment, and say in the same way whose they are
        return {part: told_by(env, told, part) for part in told if f"_{part}" in told}
    return told[env]
