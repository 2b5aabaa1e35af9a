"""Gymnasium environments as environments: spaces into a `Spec`, and stepping in this process."""

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import EnvError, nearest
from whorl.core.spec import Array, Continuous, Discrete, MultiDiscrete, Spec, SpecTree, TupleSpec
from whorl.core.tree import Tree
from whorl.envs.adapters import (
    atari,
    bumps_bullet,
    dm_control,
    minatar,
    minigrid,
    pybullet,
    reacher,  # noqa: F401 - registers an id
)
from whorl.envs.stepping import (
    Buffers,
    EnvStepper,
    Factory,
    Layout,
    children,
    choices_of,
    make_registered,
    missing_package,
    nest,
    probe,
)
from whorl.envs.vector import Step
from whorl.envs.wrappers import observation_wrappers, split


def factory_from_id(id: str, **kwargs: Any) -> Factory:
    """A function that makes the registered environment `id`, also in a worker that registered nothing.

    All have options that say what is seen of them (`whorl.envs.wrappers`); with `frame_stack`, that many frames are seen
    together, and one of them is stored.
    """
    spec = _find(id)
    kwargs, seen = split(kwargs)
    if "frame_stack" in seen and atari.made(spec):
        kwargs["stack"] = seen.pop("frame_stack")
    try:
        if isinstance(spec.entry_point, str):
            load_env_creator(spec.entry_point)
    except (ImportError, DependencyNotInstalled) as error:
        raise missing_package(id, error) from error
    own = {
        pybullet: pybullet.make_bullet,
        bumps_bullet: bumps_bullet.make_bumps,
        minigrid: minigrid.make_grid,
    }
    make = next((make for package, make in own.items() if package.owns(spec.id)), make_registered)
    # Environments never step before a reset, and checking is a tool of its own: those wrappers don't earn their time.
    factory = partial(make, replace(spec, order_enforce=False), kwargs)
    return observation_wrappers(factory, seen)


def whole_id(id: str) -> str:
    """The id with its version, by which tuned settings know it: Pong is ALE/Pong-v5."""
    return _find(id).id


class GymnasiumVector:
    """`num_envs` Gymnasium environments stepped one after another in this process; a `VectorEnv`."""

    capturable = False

    def __init__(self, factory: Factory, num_envs: int, id: str) -> None:
        layout = probe(factory)
        self._take(EnvStepper(factory, layout, list(range(num_envs))), id)

    @classmethod
    def over(cls, num_envs: EnvStepper, id: str) -> "GymnasiumVector":
        """The same over environments that exist already, such as a worker's own."""
        vector = cls.__new__(cls)
        vector._take(num_envs, id)
        return vector

    def _take(self, stepped: EnvStepper, id: str) -> None:
        self.id, self._envs, self.layout = id, stepped, stepped.layout
        num_envs = len(stepped)
        self.spec = to_spec(self.layout, num_envs)
        self.snapshots = self.layout.snapshots
        self._buffers = Buffers.empty(self.layout, num_envs)
        self._action = [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self.layout.action]
        self._action_tensors = nest(self.layout.action, [torch.from_numpy(leaf) for leaf in self._action])
        self._step = to_step(self.layout, self._buffers)

    def reset(self, seed: int) -> Tree:
        self._envs.reset(seed, self._buffers)
        return self._step.obs

    def step(self, action: Tree) -> Step:
        tree.copy_(self._action_tensors, action)
        self._envs.step(self._action, self._buffers)
        return replace(self._step)

    def snapshot(self) -> dict[str, Any]:
        return {
            "obs": tree.clone(self._step.obs),
            "num_envs": [to_tensors(env_index) for env_index in self._envs.snapshot()],
        }

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        check_num_envs(snapshot, self.spec.num_envs)
        self._envs.restore([to_arrays(env_index) for env_index in snapshot["num_envs"]])
        tree.copy_(self._step.obs, snapshot["obs"])
        return self._step.obs

    def render(self, env_index: int = 0) -> np.ndarray | None:
        return self._envs.render(env_index)

    def close(self) -> None:
        self._envs.close()


def to_spec(layout: Layout, num_envs: int) -> Spec:
    """What an agent may know of an environment with this layout."""
    arrays = [
        Array(leaf.shape, leaf.dtype, leaf.low, leaf.high, leaf.stack, leaf.axis, leaf.start, leaf.plane)
        for leaf in layout.observation
    ]
    return Spec(nest(layout.observation, arrays), action_spec(layout.action_space), num_envs, layout.measures)


def action_spec(space: spaces.Space) -> SpecTree:
    """The action tree of a space: MultiBinary is MultiDiscrete of twos, a Tuple is keyed "0", "1", …"""
    inner = children(space)
    if inner:
        kind = TupleSpec if isinstance(space, spaces.Tuple) else dict
        return kind({key: action_spec(child) for key, _, child in inner})
    dtype = str(space.dtype)
    if isinstance(space, spaces.Box):
        low = np.where(space.bounded_below, space.low, -np.inf).reshape(-1).tolist()
        high = np.where(space.bounded_above, space.high, np.inf).reshape(-1).tolist()
        return Continuous(space.shape, tuple(low), tuple(high), dtype)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start), dtype)
    shape = space.shape if len(space.shape or ()) != 1 else None
    start = getattr(space, "start", np.zeros(0, np.int64))
    start = tuple(start.reshape(-1).tolist()) if start.any() else ()
    return MultiDiscrete(choices_of(space), start, shape, dtype)


def to_step(layout: Layout, buffers: Buffers) -> Step:
    """Tensors that share the buffers' memory."""
    share = torch.from_numpy
    obs = nest(layout.observation, [share(leaf) for leaf in buffers.obs])
    flags = buffers.terminated, buffers.truncated, buffers.reset, buffers.soft, buffers.measures
    return Step(obs, share(buffers.reward), *(share(flag) for flag in flags))


def to_tensors(value: Any) -> Any:
    """Plain data with its numpy arrays as tensors, which `torch.load(weights_only=True)` reads."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: to_tensors(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_tensors(inner) for inner in value]
    return value


def to_arrays(value: Any) -> Any:
    """The inverse of `to_tensors`."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if isinstance(value, dict):
        return {key: to_arrays(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_arrays(inner) for inner in value]
    return value


def check_num_envs(snapshot: dict[str, Any], num_envs: int) -> None:
    found = len(snapshot["num_envs"])
    if found != num_envs:
        raise EnvError(
            f"the snapshot has {found} environments and not {num_envs}; resume with {found} environments"
        )


def _find(id: str) -> EnvSpec:
    module, _, name = id.rpartition(":")
    if name.startswith(dm_control.PREFIXES):
        return dm_control.spec_from_id(name)
    if name.startswith(minatar.PREFIX):
        return minatar.spec_from_id(name)
    if is_game(id):
        return atari.spec_from_id(name)
    if minigrid.owns(name):
        module = module or minigrid.PACKAGE
    if pybullet.owns(name):
        module = module or pybullet.PACKAGE
    if module:
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise missing_package(id, error) from error
        gymnasium.register_envs(imported)
    registry = gymnasium.registry
    if name in registry:
        return registry[name]
    versions = [key for key in registry if key.rpartition("-v")[0] == name]
    if versions:
        return registry[max(versions, key=lambda key: int(key.rpartition("-v")[2]))]
    raise EnvError(f"unknown environment {id!r}; {_suggestion(name, [*registry, *atari.games()])}")


def _registered_elsewhere(name: str) -> bool:
    """Whether somebody gave an environment of their own a name that a game has, too."""
    mine = {name, *(key for key in gymnasium.registry if key.rpartition("-v")[0] == name)} & set(
        gymnasium.registry
    )
    return any(not str(gymnasium.registry[key].entry_point).startswith("ale_py") for key in mine)


def is_game(id: str) -> bool:
    """Whether an id means a game of Atari's."""
    return ":" not in id and atari.owns(id) and not _registered_elsewhere(id)


def _suggestion(name: str, ids: list[str]) -> str:
    hint = nearest(name, ids)
    if hint.startswith("did"):
        return hint
    # Without a near miss the list of every registered id would bury the message.
    games = "" if atari.games() else ", or for Atari games: pip install 'whorl[atari]'"
    return f"import the package that registers it, or write 'package:Name-v0'{games}"
