"""Source files of the user's own networks and other parts, saved with a run and trusted by their hash.

A checkpoint holds them in its folder `code`. They are imported only if the caller trusts exactly these files, by
`trust=["code:HASH"]`: then they are written to a new temporary folder, where modules are found that are not installed.
"""

import atexit
import hashlib
import importlib
import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath

from whorl.core import files
from whorl.core.arguments import listed
from whorl.core.errors import ConfigError

FOLDER = "code"
PREFIX = "code:"
"""of an entry of `trust` that is the hash of saved code"""
DIGITS = 32
"""of the hash that are shown, and at least needed"""
_admitted: dict[str, tuple[str, ...]] = {}
"""modules of the saved code that was trusted in this process, by its hash"""


def gather(modules: Iterable[str]) -> dict[str, bytes]:
    """The source files of these modules and of what else is loaded of their packages, by their place in a checkpoint.

    What is installed (site-packages, the standard library) or has no file is left out.
    """
    tops = {module.partition(".")[0] for module in modules} - {"__main__", "whorl", "torch"}
    found = {}
    for name, module in sorted(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        if name.partition(".")[0] not in tops or path.suffix != ".py" or _installed(path):
            continue
        place = PurePosixPath(FOLDER, *name.split("."))
        place = place / "__init__.py" if path.name == "__init__.py" else place.with_name(f"{place.name}.py")
        try:
            found[str(place)] = path.read_bytes()
        except OSError:
            continue  # it was deleted since it was imported
    return found


def digest(code: Mapping[str, bytes]) -> str:
    """One hash of all files and their names."""
    lines = [f"{hashlib.sha256(code[name]).hexdigest()} {name}\n" for name in sorted(code)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def flag(code: Mapping[str, bytes]) -> str:
    """The entry of `trust` for this code."""
    return f"{PREFIX}{digest(code)[:DIGITS]}"


def admit(code: Mapping[str, bytes], trust: Sequence[str]) -> tuple[str, ...]:
    """`trust`, its hashes replaced by the modules of the saved code that they stand for, which can be imported now.

    Raises where a hash is not that of this code.
    """
    for entry in listed(trust):
        if entry.startswith(PREFIX):
            _check(entry, code)
            _use(code)
    return expanded(trust)


def expanded(trust: Sequence[str]) -> tuple[str, ...]:
    """`trust`, its hashes replaced by the modules of code that was admitted before, and files by their modules."""
    names: list[str] = []
    for entry in listed(trust):
        if not entry.startswith(PREFIX):
            names.append(_import_path(entry))
            continue
        given = entry.removeprefix(PREFIX).lower()
        for known, modules in _admitted.items():
            if len(given) >= DIGITS and known.startswith(given):
                names += modules
    return tuple(names)


def _import_path(entry: str) -> str:
    """The import path that an entry of `trust` means: itself, that of a file (my_env.py), or of an id (my_env:Mine)."""
    if not entry.endswith(".py"):
        return entry.partition(":")[0]
    path = files.expanded(entry)
    inside = (path.resolve().relative_to(top) for top in _tops() if path.resolve().is_relative_to(top))
    parts = next(inside, Path(path.name)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _tops() -> list[Path]:
    """Folders in which modules are found, this one first."""
    return [Path.cwd(), *(Path(name).resolve() for name in sys.path if name)]


def hint(folder: Path, code: Mapping[str, bytes]) -> str:
    """What to do where saved code is not trusted yet."""
    if not code:
        return ""
    return (
        f"; or read its source, which is saved in {folder / FOLDER}, and trust exactly that: {flag(code)!r} instead of "
        "the name"
    )


def _check(entry: str, code: Mapping[str, bytes]) -> None:
    given = entry.removeprefix(PREFIX).lower()
    if not code:
        raise ConfigError(
            f"trust names {entry!r}, but no code is saved with this run; name import paths instead"
        )
    if len(given) < DIGITS or set(given) - set("0123456789abcdef"):
        raise ConfigError(
            f"trust names {entry!r}; the hash of saved code has at least {DIGITS} hexadecimal digits, as training "
            "printed it"
        )
    if not digest(code).startswith(given):
        raise ConfigError(
            f"trust names {entry!r}, but the code saved with this run has another hash ({flag(code)}): it was altered, "
            "or belongs to another run"
        )


def _use(code: Mapping[str, bytes]) -> None:
    """Make the modules importable, and import them: some register what they define."""
    key = digest(code)
    if key in _admitted:
        return
    modules = {_module(name): content for name, content in code.items()}
    absent = {name for name, content in modules.items() if not _present(name, content)}
    if absent:
        folder = Path(tempfile.mkdtemp(prefix="whorl-code-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for name, content in code.items():
            path = folder / PurePosixPath(name).relative_to(FOLDER)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # Last, so that nothing installed is hidden by it; processes that are started later search there, too.
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    for name in sorted(modules):
        try:
            importlib.import_module(name)
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(
                f"the code saved with this run can't be imported: {name}: {type(error).__name__}: {error}"
            ) from error
    _admitted[key] = tuple(sorted(modules))


def _present(name: str, content: bytes) -> bool:
    """Whether this very module is on this machine; raises where there is another one of that name."""
    spec = _spec(name)
    if spec is None:
        return False
    origin = Path(spec.origin or "")
    if not origin.is_file() or origin.read_bytes() != content:
        raise ConfigError(
            f"the code saved with this run has a module {name}, but {spec.origin or name} on this machine is another "
            f"one; trust that one by its name, {name!r}, or run this in another folder"
        )
    return True


def _spec(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    parent = name.rpartition(".")[0]
    if parent and _spec(parent) is None:
        return None
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # inside a module that is no package, which importing reports
        return None


def _module(place: str) -> str:
    """`mypackage.nets` of code/mypackage/nets.py."""
    parts = PurePosixPath(place).relative_to(FOLDER).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _installed(path: Path) -> bool:
    paths = sysconfig.get_paths()
    roots = [Path(paths[name]).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    place = path.resolve()
    return any(place.is_relative_to(root) for root in roots)
