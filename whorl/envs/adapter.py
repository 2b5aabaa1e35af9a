"""The interface between environment libraries and the rest: which ids a library owns, and how to make what they name.

Each module in `MODULES` adapts one library. Users add theirs with `whorl.register("adapter", name, adapter)`; those are
asked first. Imports no torch, because workers make their environments with what is here.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled

from whorl.core import messages
from whorl.core.errors import EnvError, EnvFailure, WhorlError, edits, install_command, missing_extra
from whorl.core.hardware import has_display
from whorl.core.registry import import_hint, import_named, registered
from whorl.envs.mistakes import raised
from whorl.envs.names import IDS, named
from whorl.envs.spaces import Factory
from whorl.envs.wrappers import observation_wrappers, split

if TYPE_CHECKING:
    from whorl.core.spec import Spec
    from whorl.envs.behaviors import BehaviorEnv
    from whorl.envs.make import Source
    from whorl.envs.vector import VectorEnv

MODULES = (
    *(
        "unity",
        "pettingzoo",
        "dm_control",
        "minatar",
        "native",
        "atari",
        "minigrid",
        "pybullet",
        "bumps_bullet",
        "warp",
        "mjx",
        "playground",
        "robotics",
        "random_spaces",
        "imported",
    ),
    "gymnasium",
)
"""in `whorl.envs.adapters`, in the order in which they are asked whether they own an id; gymnasium owns the rest"""
WALKING = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Swimmer", "Walker2d")
"""robots of MuJoCo that a camera has to follow"""


class Adapter:
    """One environment library. A subclass defines at least `owns` and `factory`."""

    extra: str = ""
    """the extra of whorl that installs the library, which the error for a missing package names; "" for others"""
    packages: tuple[str, ...] = ()
    """the modules that must be importable"""
    modules: tuple[str, ...] = ()
    """prefixes of the modules that define its environment classes"""
    single: bool = True
    """whether an id can be made alone, as a `gymnasium.Env`; otherwise `vector`, `spec` and `num_envs` are defined"""
    renders: bool = True
    """whether environments can be rendered; those that can't be made alone by their batch's `render`"""
    cheap: bool = False
    """whether a step takes so little time that worker processes would only slow it down"""

    def owns(self, id: str) -> bool:
        """Whether an id belongs to this library."""
        raise NotImplementedError

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        """A function that makes one environment. It is sent to workers with cloudpickle."""
        raise NotImplementedError

    def full_id(self, id: str) -> str:
        """The id with its version, for which presets have tuned settings."""
        return id

    def notice(self, id: str) -> str:
        """A note on an id that users of other libraries may not expect; "" where there is none."""
        return ""

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options to make an environment with; raises where one is not supported."""
        return options

    def ids(self) -> Iterable[str]:
        """Known ids, among which the nearest one is named where an id is unknown."""
        return ()

    def batches(self, options: Mapping[str, Any]) -> bool:
        """Whether the library itself steps all copies as one batch, so that there are no workers."""
        return False

    def alone(self, id: str, options: Mapping[str, Any]) -> bool:
        """Whether there can't be a second copy beside the first, so that training is not evaluated."""
        return False

    def behaviors(self, id: str, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the behaviours of an environment whose agents have policies of their own; empty for others."""
        return ()

    def behavior_env(self, source: "Source", copies: int = 0) -> "BehaviorEnv":
        """The environment with all its behaviours, where there are any; `copies` 0: as many as options say."""
        raise NotImplementedError

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the run that a library determines, unless the user chose them."""
        return {}

    def num_envs(self, id: str, options: Mapping[str, Any]) -> int | None:
        """The number of environments that the library itself determines; None: any number can be made."""
        return None

    def spec(self, id: str, options: Mapping[str, Any]) -> "Spec":
        """What an agent may know of one environment, where it can't be made alone."""
        raise NotImplementedError

    def frame_rate(self, id: str, options: Mapping[str, Any]) -> float | None:
        """Steps per second of simulated time; None: the metadata of one environment say."""
        return None

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "VectorEnv | None":
        """`num_envs` copies stepped as one batch; None: they are stepped one after another."""
        return None


class RegisteredAdapter(Adapter):
    """A library whose environments are described by entries of Gymnasium's registry."""

    @staticmethod
    def make(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
        """Make the environment of a registry entry, in a worker too."""
        return make_registered(entry, options)

    def entry(self, id: str) -> EnvSpec:
        """The registry entry of an id; raises where there is none."""
        return registry_entry(id)

    def full_id(self, id: str) -> str:
        return id if ":" in id else self.entry(id).id

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        entry = self.entry(id)
        try:
            if isinstance(entry.entry_point, str):
                load_env_creator(entry.entry_point)
        except (ImportError, DependencyNotInstalled) as error:
            raise missing_package(id, error) from error
        # Environments are never stepped before a reset, so the wrapper that checks this is left out.
        return partial(self.make, replace(entry, order_enforce=False), options)


def adapters() -> list[Adapter]:
    """All adapters, in the order in which they are asked: users' own, the newest first, then the package's."""
    return [*reversed(registered("adapter").values()), *_package()]


@cache
def _package() -> tuple[Adapter, ...]:
    return tuple(
        adapter for name in MODULES for adapter in import_module(f"whorl.envs.adapters.{name}").ADAPTERS
    )


def adapter_of(id: str) -> Adapter:
    """The adapter that owns an id."""
    return next(adapter for adapter in adapters() if adapter.owns(id))


def full_id(id: str) -> str:
    """The id with its version, for which presets have tuned settings: Pong is ALE/Pong-v5."""
    name = named(id)[0]
    return adapter_of(name).full_id(name)


def factory_from_id(id: str, **options: Any) -> Factory:
    """A function that makes the environment `id`, also in a worker, where nothing is registered.

    All environments take the options of `whorl.envs.wrappers`, which select what is observed.
    """
    id, implied, _ = named(id)
    adapter = adapter_of(id)
    theirs, ours = split(adapter.check_options(id, implied | options))
    return observation_wrappers(adapter.factory(id, theirs), ours)


def registry_entry(id: str, module: str = "") -> EnvSpec:
    """The entry of an id in Gymnasium's registry; `module` (or the one in `module:Name-v0`) is imported first."""
    given, _, name = id.rpartition(":")
    if given or module:
        gymnasium.register_envs(imported(id, given or module, given))
    found = registry_id(name)
    if found is None:
        known = [known for adapter in adapters() for known in adapter.ids()]
        known += [id if "/" in id or id[-3:-1] == "-v" else f"{id}-v0" for id in IDS]
        raise EnvError(f"unknown environment {id!r}; {_suggestion(name, known)}")
    return gymnasium.registry[found]


def imported(id: str, module: str, given: str) -> Any:
    """A module that has to be imported for an id; `given`: the one that the user named in it."""
    try:
        return import_named(module)
    except ImportError as error:
        raise missing_package(id, error, given) from error
    except Exception as error:  # a user's module may raise anything
        raise EnvFailure(raised(f"importing {module}", error)) from error


def registry_id(name: str) -> str | None:
    """`name`, or its newest version, where Gymnasium's registry has it."""
    if name in gymnasium.registry:
        return name
    versions = [key for key in gymnasium.registry if key != name and _version(key)[0] == name]
    return max(versions, key=_version, default=None)


def _suggestion(name: str, ids: list[str]) -> str:
    if found := near_id(name, ids):
        return f"did you mean {found!r}?"
    if name.isidentifier() and Path(f"{name}.py").is_file():
        return f"{name}.py is a file; name an environment in it, as in {name}:MyEnv"
    # Without a near match the list of all ids would bury the message.
    games = "" if find_spec("ale_py") else f", or for Atari games: {install_command('atari')}"
    return f"import the package that registers it, or write 'package:Name-v0'{games}"


def near_id(name: str, ids: list[str]) -> str | None:
    """The id that a name misspells or begins, whatever its version; None where none is that near.

    One typing error in four letters is near, more is another word: MyMaze is not TMaze. Of ids that are equally near
    the first counts. A name without a namespace is near ids with one: Pong-v5 is ALE/Pong-v5.
    """
    base, version = _version(name.lower())
    best: dict[str, tuple[int, bool, int, int]] = {}
    for place, id in enumerate(ids):
        other, number = _version(id.lower() if "/" in base else id.lower().rpartition("/")[2])
        begins = len(base) >= 4 and other.startswith(base)
        if not begins and abs(len(other) - len(base)) > len(other) // 4:
            continue
        errors = edits(base, other)
        if errors <= len(other) // 4:
            best[id] = (errors, number != version, -number, place)
        elif begins:  # after all typing errors, the shortest first
            best[id] = (100 + len(other), number != version, -number, place)
    return min(best, key=lambda id: best[id], default=None)


def _version(id: str) -> tuple[str, int]:
    """An id without its version, and that; -1 where there is none."""
    base, dash, number = id.rpartition("-v")
    return (base, int(number)) if dash and number.isdecimal() else (id, -1)


def make_registered(entry: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
    """Make the environment that a registry entry describes; the registry may be empty, as it is in a worker."""
    of_mujoco = str(entry.entry_point).startswith("gymnasium.envs.mujoco")
    if "render_mode" in options and of_mujoco:
        options = _filmed(entry.id, options)
    # That Gymnasium's own models use deprecated words concerns no user.
    quiet = _without_deprecations() if of_mujoco and "xml_file" not in options else nullcontext()
    try:
        with quiet:
            return gymnasium.make(entry, disable_env_checker=True, **options)
    except (ImportError, DependencyNotInstalled) as error:
        raise missing_package(entry.id, error) from error
    except gymnasium.error.Error as error:
        raise EnvError(f"{entry.id} can't be made: {error}") from error


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Within, MuJoCo does not print and write to MUJOCO_LOG.TXT what is deprecated; other warnings become Python's."""
    if find_spec("mujoco") is None:
        yield  # Gymnasium says what is missing
        return
    import mujoco

    if mujoco.get_mju_user_warning() is not None:  # the user listens
        yield
        return
    said: list[str] = []
    mujoco.set_mju_user_warning(said.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
    for text in said:
        if "deprecated" not in text:
            messages.warn(f"MuJoCo: {text}")


def _filmed(id: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a MuJoCo environment that is drawn: with EGL where there is no display, by a camera that follows."""
    if not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")
    # Gymnasium's default camera stays where it is, and robots walk out of the picture.
    walks = id.rpartition("-v")[0] in WALKING
    return {"camera_name": "track", **options} if walks and "camera_id" not in options else options


def missing_package(id: str, error: Exception, module: str = "") -> WhorlError:
    """The error for an environment whose import failed: it names the extra that installs what is missing.

    `module` is the one that the user named in `module:Name-v0`.
    """
    text = str(error).lower()
    for adapter in adapters():
        for package in adapter.packages:
            # An environment may reject the installed version (Pusher-v4 does): then its own message is better.
            if package.lower() in text and find_spec(package) is None:
                name = package.replace("_", "-")
                if adapter.extra:
                    return missing_extra(name, adapter.extra)
                return WhorlError(f"{name} is not installed; install it with: pip install {name}")
    hint = import_hint(module, error) if isinstance(error, ImportError) else ""
    return EnvError(f"{id} can't be imported: {error}{hint}")
