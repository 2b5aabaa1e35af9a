"""Gymnasium spaces as arrays: what an environment's observations and actions look like, and how they are converted.

Observations become float32 (uint8 stays uint8), discrete and multi-discrete ones one-hot; actions arrive in canonical
form (see `whorl.core.spec`) and are converted to the environment's own. Imports no torch, because worker processes
start without it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem, index
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from whorl.core.action_masks import Choices, flatten_mask, mask_size
from whorl.core.arrays import MASK_KEY, SUCCESS, Array, channels_first
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.mistakes import failure, make_env, raised, theirs, wrong_kind, wrong_reset, wrong_spaces
from whorl.envs.snapshot import snapshot_env

Factory: TypeAlias = Callable[[], gymnasium.Env]
Reader: TypeAlias = Callable[[Any], Any]
MaskSource: TypeAlias = Literal["none", "info", "method", "observation"]


@dataclass(frozen=True)
class Leaf:
    """One array of the observation tree or of the canonical action tree, and its path in that tree."""

    path: tuple[str, ...]
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return self.array.dtype


@dataclass(frozen=True)
class Layout:
    """All that stepping needs to know about an environment: found once and sent to every worker."""

    observation_space: spaces.Space
    action_space: spaces.Space
    mask: MaskSource
    snapshots: bool
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    soft_ends: bool = False
    """whether `info["soft_end"]` may report a lost life"""
    measures: tuple[str, ...] = ()
    """names of numbers in `info` that are read at the end of an episode; see `stepping.measured`"""
    map_shape: tuple[int, int] | None = None
    """rows and columns of the map on which the attribute `position` tells where the agent is; None: there is none"""
    parameters_of: tuple[tuple[int, ...], ...] = ()
    """mixed actions: the continuous dimensions that each combination of choices uses; empty: each uses all"""


def probe(factory: Factory) -> Layout:
    """The layout of the environments that `factory` makes, found with one of them."""
    env = make_env(factory)
    try:
        return describe(env)
    finally:
        env.close()


def describe(env: gymnasium.Env) -> Layout:
    """The layout of an environment; resets it."""
    _, info = first_reset(env)
    measures = attribute(env, "measures", ())
    if not isinstance(measures, list | tuple) or not all(isinstance(name, str) for name in measures):
        raise EnvError(f"measures of {env} is {measures!r}; it must be a tuple of keys of info")
    return make_layout(
        env.observation_space,
        env.action_space,
        _mask_source(env, info),
        check_stack(attribute(env, "frame_stack", 1)),
        snapshots=snapshot_env(env) is not None,
        soft_ends=bool(attribute(env, "soft_ends", False)),
        measures=(*measures, SUCCESS),
        map_shape=attribute(env, "map_shape", None),
        parameters_of=_parameters_of(attribute(env, "parameters_of", ())),
    )


def first_reset(env: Any) -> tuple[Any, dict[str, Any]]:
    """Reset a new environment; raises if it is not one, or its `reset` has another signature."""
    found = wrong_kind(env) or wrong_spaces(env)
    if found is not None:
        raise EnvError(found)
    try:
        result = env.reset(seed=0)
    except WhorlError:
        raise
    except Exception as error:  # an environment may raise anything
        raise failure(raised("reset(seed=0)", error), error) from theirs(error)
    found = wrong_reset(result)
    if found is not None:
        raise EnvError(found)
    return result


def make_layout(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    mask: MaskSource = "none",
    stack: int = 1,
    snapshots: bool = False,
    soft_ends: bool = False,
    measures: tuple[str, ...] = (),
    map_shape: tuple[int, int] | None = None,
    parameters_of: tuple[tuple[int, ...], ...] = (),
) -> Layout:
    """The layout of environments with these spaces."""
    action = tuple(_action_leaves(action_space))
    observation = [
        leaf if leaf.path == (MASK_KEY,) else replace(leaf, array=_stacked(leaf.array, stack))
        for leaf, _ in observation_parts(observation_space, action_space, mask)
    ]
    if mask in ("info", "method"):
        if not isinstance(observation_space, spaces.Dict | spaces.Tuple):
            observation = [replace(x, path=("obs",)) for x in observation]
        observation.append(_mask_leaf(action_space))
    more = (soft_ends, measures, map_shape, parameters_of)
    return Layout(observation_space, action_space, mask, snapshots, tuple(observation), action, *more)


def _parameters_of(value: Any) -> tuple[tuple[int, ...], ...]:
    """The declaration of an environment as tuples of integers."""
    try:
        return tuple(tuple(index(dimension) for dimension in entry) for entry in value)
    except TypeError as error:
        raise EnvError(
            f"parameters_of is {value!r}; it must hold for each discrete choice the numbers of the continuous "
            "dimensions that it uses, for instance [[0], [1, 2], []]"
        ) from error


def check_stack(stack: Any) -> int:
    """`stack` where it is a valid number of frames."""
    if isinstance(stack, bool) or not isinstance(stack, int) or stack < 1:
        raise EnvError(f"frame_stack is {stack!r}; it must be a whole number of at least 1")
    return stack


def attribute(env: gymnasium.Env, name: str, default: Any) -> Any:
    """An attribute of an environment or of one of its wrappers."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default


def _stacked(array: Array, stack: int) -> Array:
    """`stack` frames: [H, W] along a new first axis, images along their channels, vectors end to end.

    A uint8 array [H, W] is an image with one channel even without a stack.
    """
    plane = len(array.shape) == 2 and (stack > 1 or array.dtype == "uint8")
    if stack == 1 and not plane:
        return array
    shape = (1, *array.shape) if plane else array.shape
    axis = 0 if plane or len(shape) != 3 or channels_first(shape) else 2
    joined = tuple(n * stack if number == axis else n for number, n in enumerate(shape))
    return replace(array, shape=joined, stack=stack, axis=axis, plane=plane)


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
    return Leaf((MASK_KEY,), Array((mask_size(choices_of(action_space)),), "bool", 0.0, 1.0))


def nest(leaves: tuple[Leaf, ...], values: list[Any]) -> Any:
    """The tree of `values` given by the paths of `leaves`; a single leaf without a path is its own tree."""
    if leaves[0].path == ():
        return values[0]
    root: dict[str, Any] = {}
    for leaf, value in zip(leaves, values):
        node = root
        for key in leaf.path[:-1]:
            node = node.setdefault(key, {})
        node[leaf.path[-1]] = value
    return root


def leaf_at(tree: Any, leaf: Leaf) -> Any:
    """The value of a leaf in a tree that `nest` built."""
    return reduce(getitem, leaf.path, tree)


def children(space: spaces.Space) -> list[tuple[str, Any, spaces.Space]]:
    """(key in the tree, key in the environment's own value, space) of a Dict or Tuple space; empty for a leaf."""
    if isinstance(space, spaces.Dict):
        return [(str(key), key, child) for key, child in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return [(str(index), index, child) for index, child in enumerate(space.spaces)]
    return []


def _observation_leaves(space: spaces.Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    inner = children(space)
    _check_size("observation", space, path)
    if inner:
        for key, _, child in inner:
            yield from _observation_leaves(child, (*path, key))
    elif isinstance(space, spaces.Box):
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        array = Array(space.shape or (1,), dtype, float(space.low.min()), float(space.high.max()))
        if len(space.shape) == 1 and (
            (space.low != space.low[0]).any() or (space.high != space.high[0]).any()
        ):
            array = replace(array, lows=tuple(map(float, space.low)), highs=tuple(map(float, space.high)))
        yield Leaf(path, array)
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, Array((int(space.n),), "float32", 0.0, 1.0, start=int(space.start), binary=True))
    elif isinstance(space, spaces.MultiDiscrete):
        nvec, starts = (tuple(map(int, values.reshape(-1))) for values in (space.nvec, space.start))
        columns = Array((sum(nvec),), "float32", 0.0, 1.0, binary=True)
        yield Leaf(path, replace(columns, nvec=nvec, starts=starts, entries=space.shape))
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(path, Array(space.shape, "float32", 0.0, 1.0, binary=True))
    else:
        raise _unsupported("observation", space, path)


def observation_parts(
    space: spaces.Space, action_space: spaces.Space, mask: MaskSource, batch_dims: int = 0
) -> list[tuple[Leaf, Reader]]:
    """The leaves of an observation, without stacking, and their readers; an action mask inside it is one flat leaf.

    A reader takes the environment's observation, or with `batch_dims` 1 a batch of them, to the values that are stored.
    """
    if mask != "observation":
        return list(zip(_observation_leaves(space), _readers(space)))
    found: list[tuple[Leaf, Reader]] = []
    for key, own, child in children(space):
        if key == MASK_KEY:
            read_mask = partial(flatten_mask, choices_of(action_space), batch_dims=batch_dims)
            found.append((_mask_leaf(action_space), partial(_read_inside, own, read_mask)))
        else:
            inside = zip(_observation_leaves(child, (key,)), _readers(child))
            found += [(leaf, partial(_read_inside, own, read)) for leaf, read in inside]
    return found


def _readers(space: spaces.Space) -> Iterator[Reader]:
    inner = children(space)
    if inner:
        for _, key, child in inner:
            for read in _readers(child):
                yield partial(_read_inside, key, read)
    elif isinstance(space, spaces.Discrete):
        yield partial(_read_one_hot, np.eye(int(space.n), dtype=np.float32), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        yield partial(_read_one_hots, space.nvec, space.start, _places(space.nvec))
    else:
        yield _read_whole


def _read_inside(key: Any, read: Reader, obs: Any) -> Any:
    return read(obs[key])


def _read_one_hot(rows: np.ndarray, start: int, obs: Any) -> np.ndarray:
    return rows[np.asarray(obs, np.int64) - start]


def _places(nvec: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entry that each column of one-hots end to end belongs to, and the choice of that entry."""
    counts = nvec.reshape(-1)
    return np.repeat(np.arange(counts.size), counts), np.concatenate([np.arange(n) for n in counts])


def _read_one_hots(
    nvec: np.ndarray, start: np.ndarray, places: tuple[np.ndarray, np.ndarray], obs: Any
) -> np.ndarray:
    chosen = np.asarray(obs, np.int64) - start
    if (chosen < 0).any() or (chosen >= nvec).any():
        raise ValueError(f"{obs} is outside of the choices")
    entry, choice = places
    flat = chosen.reshape(*chosen.shape[: chosen.ndim - nvec.ndim], nvec.size)
    return (flat[..., entry] == choice).astype(np.float32)


def _read_whole(obs: Any) -> Any:
    return obs


def _action_leaves(space: spaces.Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Canonical actions: float32 [size], int64 [] or int64 [dimensions]."""
    inner = children(space)
    _check_size("action", space, path)
    if inner:
        for key, _, child in inner:
            yield from _action_leaves(child, (*path, key))
    elif isinstance(space, spaces.Box):
        yield Leaf(path, Array((int(np.prod(space.shape)),), "float32"))
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, Array((), "int64"))
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        yield Leaf(path, Array((int(np.prod(space.shape)),), "int64"))
    else:
        raise _unsupported("action", space, path)


def batch_decoder(space: spaces.Space) -> Callable[[list[np.ndarray]], Any]:
    """A function from canonical actions [rows, ...], one array per leaf, to a batch of the environment's actions.

    The result is never written to again, because environments may keep the action that they were given.
    """
    parts = [_leaf_decoder(leaf) for leaf in _leaf_spaces(space)]
    return lambda action: _assemble(space, iter([part(array) for part, array in zip(parts, action)]))


def action_decoder(space: spaces.Space) -> Callable[[list[np.ndarray]], list[Any]]:
    """The same as a list of single actions, one per row."""
    leaves = list(_leaf_spaces(space))
    parts = [_leaf_decoder(leaf) for leaf in leaves]
    rows = [_rows(leaf) for leaf in leaves]
    if not children(space):
        part, split = parts[0], rows[0]
        return lambda action: split(part(action[0]))

    def decode(action: list[np.ndarray]) -> list[Any]:
        columns = [split(part(array)) for split, part, array in zip(rows, parts, action)]
        return [_assemble(space, iter(row)) for row in zip(*columns)]

    return decode


def _rows(space: spaces.Space) -> Callable[[np.ndarray], list[Any]]:
    """How a batch of actions becomes a list of single ones."""
    if isinstance(space, spaces.Discrete):
        # Python integers: environments index with them, and Discrete.contains is fastest for them.
        return np.ndarray.tolist
    return list if space.shape else lambda array: [np.asarray(row) for row in array]


def _leaf_spaces(space: spaces.Space) -> Iterator[spaces.Space]:
    inner = children(space)
    if not inner:
        yield space
    for _, _, child in inner:
        yield from _leaf_spaces(child)


def _leaf_decoder(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    if isinstance(space, spaces.Box):
        return _rescaler(space)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda array: array + start
    offset = getattr(space, "start", np.int64(0))
    shape, dtype = space.shape or (), space.dtype
    return lambda array: (array.reshape(-1, *shape) + offset).astype(dtype)


def _rescaler(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    """The arithmetic of `whorl.core.spec.to_env`, in the same float32 operations, so that both agree bit for bit."""
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

    def rescale(array: np.ndarray) -> np.ndarray:
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
        return scaled.reshape(-1, *shape).astype(dtype, copy=False)

    return rescale


def _assemble(space: spaces.Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _assemble(child, values) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(child, values) for child in space.spaces)
    return next(values)


def mask_in(observation_space: spaces.Space, action_space: spaces.Space, info: dict[str, Any]) -> MaskSource:
    """Where the action mask is, as far as spaces and `info` show it."""
    if mask_size(choices_of(action_space)) == 0:
        return "none"
    if isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces:
        return "observation"
    return "info" if MASK_KEY in info else "none"


def _mask_source(env: gymnasium.Env, info: dict[str, Any]) -> MaskSource:
    found = mask_in(env.observation_space, env.action_space, info)
    if found != "none" or mask_size(choices_of(env.action_space)) == 0:
        return found
    return "method" if env.has_wrapper_attr("action_masks") else "none"


def mask_reader(layout: Layout, env: gymnasium.Env) -> Callable[[dict[str, Any]], np.ndarray]:
    """A function from a step's `info` (or from its observation, if that holds the mask) to the flat action mask."""
    choices = choices_of(layout.action_space)
    if layout.mask == "method":
        masks = env.get_wrapper_attr("action_masks")
        return lambda info: flatten_mask(choices, masks())
    # The final step of an episode often has no mask, because no action follows it: then everything is allowed.
    return lambda info: flatten_mask(choices, info.get(MASK_KEY))


def sample_allowed(space: spaces.Space, mask: np.ndarray | None) -> Any:
    """A random action that a flat mask allows, drawn from the space's own generator."""
    return space.sample() if mask is None else space.sample(mask=_nested_mask(space, mask))


def _nested_mask(space: spaces.Space, flat: np.ndarray) -> Any:
    """A flat action mask in the form that Gymnasium's `sample` reads."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = [child for _, _, child in children(space)]
        ends = np.cumsum([mask_size(choices_of(child)) for child in inner])[:-1]
        parts = [_nested_mask(child, part) for child, part in zip(inner, np.split(flat, ends))]
        return dict(zip(space.spaces, parts)) if isinstance(space, spaces.Dict) else tuple(parts)
    if isinstance(space, spaces.Discrete):
        return flat.astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        parts = [part.astype(np.int8) for part in np.split(flat, np.cumsum(space.nvec.reshape(-1))[:-1])]
        return _as_tuples(parts, space.shape)
    if isinstance(space, spaces.MultiBinary):
        zero, one = flat.reshape(*space.shape, 2)[..., 0], flat.reshape(*space.shape, 2)[..., 1]
        return np.where(zero & one, 2, one).astype(np.int8)
    return None


def _as_tuples(parts: list[Any], shape: tuple[int, ...]) -> Any:
    """Parts in row-major order as tuples nested like an array of this shape."""
    if len(shape) <= 1:
        return tuple(parts)
    width = len(parts) // shape[0]
    return tuple(_as_tuples(parts[i : i + width], shape[1:]) for i in range(0, len(parts), width))


def _check_size(role: str, space: spaces.Space, path: tuple[str, ...]) -> None:
    empty = isinstance(space, spaces.Dict | spaces.Tuple) and not space.spaces
    if empty or (space.shape is not None and 0 in space.shape):
        raise EnvError(f"the {_place(role, path)} is {space}, which holds no values; give it at least one")


def _unsupported(role: str, space: spaces.Space, path: tuple[str, ...]) -> EnvError:
    return EnvError(
        f"the {_place(role, path)} is a {type(space).__name__} space, which is not supported; use Box, Discrete, "
        f"MultiDiscrete, MultiBinary, or a Dict or Tuple of these, for instance through a gymnasium wrapper"
    )


def _place(role: str, path: tuple[str, ...]) -> str:
    """The name of a space in messages: whose it is, and where in a Dict or Tuple."""
    return f"{role} space" + (f", key {'.'.join(path)!r}," if path else "")
