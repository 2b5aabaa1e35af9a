"""Environments by the import path of their class, or of a function that makes one: `myenvs:MyEnv` or `myenvs.MyEnv`."""

import re
from functools import partial
from typing import Any

import gymnasium

from whorl.core.errors import EnvError
from whorl.core.registry import import_named
from whorl.envs.adapter import Adapter, missing_package, registry_id
from whorl.envs.spaces import Factory

_PATH = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)[:.]([A-Za-z_]\w*)")


def module_of(id: str) -> str:
    """The module that an id imports: of `myenvs:MyEnv-v0`, `myenvs:MyEnv` and `myenvs.MyEnv`; "" for other ids."""
    path = _PATH.fullmatch(id)
    return path[1] if path else id.rpartition(":")[0]


class ImportedAdapter(Adapter):
    """Import paths of what is not registered with Gymnasium."""

    def owns(self, id: str) -> bool:
        path = _PATH.fullmatch(id)
        if path is None or registry_id(id) is not None:
            return False
        if "." in id and ":" not in id:
            return True
        try:
            import_named(path[1])
        except Exception:  # whatever a user's module raises is reported where registered names are looked up
            return False
        return registry_id(path[2]) is None

    def full_id(self, id: str) -> str:
        return ":".join(_split(id))

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        _found(*_split(id))  # raises now, not in a worker
        return partial(_make, *_split(id), options)


def _split(id: str) -> tuple[str, str]:
    path = _PATH.fullmatch(id)
    assert path is not None
    return path[1], path[2]


def _found(module: str, name: str) -> Any:
    try:
        found = getattr(import_named(module), name)
    except (ImportError, AttributeError) as error:
        raise missing_package(f"{module}:{name}", error, module) from error
    if not callable(found):
        raise EnvError(f"{module}:{name} is {type(found).__name__!r}; name the class of an environment")
    return found


def _make(module: str, name: str, options: dict[str, Any]) -> gymnasium.Env:
    made = _found(module, name)(**options)
    if not isinstance(made, gymnasium.Env):
        raise EnvError(
            f"{module}:{name} made a {type(made).__name__}; name a class derived from gymnasium.Env"
        )
    return made


ADAPTERS = (ImportedAdapter(),)
