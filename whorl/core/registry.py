"""Names of the parts that users can replace: algorithms, components, networks, optimizers, losses and others.

A part is named by a registered name or by an import path such as `mypackage.nets.Residual`. Import paths in a saved
config resolve only to parts of that kind inside `whorl`, to registered parts, or to paths that the caller lists in
`trust=`.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from whorl.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Part:
    """A named part with its options: `Part("AdamW", {"weight_decay": 0.01})`; in YAML `class:` plus options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(value: "Part | str | Sequence[Any] | Mapping[str, Any] | Callable[..., Any]") -> "Part":
        """Read a part from a name, a mapping with `class` and options, a list of layers, or a function or class."""
        if isinstance(value, Part):
            return value
        if callable(value):
            return Part(_name_of(value))
        if isinstance(value, str):
            return Part(value)
        if isinstance(value, (list, tuple)):
            return Part("layers", {"layers": list(value)})
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{value!r} is not a part; give a name, an import path or a mapping with 'class'"
            )
        options = options_of(value)
        name = options.pop("class", "layers" if "layers" in options else None)
        if not isinstance(name, str):
            raise ConfigError(f"{dict(value)!r} is not a part; its 'class' must be a name or an import path")
        return Part(name, options)

    def plain(self) -> dict[str, Any]:
        """The mapping that `of` reads back."""
        return {"class": self.name, **self.options}


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A part's mapping with the options of `params` moved beside `class`."""
    params = given.get("params") or {}
    if not isinstance(params, Mapping):
        raise ConfigError(f"params is {params!r}; it must be a mapping of options to values")
    # Options beside `params` override those inside: they come from a dotted key.
    options = {**params, **{key: value for key, value in given.items() if key != "params"}}
    for key in options:
        if not isinstance(key, str):
            raise ConfigError(f"{dict(given)!r} has an option {key!r}; an option's name must be a word")
    return options


KINDS = (
    *("algorithm", "component", "network", "encoder", "head", "layer", "memory", "optimizer", "schedule"),
    *("loss", "distribution_loss", "exploration", "environment", "adapter", "logger"),
)
_registered: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
# None: every import path is trusted, because the user wrote it. Loading a saved config restricts it.
_trusted: ContextVar[tuple[str, ...] | None] = ContextVar("trusted", default=None)
# What an error about a name that is not trusted says as well.
_hint: ContextVar[str] = ContextVar("hint", default="")


def register(kind: str, name: str, thing: Any = None) -> Any:
    """Register `thing` under a name; without `thing`, a decorator. Registering a name again replaces it."""
    if kind not in KINDS:
        raise ConfigError(f"kind {kind!r} can't be registered; {nearest(kind, KINDS)}")
    if thing is None:

        def decorate(decorated: Any) -> Any:
            _registered[kind][name] = decorated
            return decorated

        return decorate
    _registered[kind][name] = thing
    return thing


def registered(kind: str) -> dict[str, Any]:
    """Everything registered under `kind`, by name."""
    return dict(_registered[kind])


@contextmanager
def only_trusted(trust: tuple[str, ...], hint: str = "") -> Iterator[None]:
    """Inside the block, import paths resolve only within `whorl` or to `trust`: import paths, modules or packages.

    Args:
        hint: the end of the message about a name that is not trusted.
    """
    token, told = _trusted.set(trust), _hint.set(hint)
    try:
        yield
    finally:
        _trusted.reset(token)
        _hint.reset(told)


def require_trust(name: str, what: str) -> None:
    """Raise if only trusted import paths are allowed and `name` is not one of them."""
    trust = _trusted.get()
    if trust is None or any(name == known or name.startswith(f"{known}.") for known in trust):
        return
    raise ConfigError(
        f"the saved config names {what} {name!r}, which is not part of whorl; if you trust it, pass "
        f"trust=[{name!r}] (on the command line --trust {name}){_hint.get()}"
    )


def needs_trust(name: str) -> bool:
    """Whether an import path leads out of whorl, torch's layers and optimizers, and what is registered."""
    if name.startswith("whorl.") or any(name in things for things in _registered.values()):
        return False
    return all(_from_torch(kind, name) is None for kind in KINDS)


def require_part(name: str) -> None:
    """Raise if a saved config may not name an import path, whatever kind of part it is for; as `resolve` does later.

    What is not trusted is not imported.
    """
    if needs_trust(name):
        require_trust(name, "the import path")
    elif name.startswith("whorl."):
        found = _import("part", name)
        if not any(_is_ours(kind, found) for kind in KINDS):
            raise ConfigError(f"the saved config names {name!r}, which is no part that whorl has")


def resolve(kind: str, name: str) -> Callable[..., Any]:
    """The part called `name`: registered, of torch (layers, optimizers), of `whorl.components`, or an import path."""
    if name in _registered[kind]:
        return _registered[kind][name]
    found = _from_torch(kind, name) or _from_package(kind, name)
    if found is not None:
        return found
    if kind == "component" and "." not in name and importlib.util.find_spec(f"whorl.components.{name}"):
        importlib.import_module(f"whorl.components.{name}")  # which registers it
        return _registered[kind][name]
    if "." not in name:
        raise ConfigError(
            f"no {kind} is called {name!r}; {nearest(name, known(kind))}{_register_first(kind, name)}"
        )
    if not name.startswith("whorl."):
        require_trust(name, kind)
        return _import(kind, name)
    found = _import(kind, name)
    if _trusted.get() is not None and not _is_ours(kind, found):
        raise ConfigError(f"the saved config names {kind} {name!r}, which whorl does not have")
    return found


def construct(kind: str, part: Part, *args: Any, **defaults: Any) -> Any:
    """Build a part from `args`, `defaults` and its own options, which must fit the signature."""
    build = resolve(kind, part.name)
    options = {**defaults, **part.options}
    given = ", ".join(f"{key}={value!r}" for key, value in part.options.items()) or "no options"
    problem = f"{kind} {part.name!r} can't be built with {given}"
    try:
        signature = inspect.signature(build)
        signature.bind(*args, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{problem}: {error}") from None
    try:
        return build(*args, **options)
    except ConfigError as error:
        raise ConfigError(f"{kind} {part.name!r}: {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        taken = [str(signature.parameters[key]) for key in part.options if key in signature.parameters]
        allowed = f"; it takes {', '.join(taken)}" if taken else ""
        raise ConfigError(f"{problem}: {error}{allowed}") from error


def known(kind: str) -> list[str]:
    """The names that `resolve` finds without an import path."""
    return sorted({*_registered[kind], *_torch_parts(kind), *_package_modules(kind)})


def _register_first(kind: str, name: str) -> str:
    """Hint for a saved config whose part was registered by the training script."""
    if _trusted.get() is None:
        return ""
    return (
        f" (the saved run uses it: if it is your own, register it first, whorl.register({kind!r}, {name!r}, ...), or "
        f"import the module that does{_hint.get()})"
    )


def import_named(module: str) -> Any:
    """Import a module that the user named; one that is not installed may be in the current folder.

    The script that runs is not imported once more, which would train once more.
    """
    if module not in sys.modules and _is_script(module):
        return sys.modules["__main__"]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here, top = Path.cwd(), module.partition(".")[0]
        if error.name != top or str(here) in sys.path or not _is_module(here, top):
            raise
    sys.path.append(str(here))
    importlib.invalidate_caches()
    return importlib.import_module(module)


def import_hint(module: str, error: ImportError) -> str:
    """What to do about a module that the user named and that was not found."""
    top = module.partition(".")[0]
    if not top or error.name != top:
        return ""
    return f"; install it, run this in the folder that holds {top}.py, or add that folder to PYTHONPATH"


def _is_script(module: str) -> bool:
    """Whether a module is the script that Python was started with."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or Path(script).stem != module:
        return False
    found = importlib.util.find_spec(module)
    return (
        found is not None
        and found.origin is not None
        and Path(found.origin).resolve() == Path(script).resolve()
    )


def _is_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _import(kind: str, name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_named(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = import_hint(module, error) if isinstance(error, ImportError) else ""
        raise ConfigError(f"{kind} {name!r} can't be imported: {error}{hint}") from None


def _is_ours(kind: str, found: Any) -> bool:
    """Whether a saved config may name `found`: defined in whorl, and of the right kind.

    Modules also contain what they import, so a name such as `whorl.api.torch` has to be refused.
    """
    from torch import Tensor, nn, optim

    if not str(getattr(found, "__module__", "")).startswith("whorl."):
        return False
    if isinstance(found, type):
        base = optim.Optimizer if kind == "optimizer" else nn.Module
        return issubclass(found, base) and (
            kind not in ("algorithm", "component") or hasattr(found, "Config")
        )
    values = ("loss", "distribution_loss", "schedule", "exploration")
    if not inspect.isfunction(found) or kind not in ("network", "encoder", "head", "layer", *values):
        return False
    made = inspect.signature(found).return_annotation
    return isinstance(made, type) and issubclass(made, Tensor if kind in values else nn.Module)


@cache
def _torch_parts(kind: str) -> dict[str, Any]:
    if kind not in ("layer", "optimizer"):
        return {}
    from torch import nn, optim  # here, because `whorl list` should start without torch

    where, base = (nn, nn.Module) if kind == "layer" else (optim, optim.Optimizer)
    return {
        name: cls
        for name, cls in vars(where).items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    }


def _from_torch(kind: str, name: str) -> Any:
    """torch's layers and optimizers need no import path: `Linear`, `torch.nn.Linear`, `adamw`, `torch.optim.AdamW`."""
    word = name.removeprefix("torch.nn.").removeprefix("torch.optim.")
    return {key.lower(): value for key, value in _torch_parts(kind).items()}.get(word.lower())


def _package_modules(kind: str) -> list[str]:
    """Parts that lie in a file of their own in the package: whorl/components/NAME.py."""
    if kind != "component":
        return []
    names = (item.name for item in resources.files("whorl.components").iterdir())
    return [name[:-3] for name in names if name.endswith(".py") and not name.startswith("_")]


def _from_package(kind: str, name: str) -> Any:
    """A component of the package, which registers itself when its file is imported."""
    if name in _package_modules(kind):
        importlib.import_module(f"whorl.components.{name}")
    return _registered[kind].get(name)


def _name_of(thing: Callable[..., Any]) -> str:
    """The name under which a saved config can find a function or class again: registered, or its import path."""
    for things in _registered.values():
        for name, other in things.items():
            if other is thing:
                return name
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "<")
    if module is None or "<" in name:
        raise ConfigError(
            f"{thing!r} can't be found again by name, so a run with it can't be restored; define it at the top level "
            "of a module, or register it: whorl.register(KIND, NAME, it)"
        )
    return f"{module}.{name}"
