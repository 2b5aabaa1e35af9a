"""Gymnasium: its environments by id, single environments stepped in this process, and spaces as a `Spec`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec
from torch import Tensor

from whorl.core import tree
from whorl.core.action_parts import ActionParts, used_parameters
from whorl.core.errors import EnvError
from whorl.core.spec import Continuous, Discrete, MultiDiscrete, Spec, SpecTree, TupleSpec
from whorl.core.tree import Tree
from whorl.envs.adapter import RegisteredAdapter, registry_id
from whorl.envs.spaces import Factory, Layout, Leaf, children, choices_of, leaf_at, nest, probe
from whorl.envs.stepping import Buffers, EnvStepper
from whorl.envs.vector import Bindable, Mapped, Step, VectorEnv

if TYPE_CHECKING:
    from whorl.envs.make import Source

GOAL = (4, 5, 8, 9)
"""entries of Reacher-v5's observation that depend on the goal: its position, and the vector from fingertip to goal"""
gymnasium.register(  # Reacher-v5, where only the first observation of an episode shows the goal
    "ReacherOnce-v0",
    entry_point="gymnasium.envs.mujoco.reacher_v5:ReacherEnv",
    max_episode_steps=50,
    reward_threshold=-3.75,
    additional_wrappers=(
        WrapperSpec("SelectObservation", "whorl.envs.wrappers:SelectObservation", {"once": GOAL}),
    ),
)


class GymnasiumAdapter(RegisteredAdapter):
    """Registered environments whose classes are in `modules`."""

    def __init__(
        self, *modules: str, extra: str = "", packages: tuple[str, ...] = (), cheap: bool = False
    ) -> None:
        self.modules, self.extra, self.packages, self.cheap = modules, extra, packages, cheap

    def owns(self, id: str) -> bool:
        found = registry_id(id.rpartition(":")[2])
        entry_point = "" if found is None else str(gymnasium.registry[found].entry_point)
        return entry_point.startswith(self.modules)

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> VectorEnv | None:
        from whorl.envs.adapters.vectorized import LEAST, STATE, BatchedVector

        id = source.id
        if id not in STATE or num_envs < LEAST or source.options or not self.cheap:
            return None
        env = gymnasium.make_vec(id, num_envs, vectorization_mode="vector_entry_point").unwrapped
        return BatchedVector(env, id, STATE[id])


class AnyAdapter(GymnasiumAdapter):
    """Every other id that was registered with Gymnasium."""

    def ids(self) -> Iterable[str]:
        return gymnasium.registry


_ENVS = "gymnasium.envs"
ADAPTERS = (
    GymnasiumAdapter(f"{_ENVS}.classic_control", f"{_ENVS}.toy_text", f"{_ENVS}.tabular", cheap=True),
    GymnasiumAdapter(f"{_ENVS}.mujoco", extra="mujoco", packages=("mujoco",)),
    GymnasiumAdapter(f"{_ENVS}.box2d", extra="box2d", packages=("Box2D",)),
    AnyAdapter(""),
)


class GymnasiumVector(VectorEnv, Mapped, Bindable):
    """`num_envs` Gymnasium environments stepped one after another in this process."""

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
        self.id, self.stepper, self.layout = id, stepped, stepped.layout
        num_envs = len(stepped)
        self.spec = to_spec(self.layout, num_envs)
        self.snapshots = self.layout.snapshots
        self._buffers = Buffers.empty(self.layout, num_envs)
        self._action = [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self.layout.action]
        self._action_tensors = nest(self.layout.action, [torch.from_numpy(leaf) for leaf in self._action])
        self._step = to_step(self.layout, self._buffers)
        self._newest = self._step.obs
        """the newest observations"""

    def reset(self, seed: int) -> Tree:
        self.stepper.reset(seed, self._buffers)
        self._newest = self._step.obs
        return self._newest

    def step(self, action: Tree) -> Step:
        tree.copy_(self._action_tensors, action)
        self.stepper.step(self._action, self._buffers)
        self._newest = self._step.obs
        return replace(self._step)

    def bound_step(self, action: Tree, out: Step) -> Callable[[], None] | None:
        given = arrays_of(self.layout.action, action)
        buffers = None if given is None else buffers_of(self.layout, out)
        if given is None or buffers is None:
            return None
        step, newest = self.stepper.step, out.obs

        def step_into() -> None:
            step(given, buffers)
            self._newest = newest

        return step_into

    def snapshot(self) -> dict[str, Any]:
        return {
            "obs": tree.clone(self._newest),
            "num_envs": [to_tensors(env_index) for env_index in self.stepper.snapshot()],
        }

    def restore(self, snapshot: dict[str, Any]) -> Tree:
        check_num_envs(snapshot, self.spec.num_envs)
        self.stepper.restore([to_arrays(env_index) for env_index in snapshot["num_envs"]])
        tree.copy_(self._step.obs, snapshot["obs"])
        self._newest = self._step.obs
        return self._newest

    def cells(self) -> Tensor:
        if self.map_shape is None:
            raise EnvError(f"{self.id} has no map; define map_shape and position")
        return torch.tensor([row * self.map_shape[1] + column for row, column in self.stepper.positions()])

    def render(self, env_index: int = 0) -> np.ndarray | None:
        return self.stepper.render(env_index)

    def close(self) -> None:
        self.stepper.close()


def to_spec(layout: Layout, num_envs: int) -> Spec:
    """What an agent may know of an environment with this layout."""
    observation = nest(layout.observation, [leaf.array for leaf in layout.observation])
    action = action_spec(layout.action_space)
    if layout.parameters_of:
        used_parameters(ActionParts.of(action), layout.parameters_of)  # raises where it does not fit
    return Spec(observation, action, num_envs, layout.measures, (), layout.map_shape, layout.parameters_of)


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
    step = Step(obs, share(buffers.reward), *(share(flag) for flag in flags))
    if layout.map_shape is not None:
        step.cells = share(buffers.cells)
    return step


def arrays_of(leaves: tuple[Leaf, ...], values: Tree) -> list[np.ndarray] | None:
    """The memory of tensors as arrays, leaf by leaf; None where they have other types than the environment's."""
    arrays = [leaf_at(values, leaf).numpy() for leaf in leaves]
    return arrays if all(x.dtype == leaf.dtype for x, leaf in zip(arrays, leaves)) else None


def buffers_of(layout: Layout, step: Step) -> Buffers | None:
    """The memory of a step's tensors, the inverse of `to_step`; None where some are missing or others than here."""
    obs = arrays_of(layout.observation, step.obs)
    if obs is None or step.soft is None or step.measures is None:
        return None
    if step.measures.shape[-1] != len(layout.measures):
        return None
    return Buffers(
        obs,
        step.reward.numpy(),
        step.terminated.numpy(),
        step.truncated.numpy(),
        step.reset.numpy(),
        step.soft.numpy(),
        step.measures.numpy(),
        np.zeros(len(step.reward), np.int64) if step.cells is None else step.cells.numpy(),
    )


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
    if "num_envs" not in snapshot:  # of the batch, by which earlier versions also stepped a few environments
        raise EnvError(
            "the environments of this run were stepped as one batch, which can't be continued one by one; start a new "
            "run from its policy: whorl train ... --load-checkpoint-dir RUN"
        )
    found = len(snapshot["num_envs"])
    if found != num_envs:
        raise EnvError(
            f"the snapshot has {found} environments and not {num_envs}; resume with {found} environments"
        )
