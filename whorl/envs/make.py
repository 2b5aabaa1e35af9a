"""Finds or makes the environments of a run from an id, an environment, a batched environment, or a factory."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

from whorl.core import messages
from whorl.core.errors import ConfigError, EnvError, nearest
from whorl.core.goals import GoalRewards
from whorl.core.hardware import cores
from whorl.core.registry import registered
from whorl.core.spec import Spec
from whorl.envs.adapter import Adapter, adapter_of, adapters, factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector, to_spec
from whorl.envs.adapters.pettingzoo import OPTIONS as PARALLEL_OPTIONS
from whorl.envs.adapters.pettingzoo import PettingZooAdapter, is_parallel
from whorl.envs.adapters.vectorized import BatchedVector, is_vectorized
from whorl.envs.goals import goal_rewards
from whorl.envs.mistakes import make_env, raised
from whorl.envs.names import meant
from whorl.envs.native import WORLDS
from whorl.envs.spaces import Factory, probe
from whorl.envs.vector import VectorEnv
from whorl.envs.wrappers import OPTIONS, observation_wrappers, split
from whorl.settings.presets import WRAPPED
from whorl.settings.run import RunConfig


class Made(gymnasium.Wrapper):
    """What `whorl.make` returns: a Gymnasium environment that knows how to make more of its kind."""

    def __init__(self, env: gymnasium.Env, source: "Source") -> None:
        super().__init__(env)
        self.source = source
        self.id = source.id


class Batch:
    """A batched environment that the user gave: the first copy, and the function that makes more, if there is one."""

    def __init__(self, env: Any, factory: Callable[[], Any] | None = None) -> None:
        self.factory = factory
        self._first: VectorEnv | None = _as_vector(env) if factory else _borrowed(_as_vector(env))
        self._seen = self._first
        self.id, self.spec = self._first.id or type(env).__name__, self._first.spec

    def shown(self) -> VectorEnv:
        """An instance to look at, not to step."""
        return self._seen or self.vector()

    def vector(self) -> VectorEnv:
        first, self._first = self._first, None
        if first is not None:
            return first
        if self.factory is None:
            raise EnvError(
                f"only one instance of {self.id} was given, and a second one is needed; pass a function that makes it"
            )
        return _as_vector(self.factory())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_first": None, "_seen": None}


def _borrowed(env: VectorEnv) -> VectorEnv:
    """The user's own instance: closing the run leaves it open.

    Its class has the attributes of the instance: from Python 3.12 on, isinstance with a protocol does not ask
    `__getattr__` for them.
    """

    def forward(name: str) -> property:
        return property(lambda self: getattr(env, name), lambda self, value: setattr(env, name, value))

    names = {name: forward(name) for name in dir(env) if not name.startswith("_")}
    made: VectorEnv = type("Borrowed", (), {**names, "close": lambda self: None})()
    return made


@dataclass(frozen=True)
class Source:
    """Where the environments of a run come from."""

    id: str
    factory: Factory
    """makes one environment"""
    options: Mapping[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    """the library that owns the id; None for what the user made"""
    batch: Batch | None = None
    """the batched environment that the user gave"""
    named: bool = True
    """whether the id alone finds the environment again, for instance when a run is resumed"""
    given: Factory | None = None
    """the class or function that the user gave, which takes options"""

    @property
    def num_envs(self) -> int | None:
        """The number of environments of a batch that the user gave, or of the library; None: any can be made."""
        if self.batch is not None:
            return self.batch.spec.num_envs
        return None if self.adapter is None else self.adapter.num_envs(self.id, self.options)

    @property
    def behaviors(self) -> tuple[str, ...]:
        """Names of the behaviours, where agents of the environment have policies of their own and none is chosen."""
        if self.adapter is None or self.options.get("behavior"):
            return ()
        return self.adapter.behaviors(self.id, self.options)

    def behavior(self, name: str) -> "Source":
        """The same environment with one behaviour to train."""
        return self.with_options({**self.options, "behavior": name})

    @property
    def alone(self) -> bool:
        """Whether there is one copy only, so that training can't be evaluated."""
        if self.batch is not None:
            return self.batch.factory is None
        return self.adapter is not None and self.adapter.alone(self.id, self.options)

    @property
    def batched(self) -> bool:
        """Whether all environments are stepped as one batch in this process, so that there are no workers."""
        return self.batch is not None or (self.adapter is not None and self.adapter.batches(self.options))

    @property
    def world(self) -> type | None:
        """The class of a native environment, None for others."""
        return WORLDS.get(self.id.rpartition(":")[2]) if self.adapter and self.batched else None

    def vector(self, num_envs: int, device: torch.device | str = "cpu", compile: bool = False) -> VectorEnv:
        """`num_envs` copies, stepped by this process; native environments are tensors on `device`."""
        if self.batch is not None:
            if num_envs != self.num_envs:
                raise EnvError(f"{self.id} has {self.num_envs} environments, but {num_envs} are needed")
            return self.batch.vector()
        found = self.adapter.vector(self, num_envs, device, compile) if self.adapter else None
        return found or GymnasiumVector(self.factory, num_envs, self.id)

    def spec(self, num_envs: int) -> Spec:
        """What an agent may know of `num_envs` environments, without making them."""
        if self.batch is not None:
            return self.batch.spec.with_num_envs(num_envs)
        if self.adapter is not None and not self.adapter.single:
            return self.adapter.spec(self.id, self.options).with_num_envs(num_envs)
        if self.batched:
            return self.vector(1).spec.with_num_envs(num_envs)
        return to_spec(probe(self.factory), num_envs)

    def goal_rewards(self) -> GoalRewards | None:
        """Its rewards as a function of goals, for `her`; None if it has none."""
        spec = self.spec(1)
        if self.batch is not None:
            return goal_rewards(self.batch.shown, True, spec, self.id)
        single = self.adapter is None or self.adapter.single
        if single and not self.batched:
            return goal_rewards(partial(make_env, self.factory), False, spec, self.id)
        return goal_rewards(partial(self.vector, 1), True, spec, self.id) if self.world else None

    @property
    def evaluated(self) -> "Source":
        """The same environment without the options that are meant for training alone."""
        return self.with_options(self.without_training(self.options))

    def without_training(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """`options` but those that are meant for training alone."""
        world = WORLDS.get(self.id.rpartition(":")[2]) if self.batch is None else self.batch.shown()
        dropped = getattr(world, "training_options", ())
        return {name: value for name, value in options.items() if name not in dropped}

    def with_options(self, options: Mapping[str, Any]) -> "Source":
        """The same environment made with other options."""
        if dict(options) == dict(self.options):
            return self
        if self.named:
            return find(self.id, options)
        if self.given is not None:
            return find(self.given, options)
        raise ConfigError(
            f"env_options {', '.join(options)} can't change an environment that is already made; pass its id, or its "
            "class or a function that takes options"
        )

    def workers(self, asked: int, num_envs: int) -> int:
        """The number of worker processes; where `asked` is -1 one per core, and none where a step is cheap."""
        if self.batched:
            return 0
        if asked >= 0:
            return min(asked, num_envs)
        count = default_workers(num_envs)
        return 0 if count < 2 or self._cheap() else count

    def _cheap(self) -> bool:
        if self.adapter is not None and self.adapter.cheap:
            return True
        env = make_env(self.factory)
        env.close()
        module = type(env.unwrapped).__module__
        return any(adapter.cheap and module.startswith(adapter.modules) for adapter in adapters())

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a batched environment determines and `config` does not name."""
        found = {} if self.adapter is None else self.adapter.settings(self.options)
        if self.num_envs is not None:
            found["num_envs"] = self.num_envs
        if self.num_envs is not None and self.alone and "eval" not in config:
            found["eval"] = False
            remedy = "one instance was given; pass a function that makes it"
            if self.batch is None:
                remedy = "there is one; evaluate with whorl eval afterwards"
            messages.warn(f"evaluation is off, because it needs a second copy of {self.id} and {remedy}")
        return {name: value for name, value in found.items() if name not in config}

    def check(self, run: RunConfig) -> None:
        """Raise where settings do not fit a batched environment."""
        if self.batch is None:
            self._check_library(run)
            return
        needed = self.batch.spec.num_envs * max(run.actors, 1)
        if run.num_envs != needed:
            each = " for each actor" if run.actors else ""
            raise ConfigError(
                f"num_envs is {run.num_envs}, but {self.id} has {self.num_envs} environments{each}; "
                f"leave num_envs out or set it to {needed}"
            )
        if self.batch.factory is None and (run.actors or run.eval):
            what = "actors need their own copies" if run.actors else "evaluation needs a second copy"
            raise ConfigError(
                f"{what} of {self.id}, but one instance was given; pass a function that makes it, or set "
                f"{'actors to 0' if run.actors else 'eval to false'}"
            )

    def _check_library(self, run: RunConfig) -> None:
        """The same for one whose library steps it."""
        if self.adapter is None or self.adapter.single:
            return
        if run.actors:
            raise ConfigError(
                f"actors is {run.actors}, but {self.id} is stepped by one process; set actors to 0"
            )
        if run.eval and self.alone:
            raise ConfigError(
                f"evaluation needs a second copy of {self.id}, and there is one; set eval to false"
            )


def make(env: str | gymnasium.Env | Factory, **options: Any) -> Made:
    """An environment by id (ours, Gymnasium's, or one you registered), from an object, or from a class or function.

    A class or function is called with the options.
    """
    late = [name for name in options if isinstance(env, Made) or (_is_made(env) and name not in OPTIONS)]
    if late:
        raise EnvError(
            f"{late[0]} can't change an environment that is already made; pass its id, or its class or a function that "
            "takes options"
        )
    source = find(env, options)
    return Made(make_env(source.factory), source)


def find(env: Any, options: Mapping[str, Any] | None = None) -> Source:
    """The source of an id, an environment, a batched environment, or a class or function that makes either.

    Objects take only the options of `whorl.envs.wrappers`: others were given when they were made.
    """
    options = dict(options or {})
    if isinstance(env, Source):
        return env
    if isinstance(env, Made):
        return env.source
    if isinstance(env, str):
        return _from_id(env, options)
    if is_batch(env):
        return _from_batch(Batch(env), options)
    if isinstance(env, gymnasium.Env):
        return _wrapped(_from_env(env), split(options)[1])
    if is_parallel(env):
        return _from_parallel(lambda: copy.deepcopy(env), _parallel_name(env), options)
    if callable(env):
        return _from_factory(env, options)
    if isinstance(env, list | tuple):
        raise EnvError(
            f"the environment is a {type(env).__name__} of {len(env)}; give one id or function, and set num_envs"
        )
    raise EnvError(
        f"{env!r} is not an environment; "
        "give an id, a gymnasium.Env, a batched environment, or a function that makes one"
    )


def _is_made(env: Any) -> bool:
    return not isinstance(env, str) and (is_batch(env) or isinstance(env, gymnasium.Env))


def _from_factory(factory: Callable[..., Any], options: dict[str, Any]) -> Source:
    theirs, ours = split(options)
    shared = {
        name: theirs[name] for name in PARALLEL_OPTIONS if name in theirs and not takes(factory, theirs)
    }
    own = {name: value for name, value in theirs.items() if name not in shared}
    check_call(factory, own)
    build = partial(factory, **own) if own else factory
    built = make_env(build)
    if is_parallel(built):
        return _from_parallel(factory, _parallel_name(built), options)
    check_call(factory, theirs)
    if is_batch(built):
        source = _from_batch(Batch(built, build), ours)
    elif isinstance(built, gymnasium.Env):
        name = _name(built)
        built.close()
        source = _wrapped(Source(name, build, named=False), ours)
    else:
        raise EnvError(
            f"the factory returned a {type(built).__name__}; "
            "it must return a gymnasium.Env or a batched environment"
        )
    return replace(source, options=options, given=factory)


def _from_parallel(factory: Callable[..., Any], id: str, options: dict[str, Any]) -> Source:
    """An environment with PettingZoo's parallel API that the user wrote or made."""
    adapter = PettingZooAdapter(factory)
    make = adapter.factory(id, adapter.check_options(id, options))
    return Source(id, make, options, adapter, named=False, given=factory)


def _parallel_name(env: Any) -> str:
    name = env.metadata.get("name") if isinstance(getattr(env, "metadata", None), Mapping) else None
    return str(name or type(env).__name__)


def takes(factory: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether a class or function can be called with these options alone."""
    try:
        inspect.signature(factory).bind(**options)
    except TypeError:
        return False
    except ValueError:  # compiled code may have no signature
        return True
    return True


def check_call(factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise where a class or function can't be called with these options alone: one is unknown or missing."""
    if takes(factory, options):
        return
    name = getattr(factory, "__name__", type(factory).__name__)
    parameters = inspect.signature(factory).parameters
    for key in options:
        if key not in parameters:
            remedy = nearest(key, parameters) if parameters else "it takes none"
            raise EnvError(f"{name} takes no option {key!r}; {remedy}")
    lacks = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key not in options
    ]
    raise EnvError(
        f"{name} needs {' and '.join(map(repr, lacks))}; give it as an option, env_options={{{lacks[0]!r}: ...}}"
    )


def _from_id(id: str, options: dict[str, Any]) -> Source:
    own = registered("environment")
    file, suffix, name = id.partition(".py:")
    if id.endswith(".py") and "/" in id and ":" not in id:  # unity:player.py is a player
        file, suffix, name = id.removesuffix(".py"), ".py", "MyEnv"
    if suffix:
        parts = Path(file).parts
        inside = not {"/", ".."} & set(parts)
        module = ".".join(parts if inside else parts[-1:])
        raise EnvError(
            f"{file}.py is a file; name its module: {module}:{name}{'' if inside else ', in the folder of the file'}"
        )
    if id in own:
        theirs, ours = split(options)
        source = Source(id, observation_wrappers(partial(own[id], **theirs), ours), options)
    else:
        id, implied = meant(id)
        options = implied | options
        adapter = adapter_of(id)
        if notice := adapter.notice(id):
            messages.warn(notice)
        source = Source(adapter.full_id(id), factory_from_id(id, **options), options, adapter)
    if options.keys() - {"render_mode"} and (source.adapter is None or source.adapter.single):
        # Options come from the user, so one that the environment does not take is reported now.
        try:
            make_env(source.factory).close()
        except EnvError as error:
            if isinstance(error.__cause__, TypeError):
                why = str(error.__cause__).partition(" was raised from the environment creator")[
                    0
                ]  # Gymnasium's
                raise EnvError(f"{id} can't be made with {options}: {why}") from error.__cause__
            raise
    return source


def _from_env(env: gymnasium.Env) -> Source:
    spec = env.spec
    if spec is not None and spec.id in WORLDS and _as_registered(spec):
        options = {key: value for key, value in spec.kwargs.items() if key not in ("world_id", "render_mode")}
        return _from_id(spec.id, options)
    return Source(_name(env), partial(_copied, env), named=False)


def _as_registered(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Whether there is no wrapper and no time limit but those with which the environment is registered."""
    limit = gymnasium.spec(spec.id).max_episode_steps
    return not spec.additional_wrappers and spec.max_episode_steps == limit


def _copied(env: gymnasium.Env) -> gymnasium.Env:
    """A copy, which includes the wrappers around the environment."""
    try:
        return copy.deepcopy(env)
    except Exception as error:  # copying runs arbitrary code of the user's objects
        raise EnvError(
            f"{_name(env)} was given as an object, which is copied for each environment and can't be "
            f"({raised('copying it', error)}); pass its class, or a function that makes it"
        ) from None


def _wrapped(source: Source, options: dict[str, Any]) -> Source:
    """`source` with the observation wrappers that `options` name."""
    if not options:
        return source
    if source.adapter is not None:
        source.adapter.check_options(source.id, options)
    factory = observation_wrappers(source.factory, options)
    make_env(factory).close()
    return replace(source, factory=factory, options=options)


def _name(env: gymnasium.Env) -> str:
    """The registered id of an environment made as registered; a name of its own for what was wrapped or written.

    So a wrapped environment does not get settings tuned for another one, and a resumed run can't lose its wrappers.
    """
    spec = env.spec
    if spec is None:
        return type(env.unwrapped).__name__
    return f"{spec.id}{WRAPPED}" if spec.additional_wrappers else spec.id


def is_batch(env: Any) -> bool:
    """Whether an object steps many environments at once."""
    return not isinstance(env, type) and (is_vectorized(env) or isinstance(env, VectorEnv))


def _as_vector(env: Any) -> VectorEnv:
    if is_vectorized(env):
        id = getattr(env.spec, "id", None)
        return BatchedVector(env, f"{id}{WRAPPED}" if id else type(env).__name__)
    if env.capturable and not (hasattr(env, "state_tensors") and hasattr(env, "generator")):
        raise EnvError(
            f"{type(env).__name__}.capturable is true, but it has no state_tensors() or no generator; "
            "add them, or set it to False"
        )
    return env


def _from_batch(batch: Batch, options: dict[str, Any]) -> Source:
    if options:
        raise EnvError(f"{batch.id} is a batch of environments, which {', '.join(options)} can't change")

    def single() -> gymnasium.Env:
        raise EnvError(f"{batch.id} is a batch of environments; pass it to whorl.load or whorl.train")

    return Source(batch.id, single, batch=batch, named=False)


def default_workers(num_envs: int) -> int:
    """One worker per usable core, but not more than environments."""
    return max(1, min(num_envs, cores()))
