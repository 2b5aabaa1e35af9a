"""Names for parts that users may swap: algorithms, components, networks, encoders, layers, optimizers, losses, ...

A part is named by a word that someone registered, or by an import path such as `mypackage.nets.Residual`. Paths that
come from a saved config are data, not code: they resolve only to a part of that kind inside `whorl`, to what the caller
registered, or to what the caller trusts by name (`trust=`).
"""

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from whorl.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Part:
    """A named component with its options: `Part("AdamW", {"weight_decay": 0.01})`; in YAML `class:` plus options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(value: "Part | str | Sequence[Any] | Mapping[str, Any]") -> "Part":
        """Read a part from a word, a mapping with `class` (and `params`, or options beside it), or a list of layers."""
        if isinstance(value, Part):
            return value
        if isinstance(value, str):
            return Part(value)
        if isinstance(value, (list, tuple)):
            return Part("layers", {"layers": list(value)})
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{value!r} names no part; give a name, an import path or a mapping with 'class'"
            )
        options = options_of(value)
        name = options.pop("class", "layers" if "layers" in options else None)
        if not isinstance(name, str):
            raise ConfigError(f"{dict(value)!r} names no part; its 'class' must be a name or an import path")
        return Part(name, options)

    def plain(self) -> dict[str, Any]:
        """The mapping that `of` reads back."""
        return {"class": self.name, **self.options}


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A part's mapping with all options beside `class`, none under `params`."""
    params = given.get("params") or {}
    if not isinstance(params, Mapping):
        raise ConfigError(f"params is {params!r}; it must be a mapping of options to values")
    # What stands beside `params` was put there by an override of a single option.
    options = {**params, **{key: value for key, value in given.items() if key != "params"}}
    for key in options:
        if not isinstance(key, str):
            raise ConfigError(f"{dict(given)!r} has an option {key!r}; an option's name must be a word")
    return options


KINDS = ("algorithm", "network", "encoder", "layer", "optimizer", "loss", "environment", "component")
_registered: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
# Everything is trusted where a person writes a path now; loading a saved config narrows it.
_trusted: ContextVar[tuple[str, ...] | None] = ContextVar("trusted", default=None)


def register(kind: str, name: str, thing: Any = None) -> Any:
    """Give `thing` a name; without `thing`, a decorator. A name can be registered again, the newest wins."""
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
    """What has been registered under `kind`, by name."""
    return dict(_registered[kind])


@contextmanager
def only_trusted(trust: tuple[str, ...]) -> Iterator[None]:
    """Within, import paths resolve only to parts of `whorl`, or to `trust`: whole paths, or packages and modules."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def require_trust(name: str, what: str) -> None:
    """Raise where only trusted paths count and `name` is none of them."""
    trust = _trusted.get()
    if trust is None or any(name == known or name.startswith(f"{known}.") for known in trust):
        return
    raise ConfigError(
        f"the saved config names {what} {name!r}, which is not part of whorl; if you know it, pass "
        f"trust=[{name!r}] (on the command line --trust {name})"
    )


def resolve(kind: str, name: str) -> Callable[..., Any]:
    """The thing called `name`: registered first, then torch's own layers and optimizers, then an import path."""
    if name in _registered[kind]:
        return _registered[kind][name]
    found = _from_torch(kind, name)
    if found is not None:
        return found
    if kind == "component" and importlib.util.find_spec(f"whorl.components.{name}"):
        importlib.import_module(f"whorl.components.{name}")  # which registers it
        return _registered[kind][name]
    if "." not in name:
        raise ConfigError(f"no {kind} is called {name!r}; {nearest(name, known(kind))}")
    if not name.startswith("whorl."):
        require_trust(name, kind)
        return _import(kind, name)
    found = _import(kind, name)
    if _trusted.get() is not None and not _is_ours(kind, found):
        raise ConfigError(f"the saved config names {kind} {name!r}, but whorl has no such {kind}")
    return found


def construct(kind: str, part: Part, *args: Any, **defaults: Any) -> Any:
    """Call what `part` names with `args` and its options over `defaults`; options must fit its signature."""
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
    """The names that `resolve` knows without an import path."""
    return sorted({*_registered[kind], *_torch_parts(kind)})


def _import(kind: str, name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{kind} {name!r} can't be imported: {error}") from None


def _is_ours(kind: str, found: Any) -> bool:
    """Whether a saved config may name `found`: defined in whorl, and of the right kind.

    A module of ours also holds what it imported; a name like `whorl.api.torch` must lead nowhere.
    """
    from torch import Tensor, nn, optim

    if not str(getattr(found, "__module__", "")).startswith("whorl."):
        return False
    if isinstance(found, type):
        base = optim.Optimizer if kind == "optimizer" else nn.Module
        return issubclass(found, base) and (
            kind not in ("algorithm", "component") or hasattr(found, "Config")
        )
    if not inspect.isfunction(found) or kind not in ("network", "encoder", "layer", "loss"):
        return False
    made = inspect.signature(found).return_annotation
    return isinstance(made, type) and issubclass(made, Tensor if kind == "loss" else nn.Module)


@cache
def _torch_parts(kind: str) -> dict[str, Any]:
    if kind not in ("layer", "optimizer"):
        return {}
    from torch import nn, optim  # here, so that listing names and reading files need no torch

    where, base = (nn, nn.Module) if kind == "layer" else (optim, optim.Optimizer)
    return {
        name: cls
        for name, cls in vars(where).items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    }


def _from_torch(kind: str, name: str) -> Any:
    """torch's layers and optimizers count as our own: `Linear`, `torch.nn.Linear`, `adamw`, `torch.optim.AdamW`."""
    word = name.removeprefix("torch.nn.").removeprefix("torch.optim.")
    return {key.lower(): value for key, value in _torch_parts(kind).items()}.get(word.lower())
