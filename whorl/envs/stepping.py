"""Stepping a slice of Gymnasium environments into numpy buffers, next-step autoreset included.

Used in process and inside pool workers, which must start fast: nothing here imports torch. Observations become float32
(uint8 stays), discrete ones one-hot; actions come in canonical form and leave in the environment's own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled

from whorl.core.action_masks import Choices, flatten_mask, mask_size
from whorl.core.errors import EnvError, WhorlError, missing_extra
from whorl.core.images import channels_first
from whorl.envs.snapshot import restore_env, snapshot_env

Factory: TypeAlias = Callable[[], gymnasium.Env]
MaskSource: TypeAlias = Literal["none", "info", "method", "observation"]

SOFT_END = "soft_end"
"""in `info`: what comes after this step is worth nothing to the learner, a life lost, though the episode goes on"""
MASK_KEY = "action_mask"
"""The same word as `whorl.core.spec.MASK_KEY`, which can't be imported here because it brings torch."""
EXTRAS = {
    "dm_control": ("dm_control", "dm-control"),
    "pybullet_envs_gymnasium": ("pybullet-envs-gymnasium", "pybullet"),
    "pybullet": ("pybullet", "pybullet"),
    "mujoco": ("mujoco", "mujoco"),
    "box2d": ("Box2D", "box2d"),
    "ale_py": ("ale-py", "atari"),
    "minigrid": ("minigrid", "minigrid"),
}
"""a word in a complaint about an import -> the package that is missing, and our extra that brings it"""


@dataclass(frozen=True)
class Leaf:
    """One array of one environment: a leaf of the observation tree or of the canonical action tree."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    low: float = float("-inf")
    high: float = float("inf")
    stack: int = 1
    """frames that stand together in `shape`, oldest first; the environment gives one at a time"""
    axis: int = 0
    """of `shape`: where they are joined"""
    start: int | None = None
    """of a choice, which is stored as one-hot: the number that the environment counts it from"""
    plane: bool = False
    """whether the environment gives [H, W], without an axis for channels"""


@dataclass(frozen=True)
class Layout:
    """Everything that stepping needs to know of an environment, found once and sent to every worker."""

    observation_space: spaces.Space
    action_space: spaces.Space
    mask: MaskSource
    snapshots: bool
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    soft_ends: bool = False
    """whether `info["soft_end"]` may say that the value ends at a step though the episode goes on"""
    measures: tuple[str, ...] = ()
    """what `info` says of an episode in numbers, read at its end"""


class Buffers:
    """Where a step writes its results: one row per environment."""

    def __init__(
        self,
        obs: list[np.ndarray],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        reset: np.ndarray,
        soft: np.ndarray,
        measures: np.ndarray,
    ) -> None:
        self.obs = obs
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.reset = reset
        self.soft = soft
        self.measures = measures

    @classmethod
    def empty(cls, layout: Layout, rows: int) -> "Buffers":
        obs = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in layout.observation]
        terminated, truncated, reset, soft = np.zeros((4, rows), bool)
        measures = np.zeros((rows, len(layout.measures)), np.float32)
        return cls(obs, np.zeros(rows, np.float32), terminated, truncated, reset, soft, measures)

    def __getitem__(self, rows: Any) -> "Buffers":
        """The same buffers, seen through an index of the environment axis."""
        return Buffers(
            [leaf[rows] for leaf in self.obs],
            self.reward[rows],
            self.terminated[rows],
            self.truncated[rows],
            self.reset[rows],
            self.soft[rows],
            self.measures[rows],
        )


class Frames:
    """The newest frames of every environment; an episode's first one stands for those before it."""

    def __init__(self, leaf: Leaf, num_envs: int) -> None:
        self.held = np.zeros((num_envs, *leaf.shape), leaf.dtype)
        self.axis, self.width = leaf.axis, leaf.shape[leaf.axis] // leaf.stack
        self._one = tuple(self.width if axis == leaf.axis else n for axis, n in enumerate(leaf.shape))
        self._joined = np.moveaxis(self.held, leaf.axis + 1, 1)  # [environments, stack * width, ...]

    def push(self, env_index: int, frame: Any, opens: bool) -> np.ndarray:
        """A environment's frames with `frame` as the newest, or as all of them where it opens an episode."""
        joined, width = self._joined[env_index], self.width
        newest = np.moveaxis(np.reshape(frame, self._one), self.axis, 0)
        if opens:
            for start in range(0, len(joined), width):
                joined[start : start + width] = newest
        else:
            joined[:-width] = joined[width:]
            joined[-width:] = newest
        return self.held[env_index]


class EnvStepper:
    """Environments stepped one after another. `numbers` are their places on the global environment axis; they choose seeds."""

    def __init__(self, factory: Factory, layout: Layout, numbers: list[int]) -> None:
        self.layout = layout
        self.numbers = numbers
        self.envs = [factory() for _ in numbers]
        self.pending = [False] * len(numbers)
        """environments whose episode ended: their next step is a reset"""
        self._steps = [env.step for env in self.envs]
        self._decode = _decoder(layout.action_space)
        self._masks = [_mask_reader(layout.mask, env, choices_of(layout.action_space)) for env in self.envs]
        self._masked = layout.mask in ("info", "method")
        self._readers = [
            read for _, read in _parts(layout.observation_space, layout.action_space, layout.mask)
        ]
        self._frames = [Frames(x, len(numbers)) if x.stack > 1 else None for x in layout.observation]
        # A plain array is stored without a call into Python, which is most of what a small environment would pay.
        stacked = any(x.stack > 1 for x in layout.observation)
        self._plain = isinstance(layout.observation_space, spaces.Box) and not (self._masked or stacked)

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, seed: int, out: Buffers, start: int = 0) -> None:
        """Seed and restart environments `start, start + 1, …`, as many as `out` has rows."""
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.reset.fill(True)
        out.soft.fill(False)
        for row in range(len(out.reward)):
            env_index = start + row
            obs, info = self.envs[env_index].reset(seed=env_seed(seed, self.numbers[env_index]))
            self._check(obs)
            self.pending[env_index] = False
            self._write(out.obs, row, obs, env_index, True)
            if self._masked:
                out.obs[-1][row] = self._masks[env_index](info)

    def step(self, action: list[np.ndarray], out: Buffers, start: int = 0) -> None:
        """Step environments `start, start + 1, …` with canonical actions, one array [rows, ...] per action leaf."""
        choices = self._decode(action)
        reward, terminated, truncated, reset = out.reward, out.terminated, out.truncated, out.reset
        terminated.fill(False)
        truncated.fill(False)
        reset.fill(False)
        out.soft.fill(False)
        pending, steps, plain, soft_ends = self.pending, self._steps, self._plain, self.layout.soft_ends
        write = out.obs[0].__setitem__
        for row, choice in enumerate(choices):
            env_index = start + row
            if pending[env_index]:
                obs, info = self.envs[env_index].reset()
                pending[env_index] = False
                reset[row] = True
                reward[row] = 0.0
            else:
                obs, reward[row], ended, cut, info = steps[env_index](choice)
                if ended or cut:
                    terminated[row], truncated[row], pending[env_index] = ended, cut, True
                    for number, name in enumerate(self.layout.measures):
                        out.measures[row, number] = info.get(name, 0.0)
                elif soft_ends:
                    out.soft[row] = info.get(SOFT_END, False)
            if plain:
                write(row, obs)
            else:
                self._write(out.obs, row, obs, env_index, reset[row])
            if self._masked:
                out.obs[-1][row] = self._masks[env_index](info)

    def snapshot(self) -> list[dict[str, Any]]:
        """The exact state of each environment, as plain containers and numpy arrays."""
        found: list[dict[str, Any]] = []
        for number, env, pending in zip(self.numbers, self.envs, self.pending):
            state = snapshot_env(env)
            if state is None:
                raise EnvError(
                    f"environment {number}: {env} has no snapshot; give it get_snapshot and set_snapshot"
                )
            frames = [held.held[len(found)].copy() for held in self._frames if held is not None]
            found.append({"env": state, "pending": pending, "frames": frames})
        return found

    def restore(self, snapshots: list[dict[str, Any]]) -> None:
        for env_index, (env, snapshot) in enumerate(zip(self.envs, snapshots)):
            restore_env(env, snapshot["env"])
            self.pending[env_index] = bool(snapshot["pending"])
            held = [frames for frames in self._frames if frames is not None]
            for frames, saved in zip(held, snapshot.get("frames", []), strict=True):
                frames.held[env_index] = saved

    def render(self, env_index: int) -> np.ndarray | None:
        env = self.envs[env_index]
        if env.render_mode is None:
            return None
        frame: Any = env.render()
        if isinstance(frame, list):
            frame = frame[-1] if frame else None
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _write(self, into: list[np.ndarray], row: int, obs: Any, env_index: int, opens: bool) -> None:
        for array, read, frames in zip(into, self._readers, self._frames):
            value = read(obs)
            array[row] = value if frames is None else frames.push(env_index, value, opens)

    def _check(self, obs: Any) -> None:
        """Numpy would silently broadcast a wrong shape into the buffer; resets are rare enough to look."""
        layout = self.layout
        for leaf, read in _parts(layout.observation_space, layout.action_space, layout.mask):
            shape = np.shape(read(obs)) or (1,)
            if shape != leaf.shape:
                name = ".".join(leaf.path) or "observation"
                raise EnvError(
                    f"the environment returned {name} of shape {shape} but its space says {leaf.shape}; "
                    f"make reset() and observation_space agree"
                )


def env_seed(seed: int, env_index: int) -> int:
    """The seed of a environment's first reset: streams of neighbouring environments and seeds are unrelated."""
    # 31 bits, because some environments hand the seed to a C int.
    return int(np.random.SeedSequence((seed, env_index)).generate_state(1)[0] >> 1)


def make_registered(spec: EnvSpec, kwargs: dict[str, Any]) -> gymnasium.Env:
    """Make what a registry entry describes; the registry itself may be empty, as it is in a worker."""
    try:
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except (ImportError, DependencyNotInstalled) as error:
        raise missing_package(spec.id, error) from error
    except gymnasium.error.Error as error:
        raise EnvError(f"{spec.id} can't be made: {error}") from error


def whole_stack(stack: Any) -> int:
    """A number of frames, or one sentence."""
    if isinstance(stack, bool) or not isinstance(stack, int) or stack < 1:
        raise EnvError(f"frame_stack is {stack!r}; it must be a whole number of at least 1")
    return stack


def missing_package(id: str, error: Exception) -> WhorlError:
    """The error for an environment whose package is not installed."""
    text = str(error).lower()
    for word, (package, extra) in EXTRAS.items():
        # An environment may refuse the version that is there (Pusher-v4 does): then its own words are better.
        if word in text and find_spec(word) is None:
            return missing_extra(package, extra)
    return EnvError(f"{id} can't be imported: {error}")


def probe(factory: Factory) -> Layout:
    """Make one environment, reset it once to see what it offers, and close it."""
    env = factory()
    try:
        return describe(env)
    finally:
        env.close()


def describe(env: gymnasium.Env) -> Layout:
    """The layout of an environment; resets it."""
    observation_space, action_space = env.observation_space, env.action_space
    action = tuple(_action_leaves(action_space))
    _, info = env.reset(seed=0)
    mask = _mask_source(env, info)
    stack = whole_stack(_told(env, "frame_stack", 1))
    parts = _parts(observation_space, action_space, mask)
    observation = [x if x.path == (MASK_KEY,) else _stacked(x, stack) for x, _ in parts]
    if mask in ("info", "method"):
        if not isinstance(observation_space, spaces.Dict | spaces.Tuple):
            observation = [replace(x, path=("obs",)) for x in observation]
        observation.append(_mask_leaf(action_space))
    snapshots = snapshot_env(env) is not None
    soft_ends, measures = bool(_told(env, "soft_ends", False)), _told(env, "measures", ())
    if not isinstance(measures, list | tuple) or not all(isinstance(name, str) for name in measures):
        raise EnvError(
            f"measures of {env} is {measures!r}; it must be a tuple of names that info has at an end"
        )
    leaves, names = tuple(observation), tuple(measures)
    return Layout(observation_space, action_space, mask, snapshots, leaves, action, soft_ends, names)


def _told(env: gymnasium.Env, name: str, otherwise: Any) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else otherwise


def _stacked(leaf: Leaf, stack: int) -> Leaf:
    """The leaf of `stack` frames: planes one behind the other, pictures by their channels, vectors end to end.

    A plane of pixels is a picture of one channel even alone.
    """
    plane = len(leaf.shape) == 2 and (stack > 1 or leaf.dtype == "uint8")
    if stack == 1 and not plane:
        return leaf
    shape = (1, *leaf.shape) if plane else leaf.shape
    axis = 0 if plane or len(shape) != 3 or channels_first(shape) else 2
    joined = tuple(n * stack if number == axis else n for number, n in enumerate(shape))
    return replace(leaf, shape=joined, stack=stack, axis=axis, plane=plane)


def choices_of(space: spaces.Space) -> Choices:
    """The discrete choices of an action space, as `whorl.core.action_masks` reads them."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Tuple):
        return [choices_of(child) for child in space.spaces]
    if isinstance(space, spaces.Dict):
        return {key: choices_of(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    return (2,) * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else ()


def _mask_leaf(action_space: spaces.Space) -> Leaf:
    return Leaf((MASK_KEY,), (mask_size(choices_of(action_space)),), "bool", 0.0, 1.0)


def nest(leaves: tuple[Leaf, ...], values: list[Any]) -> Any:
    """The tree of `values` that the leaves' paths spell; a single leaf without a path is its own tree."""
    if leaves[0].path == ():
        return values[0]
    root: dict[str, Any] = {}
    for leaf, value in zip(leaves, values):
        node = root
        for key in leaf.path[:-1]:
            node = node.setdefault(key, {})
        node[leaf.path[-1]] = value
    return root


def children(space: spaces.Space) -> list[tuple[str, Any, spaces.Space]]:
    """(key in the tree, key in the environment's own value, space) of a Dict or Tuple space; empty for a leaf."""
    if isinstance(space, spaces.Dict):
        return [(str(key), key, child) for key, child in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return [(str(index), index, child) for index, child in enumerate(space.spaces)]
    return []


def _observation_leaves(space: spaces.Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    inner = children(space)
    if inner:
        for key, _, child in inner:
            yield from _observation_leaves(child, (*path, key))
    elif isinstance(space, spaces.Box):
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        yield Leaf(path, space.shape or (1,), dtype, float(space.low.min()), float(space.high.max()))
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, (int(space.n),), "float32", 0.0, 1.0, start=int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        yield Leaf(path, space.shape, "float32", 0.0, float(space.nvec.max() - 1))
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(path, space.shape, "float32", 0.0, 1.0)
    else:
        raise _unsupported("observation", space)


def _parts(
    space: spaces.Space, action_space: spaces.Space, mask: MaskSource
) -> list[tuple[Leaf, Callable[[Any], Any]]]:
    """The leaves of an observation, each with its reader; an action mask inside it is one flat leaf."""
    if mask != "observation":
        return list(zip(_observation_leaves(space), _readers(space)))
    found: list[tuple[Leaf, Callable[[Any], Any]]] = []
    for key, own, child in children(space):
        if key == MASK_KEY:
            read_mask = partial(flatten_mask, choices_of(action_space))
            found.append((_mask_leaf(action_space), partial(_read_inside, own, read_mask)))
        else:
            inside = zip(_observation_leaves(child, (key,)), _readers(child))
            found += [(leaf, partial(_read_inside, own, read)) for leaf, read in inside]
    return found


def _readers(space: spaces.Space) -> Iterator[Callable[[Any], Any]]:
    """One function per observation leaf that takes the environment's observation to the value to store."""
    inner = children(space)
    if inner:
        for _, key, child in inner:
            for read in _readers(child):
                yield partial(_read_inside, key, read)
    elif isinstance(space, spaces.Discrete):
        yield partial(_read_one_hot, np.eye(int(space.n), dtype=np.float32), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
        yield partial(_read_offset, space.start)
    else:
        yield _read_whole


def _read_inside(key: Any, read: Callable[[Any], Any], obs: Any) -> Any:
    return read(obs[key])


def _read_one_hot(rows: np.ndarray, start: int, obs: Any) -> np.ndarray:
    return rows[int(obs) - start]


def _read_offset(start: np.ndarray, obs: Any) -> np.ndarray:
    return np.asarray(obs) - start


def _read_whole(obs: Any) -> Any:
    return obs


def _action_leaves(space: spaces.Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Canonical actions: float32 [size], int64 [] or int64 [dimensions]."""
    inner = children(space)
    if inner:
        for key, _, child in inner:
            yield from _action_leaves(child, (*path, key))
    elif isinstance(space, spaces.Box):
        yield Leaf(path, (int(np.prod(space.shape)),), "float32")
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, (), "int64")
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        yield Leaf(path, (int(np.prod(space.shape)),), "int64")
    else:
        raise _unsupported("action", space)


def _decoder(space: spaces.Space) -> Callable[[list[np.ndarray]], list[Any]]:
    """A function from canonical actions [rows, ...], one array per leaf, to the environment's own, one per row.

    What it returns is never written to again, because environments are free to keep the action they were given.
    """
    parts = list(_leaf_decoders(space))
    if len(parts) == 1 and not children(space):
        only = parts[0]
        return lambda action: only(action[0])

    def decode(action: list[np.ndarray]) -> list[Any]:
        rows = zip(*(part(array) for part, array in zip(parts, action)))
        return [_assemble(space, iter(row)) for row in rows]

    return decode


def _leaf_decoders(space: spaces.Space) -> Iterator[Callable[[np.ndarray], list[Any]]]:
    inner = children(space)
    if inner:
        for _, _, child in inner:
            yield from _leaf_decoders(child)
    elif isinstance(space, spaces.Box):
        yield _rescaler(space)
    elif isinstance(space, spaces.Discrete):
        start = int(space.start)
        # Python integers: environments index with them, and Discrete.contains is quickest for them.
        yield (lambda array: (array + start).tolist()) if start else (lambda array: array.tolist())
    else:
        offset = getattr(space, "start", np.int64(0))
        shape, dtype = space.shape or (), space.dtype
        yield lambda array: list((array.reshape(-1, *shape) + offset).astype(dtype))


def _rescaler(space: spaces.Box) -> Callable[[np.ndarray], list[Any]]:
    """The arithmetic of `whorl.core.spec.to_env` in float32, operation by operation: both agree bit for bit."""
    flat_low = space.low.reshape(-1).astype(np.float32)
    flat_high = space.high.reshape(-1).astype(np.float32)
    has_low, has_high = space.bounded_below.reshape(-1), space.bounded_above.reshape(-1)
    low = np.where(has_low, flat_low, np.float32(0))
    high = np.where(has_high, flat_high, np.float32(0))
    half = np.where(has_low & has_high, (high - low) * np.float32(0.5), np.float32(1))
    one = np.ones_like(low)
    lower = np.where(has_low, -one, np.float32(-np.inf))
    upper = np.where(has_high, one, np.float32(np.inf))
    split = np.where(has_high, np.where(has_low, 0 * one, np.float32(-np.inf)), np.float32(np.inf))
    unbounded = ~(has_low | has_high) if not (has_low | has_high).all() else None
    whole = not np.issubdtype(space.dtype, np.floating)
    exact_low = np.where(has_low, space.low.reshape(-1), -np.inf)
    exact_high = np.where(has_high, space.high.reshape(-1), np.inf)
    shape, dtype = space.shape, space.dtype

    def rescale(array: np.ndarray) -> list[Any]:
        inside = np.maximum(array, lower)
        np.minimum(inside, upper, out=inside)
        scaled, from_low = inside - one, inside + one
        scaled *= half
        scaled += high
        from_low *= half
        from_low += low
        np.copyto(scaled, from_low, where=inside < split)
        if unbounded is not None:
            np.copyto(scaled, array, where=unbounded)
        if whole:
            np.rint(scaled, out=scaled)
        if dtype != np.float32:  # whose bounds float32 may not hold
            scaled = np.clip(scaled.astype(np.float64), exact_low, exact_high)
        rows = scaled.reshape(-1, *shape).astype(dtype, copy=False)
        return list(rows) if shape else [np.asarray(row) for row in rows]

    return rescale


def _assemble(space: spaces.Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _assemble(child, values) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(child, values) for child in space.spaces)
    return next(values)


def _mask_source(env: gymnasium.Env, info: dict[str, Any]) -> MaskSource:
    if mask_size(choices_of(env.action_space)) == 0:
        return "none"
    if isinstance(env.observation_space, spaces.Dict) and MASK_KEY in env.observation_space.spaces:
        return "observation"
    if MASK_KEY in info:
        return "info"
    return "method" if env.has_wrapper_attr("action_masks") else "none"


def _mask_reader(
    source: MaskSource, env: gymnasium.Env, choices: Choices
) -> Callable[[dict[str, Any]], np.ndarray]:
    if source == "method":
        masks = env.get_wrapper_attr("action_masks")
        return lambda info: flatten_mask(choices, masks())
    # A final step often comes without a mask, since no action follows it: then everything is allowed.
    return lambda info: flatten_mask(choices, info.get(MASK_KEY))


def _unsupported(role: str, space: spaces.Space) -> EnvError:
    return EnvError(
        f"the {role} space {space} is not supported; use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or "
        f"Tuple of these, for instance through a gymnasium wrapper"
    )
