"""Environments of MuJoCo Playground as one batch. Their state is JAX's, and stays on the device.

Playground's own training resets an environment to the state that it first began with; here each episode begins anew, as
with its `full_reset`. Physics are those of MJX in JAX (`impl: jax`).

Differs from Playground: an environment whose state diverged is terminated with reward 0, and its last sound observation
is the final one.
"""

import io
import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import EnvError, missing_extra, nearest
from whorl.core.hardware import has_display
from whorl.core.spec import Array, Continuous, Spec
from whorl.envs.adapters.dm_control import REMEDY
from whorl.envs.mjx.arrays import Compiled, cache_folder, jax_device, modules, to_jax, to_torch
from whorl.envs.vector import Step, VectorEnv
from whorl.envs.warp.world import kernels_notice

IMPL = "jax"
"""Playground's name for MJX in JAX"""
FIXED = {"impl": IMPL, "vision": False}
"""entries of a configuration that can't be chosen"""
COUNTS = ("episode_length", "action_repeat")
"""entries that are at least 1"""
DRAWN = ("qpos", "qvel", "mocap_pos", "mocap_quat")
"""what a picture depends on"""
TRACK, SIZE = "track", (480, 640)
"""the name of the camera that follows, height and width of frames"""
MENAGERIE = "https://github.com/google-deepmind/mujoco_menagerie"


def registry() -> Any:
    """Playground's registry; raises where it is not installed."""
    modules()
    try:
        with redirect_stdout(io.StringIO()):
            from mujoco_playground import registry as found
    except ImportError as error:
        raise missing_extra("playground", "playground") from error
    return found


def load(name: str, overrides: Mapping[str, Any]) -> tuple[Any, Any]:
    """An environment and its configuration; `overrides` are entries of the latter, such as `reward_config.scale`."""
    return _load(name, json.dumps(_flat(overrides), sort_keys=True))


@lru_cache(maxsize=4)
def _load(name: str, overrides: str) -> tuple[Any, Any]:
    config = registry().get_default_config(name)
    known = _flat(config.to_dict())
    for key, value in json.loads(overrides).items():
        _override(name, config, known, key, value)
    config.impl = IMPL
    try:
        return registry().load(name, config), config
    except (subprocess.CalledProcessError, OSError) as error:
        from mujoco_playground._src.mjx_env import MENAGERIE_COMMIT_SHA, MENAGERIE_PATH

        raise EnvError(
            f"playground:{name} needs the robots of MuJoCo Menagerie, which could not be downloaded; where there is a "
            f"network: git clone {MENAGERIE} {MENAGERIE_PATH} && git -C {MENAGERIE_PATH} checkout "
            f"{MENAGERIE_COMMIT_SHA}"
        ) from error


def _override(name: str, config: Any, known: dict[str, Any], key: str, value: Any) -> None:
    """Change one entry of a configuration."""
    if FIXED.get(key, value) != value:
        raise EnvError(f"{key} is {value!r}; it must be {FIXED[key]!r} here")
    if key not in known:
        raise EnvError(f"playground:{name} has no option {key!r}; {nearest(key, known)}")
    old = known[key]
    try:
        if isinstance(value, bool) != isinstance(old, bool) and old is not None:
            raise TypeError
        config.update_from_flattened_dict({key: value})
    except (TypeError, ValueError) as error:
        raise EnvError(
            f"{key} of playground:{name} is {value!r}; it must be of the kind of its default, {old!r}"
        ) from error
    if key in COUNTS and value < 1:
        raise EnvError(f"{key} of playground:{name} is {value}; it must be a number from 1 on")


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Entries of nested mappings by their path: `reward_config.scale`."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def spec_of(env: Any, num_envs: int) -> Spec:
    """Shapes of its observations, which may have keys such as `state` and `privileged_state`, and of its actions."""
    jax, _ = modules()
    shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    observation = jax.tree.map(lambda x: Array(x.shape, str(x.dtype)), shapes)
    size = env.action_size
    return Spec(observation, Continuous((size,), (-1.0,) * size, (1.0,) * size), num_envs)


class PlaygroundEnv(VectorEnv):
    """`num_envs` copies of an environment of Playground.

    Args:
        config: the environment's, of which `episode_length` and `action_repeat` are read.
        deterministic: the same bits every time on a GPU, too.
    """

    snapshots = True

    def __init__(
        self, id: str, env: Any, config: Any, num_envs: int, device: torch.device, deterministic: bool = False
    ) -> None:
        jax, _ = modules()
        self.id, self.spec, self.device = id, spec_of(env, num_envs), device
        self.max_steps = -(-int(config.episode_length) // int(config.action_repeat))
        """steps after which an episode is truncated"""
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """[B] the episode ended: the next step resets the environment"""
        self._where = jax_device(device)
        begin, advance = functions(env, num_envs, int(config.action_repeat))
        key = jax.random.PRNGKey(0)
        state = jax.eval_shape(begin, key)
        ended = jax.ShapeDtypeStruct((num_envs,), "bool")
        action = jax.ShapeDtypeStruct((num_envs, env.action_size), "float32")
        self._begin = Compiled(begin, (key,), self._where, deterministic)
        self._advance = Compiled(advance, (*state, ended, action), self._where, deterministic)
        self._structure = jax.tree.structure(state)
        self._env = env
        self._view: View | None = None
        self._state: Any = None
        """the key of all further random numbers, and Playground's state of all environments"""
        self._kept: Any = None
        seconds = self._begin.seconds + self._advance.seconds
        self.compile_notice = kernels_notice("MJX", seconds, cache_folder())

    def reset(self, seed: int) -> tree.Tree:
        jax, _ = modules()
        with jax.default_device(self._where):
            key = jax.random.PRNGKey(seed % 2**32)
        self._state = self._begin(key)
        self.steps.zero_()
        self.ended.zero_()
        return self._observe()

    @torch.no_grad()
    def step(self, action: tree.Tree) -> Step:
        if self._state is None:
            raise EnvError(f"{self.id} has no state yet; call reset(seed) before the first step")
        reset = self.ended.clone()
        before = self._state, self._kept
        self._state, self._kept = self._advance(*self._state, to_jax(reset), to_jax(action.clamp(-1, 1)))
        reward, terminated = (to_torch(array).clone() for array in self._kept)
        # Until here: only this step made JAX's stream wait for torch, which may still have been reading them.
        del before
        self.steps.add_(1).masked_fill_(reset, 0)
        truncated = (self.steps >= self.max_steps) & ~terminated
        torch.logical_or(terminated, truncated, out=self.ended)
        return Step(self._observe(), reward, terminated, truncated, reset)

    def snapshot(self) -> dict[str, Any]:
        leaves = [to_torch(leaf).clone() for leaf in modules()[0].tree.leaves(self._state)]
        return {"leaves": leaves, "steps": self.steps.clone(), "ended": self.ended.clone()}

    def restore(self, snapshot: dict[str, Any]) -> tree.Tree:
        num_envs = snapshot["steps"].shape[0]
        if num_envs != self.spec.num_envs:
            raise EnvError(
                f"the snapshot has {num_envs} environments of {self.id}, but this has {self.spec.num_envs}; use "
                f"{num_envs}"
            )
        leaves = [to_jax(leaf.to(self.device, copy=True)) for leaf in snapshot["leaves"]]
        self._state = modules()[0].tree.unflatten(self._structure, leaves)
        self.steps.copy_(snapshot["steps"])
        self.ended.copy_(snapshot["ended"])
        return self._observe()

    def render(self, env_index: int = 0) -> Any:
        """A frame drawn by MuJoCo on the host."""
        if self._view is None:
            self._view = View(self.id, self._env.mj_model)
        data = self._state[1].data
        return self._view.draw({name: to_torch(getattr(data, name))[env_index].cpu() for name in DRAWN})

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
        self._state = self._kept = self._view = None

    def _observe(self) -> tree.Tree:
        def leaf(array: Any) -> Tensor:
            # A copy, because the state must not be written to.
            return to_torch(array).clone()

        return modules()[0].tree.map(leaf, self._state[1].obs)


class View:
    """Pictures of a model by MuJoCo, from the camera that follows the robot, or the model's first."""

    def __init__(self, id: str, model: Any) -> None:
        try:
            import mujoco
            from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
        except ImportError as error:
            raise missing_extra("imageio", "playground") from error
        if not has_display():
            os.environ.setdefault("MUJOCO_GL", "egl")
        cameras = [model.camera(index).name for index in range(model.ncam)]
        camera = cameras.index(TRACK) if TRACK in cameras else min(0, model.ncam - 1)
        self.id, self._model, self._data = id, model, mujoco.MjData(model)
        self._forward = partial(mujoco.mj_forward, model, self._data)
        model.vis.global_.offheight, model.vis.global_.offwidth = SIZE
        self._renderer = MujocoRenderer(model, self._data, width=SIZE[1], height=SIZE[0], camera_id=camera)

    def draw(self, placed: Mapping[str, Tensor]) -> Any:
        """A frame [H, W, 3] with `placed` entries of MuJoCo's data."""
        for name, value in placed.items():
            getattr(self._data, name)[:] = value.numpy()
        self._forward()
        try:
            return self._renderer.render("rgb_array")
        except Exception as error:  # of any type: a missing driver can even raise an AttributeError
            raise EnvError(f"MuJoCo can't draw {self.id} here ({error}); {REMEDY}") from error

    def close(self) -> None:
        self._renderer.close()


def functions(env: Any, num_envs: int, repeat: int) -> tuple[Any, Any]:
    """Functions of arrays: the first state of all environments from a key, and a step of them."""
    jax, _ = modules()
    jnp = jax.numpy

    def typed(state: Any) -> Any:
        # Python's numbers in a state have a type that JAX does not hold to.
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)

    def begin(key: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, num_envs + 1)
        return keys[0], typed(jax.vmap(env.reset)(keys[1:]))

    def move(state: Any, action: Any) -> Any:
        def once(carry: Any, _: Any) -> tuple[Any, Any]:
            moved = env.step(carry, action)
            if repeat == 1:
                return moved, moved.reward
            over = carry.done > 0  # an episode that has ended is not continued
            return jax.tree.map(lambda x, y: jnp.where(over, x, y), carry, moved), moved.reward * ~over

        moved, rewards = jax.lax.scan(once, state, (), repeat)
        return moved.replace(reward=rewards.sum(0))

    def advance(key: Any, state: Any, ended: Any, action: Any) -> tuple[Any, Any]:
        stepped = jax.vmap(move)(state, action)
        sound = finite(stepped.obs) & finite(stepped.reward) & finite((stepped.data.qpos, stepped.data.qvel))
        terminated = (stepped.done > 0) | ~sound
        stepped = stepped.replace(obs=where(sound, stepped.obs, state.obs))
        reward = jnp.where(ended | ~sound, 0, stepped.reward)
        key, first = jax.lax.cond(ended.any(), begin, lambda key: (key, stepped), key)
        return (key, where(ended, first, stepped)), (reward, terminated & ~ended)

    def finite(values: Any) -> Any:
        leaves = [jnp.isfinite(x).reshape(num_envs, -1).all(1) for x in jax.tree.leaves(values)]
        return jnp.stack(leaves).all(0)

    def where(flags: Any, a: Any, b: Any) -> Any:
        def leaf(x: Any, y: Any) -> Any:
            return jnp.where(flags.reshape(num_envs, *[1] * (x.ndim - 1)), x, y)

        return jax.tree.map(leaf, a, b)

    return begin, advance
