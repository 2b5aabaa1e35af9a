"""Environments by the import path of their class, or of a function that makes one.

`myenvs.MyEnv` is always the class; `myenvs:MyEnv` is the newest version of what is registered as `MyEnv`, and the class
where nothing is.
"""

import re
import sys
from functools import partial
from typing import Any

import gymnasium

from whorl.core.errors import EnvError, nearest
from whorl.core.registry import import_named
from whorl.envs.adapter import Adapter, imported, registry_id
from whorl.envs.spaces import Factory

WARP, MJX, PLAYGROUND = "warp:", "mjx:", "playground:"
GPU = (WARP, MJX, PLAYGROUND)
"""prefixes of ids on a GPU, which name tasks of Gymnasium or MuJoCo Playground and import no module of the user"""
PETTINGZOO = "pettingzoo"
MAKERS = ("parallel_env", "env")
"""what makes an environment in a module: one in which all agents act at once, or a game that is played in turns"""
FAMILIES = ("atari", "butterfly", "classic", "mpe", "sisl")
"""packages inside PettingZoo, whose ids need not name it twice"""
_PATH = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)[:.]([A-Za-z_]\w*)")


def module_of(id: str) -> str:
    """The module that an id imports: of `myenvs:MyEnv-v0`, `myenvs:MyEnv` and `myenvs.MyEnv`; "" for other ids.

    What follows the first colon may have others, as in `unity:C:\\game.exe`, whose trust is that of `unity`.
    """
    if id.startswith(f"{PETTINGZOO}:"):
        module, name = parallel_path(id)
        # Its modules hold more than environments: functions that import whatever their arguments name.
        known = module.startswith(f"{PETTINGZOO}.") and name in ("", *MAKERS)
        return "" if known else module
    if id.startswith(GPU):
        return ""
    path = _PATH.fullmatch(id)
    return path[1] if path else id.partition(":")[0] if ":" in id else ""


def parallel_path(id: str) -> tuple[str, str]:
    """The module that an id `pettingzoo:MODULE:NAME` imports, and what makes one in it; "": one of MAKERS."""
    module, _, name = id.partition(":")[2].partition(":")
    if module.partition(".")[0] in FAMILIES:
        module = f"{PETTINGZOO}.{module}"
    return module, name


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

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        _found(id)  # raises now, not in a worker
        return partial(_make, id, options)


def _found(id: str) -> Any:
    path = _PATH.fullmatch(id)
    assert path is not None
    found = getattr(imported(id, path[1], path[1]), path[2], None)
    if found is None:
        raise EnvError(_absent(path[1], path[2]))
    if not callable(found):
        raise EnvError(f"{id} is a {type(found).__name__}; name the class of an environment")
    return found


def _absent(module: str, name: str) -> str:
    """The message about a name that a module does not have."""
    things = vars(sys.modules[module]).items()
    classes = [
        key
        for key, thing in things
        if isinstance(thing, type) and thing.__module__ == module and hasattr(thing, "step")
    ]
    if name == "py":
        return f"{module}.py is a file; name an environment in it, as in {module}:{classes[0] if classes else 'MyEnv'}"
    hint = f"; {nearest(name, classes)}" if classes else ""
    return f"{module} has no class {name!r}, and registers no environment of that name{hint}"


def _make(id: str, options: dict[str, Any]) -> gymnasium.Env:
    made = _found(id)(**options)
    if not isinstance(made, gymnasium.Env):
        raise EnvError(f"{id} made a {type(made).__name__}; name a class derived from gymnasium.Env")
    return made


ADAPTERS = (ImportedAdapter(),)
