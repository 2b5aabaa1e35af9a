"""Atari games stepped by EnvPool's threads (Weng et al. 2022, arXiv:2206.10558) instead of worker processes.

Observations, rewards and ends are those of `whorl.envs.adapters.atari` under the same options, with three exceptions:
pixels may differ by 1 of 255; the last observation of a game that ends within a frame skip is of an earlier frame; and
`max_frames` counts from the first step, not from the no-ops before it. There are no snapshots.
"""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch

from whorl.core.errors import EnvError, missing_extra
from whorl.core.tree import Tree
from whorl.envs.adapters.atari import Atari
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.spaces import Factory, describe
from whorl.envs.stepping import env_seed
from whorl.envs.vector import Step, VectorEnv

NEVER = 2**30
SCREEN = (210, 160)
"""the only screen size that EnvPool supports"""


class EnvPoolVector(VectorEnv):
    """A `VectorEnv` over EnvPool; `factory` makes one game of `whorl.envs.adapters.atari`, whose options are used."""

    def __init__(self, factory: Factory, num_envs: int, id: str) -> None:
        self.id = id
        env = factory()
        self._task, self._options = _translate(env)
        layout = describe(env)
        env.close()
        # EnvPool does not show the memory of the console, from which rooms are counted.
        self.spec = replace(to_spec(layout, num_envs), measures=(), map_shape=None)
        self._soft_ends = layout.soft_ends
        # EnvPool has channels first, [stack * 3, height, width]; ours are last.
        self._colours = not self._options["gray_scale"]
        self._shape = self.spec.observation.shape
        self._pool: Any = None

    def reset(self, seed: int) -> Tree:
        self.close()
        num_envs = self.spec.num_envs
        seeds = [env_seed(seed, env_index) for env_index in range(num_envs)]
        # Seeds are fixed when a pool is made.
        self._pool = _envpool().make(
            self._task, env_type="gymnasium", num_envs=num_envs, seed=seeds, **self._options
        )
        obs, info = self._pool.reset()
        self._lives = info["lives"]
        self._ended = np.zeros(num_envs, bool)
        return self._observe(obs)

    def step(self, action: Tree) -> Step:
        choice = action.cpu().numpy().astype(np.int32)
        obs, reward, _, cut, info = self._pool.step(choice)
        reset, lives = self._ended, info["lives"]
        terminated = info["terminated"].astype(bool)
        truncated = cut & ~terminated
        self._ended = terminated | truncated
        soft = (lives < self._lives) & ~self._ended & ~reset & self._soft_ends
        self._lives = lives
        arrays = reward, terminated, truncated, reset, soft
        return Step(self._observe(obs), *(torch.from_numpy(array) for array in arrays))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _observe(self, obs: np.ndarray) -> torch.Tensor:
        if self._colours:
            obs = np.ascontiguousarray(np.moveaxis(obs, 1, 3))
        return torch.from_numpy(obs.reshape(-1, *self._shape))


def _translate(env: gymnasium.Env) -> tuple[str, dict[str, Any]]:
    """EnvPool's id for the game, and the options under EnvPool's names."""
    game = env.unwrapped
    assert isinstance(game, Atari)
    if game.obscure:
        raise EnvError("EnvPool can't obscure frames; leave out obscure, or use backend='ale'")
    if not game.noop_max:
        raise EnvError("EnvPool starts every episode with at least one no-op; use noop_max=1 or more")
    if game.native_screen != SCREEN:
        raise EnvError(
            f"EnvPool can't run {game.game}, whose screen is {game.native_screen}, not {SCREEN}; use backend='ale'"
        )
    options = {
        "stack_num": game.frame_stack,
        "frame_skip": game.frame_skip,
        "noop_max": game.noop_max,
        "use_fire_reset": game.fire_reset,
        "img_height": game.shape[0],
        "img_width": game.shape[1],
        "gray_scale": game.gray,
        "full_action_space": game.full_actions,
        "repeat_action_probability": game.sticky,
        "max_episode_steps": -(-game.max_frames // game.frame_skip) or NEVER,
    }
    return "".join(part.capitalize() for part in game.game.split("_")) + "-v5", options


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise missing_extra("envpool", "envpool") from error
    return envpool
