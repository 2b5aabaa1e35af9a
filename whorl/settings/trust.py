"""Which import paths settings name: code that a saved run may load only if the caller trusts it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whorl.core.registry import needs_trust
from whorl.settings.behaviors import BehaviorSettings
from whorl.settings.merge import Settings

PART_KEYS = ("class", "layers", "then")
"""options of a part that name parts: its own class, layers of a network, the schedule after a warm-up"""
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def import_paths(settings: Settings | BehaviorSettings) -> list[str]:
    """Import paths of the parts, components and loggers of a run; the environment is not among them."""
    if isinstance(settings, BehaviorSettings):
        return list(dict.fromkeys(name for one in settings.behaviors.values() for name in import_paths(one)))
    plain = settings.plain()
    names = [plain["algorithm"], *plain["components"], *plain.get("loggers", ())]
    parts = [value for key, value in plain.items() if key != "env_options" and isinstance(value, Mapping)]
    return paths_in([names, list(_classes_in(parts))])


def paths_in(value: Any) -> list[str]:
    """All words in nested containers that may be import paths."""
    return list(dict.fromkeys(name for name in words_in(value) if _PATH.fullmatch(name)))


def own_paths(settings: Settings | BehaviorSettings) -> list[str]:
    """The import paths of a run that lead out of whorl and torch, for which it needs trust to be loaded again."""
    return [name for name in import_paths(settings) if needs_trust(name)]


def _classes_in(value: Any, named: bool = False) -> Iterator[str]:
    """The names of parts in nested options, where `named` is whether the option itself names one."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _classes_in(inside, key in PART_KEYS)
    elif isinstance(value, str):
        if named:
            yield value
    elif isinstance(value, Sequence):
        for item in value:
            yield from _classes_in(item, named)


def words_in(value: Any) -> Iterator[str]:
    """All strings in nested containers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from words_in(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            yield from words_in(item)
