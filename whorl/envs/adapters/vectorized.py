"""Environments that Gymnasium itself steps as one batch: the same dynamics, one call for all environments."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from whorl.core.errors import EnvError
from whorl.core.tree import Tree
from whorl.envs.adapters.gymnasium import to_arrays, to_spec, to_tensors
from whorl.envs.snapshot import decode, encode
from whorl.envs.stepping import Factory, probe
from whorl.envs.vector import Step

STATE = {"CartPole-v0": ("state", "steps", "prev_done"), "CartPole-v1": ("state", "steps", "prev_done")}
"""ids that Gymnasium batches with next-step autoreset, and the attributes that hold their state"""


class BatchedVector:
    """A `VectorEnv` over Gymnasium's own batched implementation."""

    snapshots = True
    capturable = False

    def __init__(self, factory: Factory, num_envs: int, id: str) -> None:
        self.id = id
        self.spec = to_spec(probe(factory), num_envs)
        self._env: Any = gymnasium.make_vec(id, num_envs, vectorization_mode="vector_entry_point").unwrapped
        assert isinstance(self._env, GymnasiumVectorEnv)

    def reset(self, seed: int) -> Tree:
        return torch.from_numpy(self._env.reset(seed=seed)[0])

    def step(self, action: Tree) -> Step:
        reset = self._env.prev_done
        obs, reward, terminated, truncated, _ = self._env.step(action.cpu().numpy())
        return Step(*(torch.from_numpy(array) for array in (obs, reward, terminated, truncated, reset)))

    def snapshot(self) -> dict[str, Any]:
        return to_tensors({name: encode(getattr(self._env, name)) for name in (*STATE[self.id], "np_random")})

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        if snapshot.keys() != {*STATE[self.id], "np_random"}:
            raise EnvError(
                f"the snapshot is of another kind of {self.id}; pass the environment that the run had"
            )
        for name, value in to_arrays(snapshot).items():
            setattr(self._env, name, decode(value, None))
        num_envs = len(self._env.prev_done)
        if num_envs != self.spec.num_envs:
            raise EnvError(
                f"the snapshot holds {num_envs} environments of {self.id}, not {self.spec.num_envs}; make them alike"
            )
        return torch.from_numpy(self._env.state.T.astype(np.float32))

    def render(self, env_index: int = 0) -> np.ndarray | None:
        return None

    def close(self) -> None:
        self._env.close()
