"""Names for parts that users may swap: algorithms, networks, encoders, layers, optimizers, losses, environments.

A part is named by a word that someone registered, or by an import path such as `mypackage.nets.Residual`. Paths that
come from a saved config are data, not code: they resolve only inside `whorl`, to what the caller registered, or to what
the caller trusts by name (`trust=`).
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import nn, optim

from whorl.errors import ConfigError, nearest


@dataclass(frozen=True)
class Part:
    """A named component with its options: `Part("AdamW", {"weight_decay": 0.01})`; in YAML `class:` plus options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(value: "Part | str | Mapping[str, Any]") -> "Part":
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
        options = dict(value)
        params = options.pop("params", None) or {}
        name = options.pop("class", "layers" if "layers" in options or "layers" in params else None)
        if not isinstance(name, str):
            raise ConfigError(f"{dict(value)!r} has no 'class'; give a name or an import path")
        return Part(name, {**options, **params})

    def plain(self) -> dict[str, Any]:
        """The mapping that `of` reads back."""
        return {"class": self.name, **self.options}


KINDS = ("algorithm", "network", "encoder", "layer", "optimizer", "loss", "environment")
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
    """Within, import paths resolve only inside `whorl`, to registered names, or to the paths in `trust`."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def resolve(kind: str, name: str) -> Callable[..., Any]:
    """The thing called `name`: registered first, then torch's own layers and optimizers, then an import path."""
    if name in _registered[kind]:
        return _registered[kind][name]
    found = _from_torch(kind, name)
    if found is not None:
        return found
    if "." not in name:
        raise ConfigError(f"no {kind} is called {name!r}; {nearest(name, known(kind))}")
    trust = _trusted.get()
    if trust is not None and not (name.startswith("whorl.") or name in trust):
        raise ConfigError(
            f"the saved config names {name!r}, which is not part of whorl; if you know it, pass trust=[{name!r}]"
        )
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} {name!r} can't be imported: {error}") from None


def known(kind: str) -> list[str]:
    """The names that `resolve` knows without an import path."""
    return sorted({*_registered[kind], *(_TORCH.get(kind, {}))})


_TORCH: dict[str, dict[str, Any]] = {
    "optimizer": {
        name: cls
        for name, cls in vars(optim).items()
        if isinstance(cls, type) and issubclass(cls, optim.Optimizer) and cls is not optim.Optimizer
    },
    "layer": {
        name: cls for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, nn.Module)
    },
}


def _from_torch(kind: str, name: str) -> Any:
    """torch's layers and optimizers count as our own: `Linear`, `torch.nn.Linear`, `adamw`, `torch.optim.AdamW`."""
    table = _TORCH.get(kind)
    if table is None:
        return None
    word = name.removeprefix("torch.nn.").removeprefix("torch.optim.")
    return {key.lower(): value for key, value in table.items()}.get(word.lower())
