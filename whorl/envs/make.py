"""From whatever the user has (an id, an environment, a factory) to environments that step together."""

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import torch

from whorl.core.errors import EnvError, nearest
from whorl.core.registry import registered
from whorl.core.spec import Spec
from whorl.envs import native
from whorl.envs.adapters.envpool import EnvPoolVector
from whorl.envs.adapters.gymnasium import GymnasiumVector, factory_from_id, is_game, to_spec, whole_id
from whorl.envs.adapters.vectorized import STATE as BATCHED
from whorl.envs.adapters.vectorized import BatchedVector
from whorl.envs.stepping import probe
from whorl.envs.vector import VectorEnv
from whorl.envs.wrappers import HIDING, OPTIONS, observation_wrappers, split
from whorl.settings.presets import WRAPPED

Factory = Callable[[], gymnasium.Env]
BACKENDS = ("ale", "envpool")
"""who steps Atari games: ALE in our environments and workers, or EnvPool's threads"""
CHEAP = ("classic_control", "toy_text", "tabular", "minatar")
"""modules of environments that worker processes would only slow down"""


class Made(gymnasium.Wrapper):
    """What `whorl.make` returns: a Gymnasium environment that knows how to make more of its kind."""

    def __init__(self, env: gymnasium.Env, source: "Source") -> None:
        super().__init__(env)
        self.source = source
        self.id = source.id


@dataclass(frozen=True)
class Source:
    """Where environments come from: an id with options, and a factory of single environments."""

    id: str
    factory: Factory
    options: Mapping[str, Any] = field(default_factory=dict)
    world: type | None = None
    named: bool = True
    """whether the id alone finds the environment again, for instance when a run is resumed"""
    pooled: bool = False
    """whether EnvPool steps the environments; drawing is left to our own"""

    def vector(self, num_envs: int, device: torch.device | str = "cpu", compile: bool = False) -> VectorEnv:
        """`num_envs` copies, stepped by this process; native worlds as tensors on `device`."""
        if self.world is not None:
            knows = "compile" in inspect.signature(self.world).parameters
            extra = {"compile": True} if compile and knows else {}
            return self.world(num_envs=num_envs, device=device, **self._world_options(), **extra)
        if self.steps_itself:
            return EnvPoolVector(self.factory, num_envs, self.id)
        if self.id in BATCHED and self.named and not self.options:
            return BatchedVector(self.factory, num_envs, self.id)
        return GymnasiumVector(self.factory, num_envs, self.id)

    @property
    def steps_itself(self) -> bool:
        """Whether EnvPool's own threads step the environments."""
        return self.pooled and "render_mode" not in self.options

    def spec(self, num_envs: int) -> Spec:
        """What an agent may know of `num_envs` environments, without making them."""
        if self.world is not None:
            return self.world(num_envs=1, **self._world_options()).spec.with_num_envs(num_envs)
        spec = to_spec(probe(self.factory), num_envs)
        # EnvPool does not show the console's memory, in which a game's rooms are counted.
        return replace(spec, measures=()) if self.pooled else spec

    def _world_options(self) -> dict[str, Any]:
        return {key: value for key, value in self.options.items() if key != "render_mode"}

    def workers(self, asked: int, num_envs: int) -> int:
        """How many worker processes to use where `asked` is -1: as many as cores, except where stepping is cheap."""
        if self.world is not None or self.pooled:
            return 0
        if asked >= 0:
            return min(asked, num_envs)
        env = self.factory()
        cheap = any(word in type(env.unwrapped).__module__ for word in CHEAP)
        env.close()
        count = default_workers(num_envs)
        return 0 if cheap or count < 2 else count


def make(env: str | gymnasium.Env | Factory, **options: Any) -> Made:
    """An environment by id (ours, Gymnasium's, or one you registered), from an object, or from a factory."""
    usable = () if isinstance(env, Made) else OPTIONS
    late = [name for name in options if not isinstance(env, str) and name not in usable]
    if late:
        raise EnvError(f"{late[0]} can't change an environment that is already made; pass its id instead")
    source = find(env, options)
    return Made(source.factory(), source)


def find(env: Any, options: Mapping[str, Any] | None = None) -> Source:
    """The source behind an id, a made environment, a Gymnasium environment or a factory.

    For the last two, the options are those that say what is seen; others were given when they were made.
    """
    options = dict(options or {})
    if isinstance(env, Made):
        return env.source
    if isinstance(env, str):
        return _from_id(env, options)
    if isinstance(env, gymnasium.Env):
        return _seen(_from_env(env), split(options)[1])
    if callable(env):
        built = env()
        if not isinstance(built, gymnasium.Env):
            raise EnvError(f"the factory returned a {type(built).__name__}; it must return a gymnasium.Env")
        name = _name(built)
        built.close()
        return _seen(Source(name, env, named=False), split(options)[1])
    raise EnvError(f"{env!r} is no environment; give an id, a gymnasium.Env or a function that makes one")


def _from_id(id: str, options: dict[str, Any]) -> Source:
    own = registered("environment")
    if id not in own and is_game(id):
        return _game(id, options)
    theirs, ours = split(options)
    # An id may name the module that registers it: module:World-v0.
    name = id if id in own or ":" in id else whole_id(id)
    world = None if id in own else native.WORLDS.get(name.rpartition(":")[2])
    if world is not None and ours:
        raise _whole(name, world, ours)
    factory = (
        observation_wrappers(partial(own[id], **theirs), ours)
        if id in own
        else factory_from_id(id, **options)
    )
    if options.keys() - {"render_mode"}:
        _try(id, factory, options)
    return Source(name, factory, options, world)


def _seen(source: Source, options: dict[str, Any]) -> Source:
    """What `source` makes, seen as `options` say."""
    if not options:
        return source
    if source.world is not None:
        raise _whole(source.id, source.world, options)
    factory = observation_wrappers(source.factory, options)
    factory().close()
    return replace(source, factory=factory, options=options)


def _whole(id: str, world: type, options: dict[str, Any]) -> EnvError:
    """A world shows its rows as they are; some know other ways to be seen."""
    if "frame_stack" in options:
        return EnvError(f"{id} is stepped as tensors, whose rows are not stacked; leave frame_stack out")
    named, choices = ", ".join(options), ", ".join(getattr(world, "choices", ()))
    remedy = f"say what is seen with observe, one of {choices}" if choices else f"leave {named} out"
    return EnvError(f"{id} is stepped as tensors, which {named} can't change; {remedy}")


def _game(id: str, options: dict[str, Any]) -> Source:
    backend = options.get("backend", "ale")
    if backend not in BACKENDS:
        raise EnvError(f"backend {backend!r} is unknown; {nearest(str(backend), BACKENDS)}")
    hiding = [name for name in HIDING if name in options]
    if backend == "envpool" and hiding:
        raise EnvError(f"EnvPool shows pictures alone; leave out {', '.join(hiding)} or backend='envpool'")
    factory = factory_from_id(id, **{name: value for name, value in options.items() if name != "backend"})
    if options:
        _try(id, factory, options)
    return Source(whole_id(id), factory, options, pooled=backend == "envpool")


def _try(id: str, factory: Factory, options: dict[str, Any]) -> None:
    """Options are the user's, so that one the environment does not take is an error of theirs, told at once."""
    try:
        factory().close()
    except TypeError as error:
        raise EnvError(f"{id} can't be made with {options}: {error}") from error


def _from_env(env: gymnasium.Env) -> Source:
    spec = env.spec
    if spec is not None and spec.id in native.WORLDS:
        options = {key: value for key, value in spec.kwargs.items() if key not in ("world_id", "render_mode")}
        return Source(spec.id, factory_from_id(spec.id, **options), options, native.WORLDS[spec.id])
    # Copies of the object itself: wrappers that the user put around it come along.
    return Source(_name(env), lambda: copy.deepcopy(env), named=False)


def _name(env: gymnasium.Env) -> str:
    """A registered id for an environment just as registered; one of its own for what somebody wrapped or wrote.

    So a wrapped environment takes no other's tuned settings, and a resumed run can't lose its wrappers unnoticed.
    """
    spec = env.spec
    if spec is None:
        return type(env.unwrapped).__name__
    return f"{spec.id}{WRAPPED}" if spec.additional_wrappers else spec.id


def default_workers(num_envs: int) -> int:
    """One worker per usable core, and none without a environment."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_envs, usable))
