"""Typed settings: preset < file < arguments, with aliases, and errors that teach.

A run's settings are two flat frozen dataclasses, the loop's (`RunConfig`) and the algorithm's (`Config` in its file).
The string under a field is its documentation and its command-line help.
"""

import copy
import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part, options_of
from whorl.settings.aliases import ALIASES, AUXILIARY, OFF_POLICY, TWINS
from whorl.settings.families import ActorCriticConfig, EntropyConfig, NoiseConfig, ReplayConfig
from whorl.settings.limits import check, coerce, describe, wrong
from whorl.settings.presets import _word, algorithm_class, preset_layers, read_file
from whorl.settings.run import RunConfig


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Fields of both configs, and their aliases, are read as attributes."""

    algorithm: str
    env: str
    run: RunConfig
    algo: Any
    env_options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "algo"):  # not there yet while a copy is being made
            raise AttributeError(name)
        name = ALIASES.get(name, name)
        for config in (self.run, self.algo):
            if name in {f.name for f in dataclasses.fields(config)}:
                return getattr(config, name)
        raise AttributeError(f"no setting is called {name!r}")

    def plain(self) -> dict[str, Any]:
        """Plain containers, as written to config.yaml."""
        merged = {**_plain_fields(self.run), **_plain_fields(self.algo)}
        options = copy.deepcopy(dict(self.env_options))
        return {"algorithm": self.algorithm, "env": self.env, "env_options": options, **merged}

    def replace(self, **changes: Any) -> "Settings":
        """The same settings with some values changed (names or aliases)."""
        return configure(self.algorithm, self.env, self.plain(), presets=False, changes=changes)


def configure(
    algorithm: str,
    env: str,
    arguments: Mapping[str, Any],
    files: Iterable[str | Path] = (),
    presets: bool = True,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
) -> Settings:
    """Merge tuned preset < files < arguments < changes into checked, typed settings.

    Args:
        options: what the environment was made with, which comes before a preset's `env_options`; None: it is what it
            is, and takes none of a preset's.
    """
    name, cls, preset = algorithm_class(algorithm)
    hints = settings_of(cls)
    layers: list[Mapping[str, Any]] = []
    if presets:
        found = preset_layers(preset, env)
        layers += found if options is not None else [_without(layer, "env_options") for layer in found]
    layers.append({"env_options": dict(options or {})})
    layers += [layer for path in files for layer in read_file(path)]
    merged: dict[str, Any] = {}
    for layer in [*layers, arguments, changes or {}]:
        merge(merged, layer, hints)
    for key, value in (("algorithm", name), ("env", env)):
        given = str(merged.pop(key, value))
        if _word(given) != _word(value):
            raise ConfigError(f"the settings name {key} {given!r}, but {value!r} was asked for")
    env_options = merged.pop("env_options", None)
    env_options = {} if env_options is None else env_options
    if not isinstance(env_options, Mapping) or not all(isinstance(key, str) for key in env_options):
        raise wrong("env_options", env_options, "a mapping of options to values")
    owners = borrowed(cls)
    for key in sorted(set(merged) - set(hints)):
        if key not in owners:
            if key in _unused(cls.Config):  # type: ignore[attr-defined]
                raise ConfigError(f"{name} makes no use of {key}; leave it out")
            raise unknown_setting(name, key, hints)
        own = f"; its own is {TWINS[key]}" if TWINS.get(key) in hints else ""
        warnings.warn(f"{key} is a setting of {owners[key]}; {name} makes no use of it{own}", stacklevel=2)
        del merged[key]
    run, algo = (build(config, merged) for config in (RunConfig, cls.Config))  # type: ignore[attr-defined]
    return Settings(name, env, run, algo, dict(env_options))


def settings_of(algorithm: type) -> dict[str, Any]:
    """What a run of an algorithm can be told, with types: the settings of the loop, and those it makes use of."""
    config = algorithm.Config  # type: ignore[attr-defined]
    found = fields_of(RunConfig, config)
    return {name: hint for name, hint in found.items() if name not in _unused(config)}


def borrowed(algorithm: type) -> dict[str, str]:
    """Settings of others that an algorithm takes, since one table serves several; and whose they are."""
    config = algorithm.Config  # type: ignore[attr-defined]
    if issubclass(config, ReplayConfig):
        return {**OFF_POLICY, "log_std_range": "SAC and TQC"}
    return dict.fromkeys(AUXILIARY, "PPG")


def _unused(config: type) -> tuple[str, ...]:
    return getattr(config, "unused", ())


def _without(layer: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name != key}


def fields_of(*configs: type) -> dict[str, Any]:
    """The settings of config classes by name, with their types."""
    hints = {name: hint for config in configs for name, hint in get_type_hints(config).items()}
    return {f.name: hints[f.name] for config in configs for f in dataclasses.fields(config)}


def unknown_setting(algorithm: str, key: str, known: Iterable[str]) -> ConfigError:
    """The error for a setting that an algorithm does not have."""
    known = set(known)
    replay = {*OFF_POLICY, *TWINS, *fields_of(ActorCriticConfig, NoiseConfig, EntropyConfig)}
    if "buffer_size" not in known and key in replay:
        return ConfigError(
            f"{key!r} belongs to off-policy algorithms (SAC, TD3 and others); {algorithm} keeps no replay buffer, so "
            "leave it out"
        )
    if TWINS.get(key) in known:
        return ConfigError(f"{algorithm} has no setting {key!r}; did you mean {TWINS[key]!r}?")
    hint = nearest(key, [*known, *(alias for alias, ours in ALIASES.items() if ours in known)])
    if not hint.startswith("did"):
        hint = f"whorl train {algorithm} ENV --help lists those it has"
    return ConfigError(f"{algorithm} has no setting {key!r}; {hint}")


def canonical(key: str) -> str:
    """Our name of a setting, from an alias or with hyphens."""
    key = key.replace("-", "_")
    return ALIASES.get(key, key)


def merge(into: dict[str, Any], layer: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Put `layer` over `into`.

    Parts and `env_options` are overridden option by option, unless another class is named. Dotted keys such as
    `optimizer.weight_decay` change one entry, of what the same layer says where it says something.
    """
    for key, value in layer.items():
        if "." not in str(key):
            name = canonical(str(key))
            into[name] = _combined(into.get(name), value, name, hints.get(name) is Part)
    for key, value in layer.items():
        head, _, path = str(key).partition(".")
        if path:
            name = canonical(head)
            if name in hints and hints[name] is not Part:
                raise ConfigError(f"{key} names nothing: {name} is {describe(hints[name])}, without parts")
            into[name] = _override(into.get(name), path, value, name)


def _combined(old: Any, new: Any, name: str, part: bool) -> Any:
    if part:
        if not isinstance(new, (str, list, tuple, Mapping, Part)):
            raise wrong(name, new, describe(Part))
        new = _options(new) if isinstance(new, Mapping) else Part.of(new).plain()
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return dict(new) if isinstance(new, Mapping) else new
    if part and "class" in new and new["class"] != old.get("class"):
        return dict(new)
    return {**old, **new}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """A part's mapping in one form: options beside `class`, and a list of layers named as such."""
    found = options_of(given)
    return {"class": "layers", **found} if "layers" in found else found


def _override(old: Any, path: str, new: Any, name: str) -> Any:
    """`old` with the entry at a dotted path changed; items of a list are named by number."""
    value = copy.deepcopy({} if old is None else old)
    node, words = value, path.split(".")
    try:
        for word, after in zip(words, [*words[1:], None]):
            index: Any = int(word) if isinstance(node, list) else word
            if after is None:
                node[index] = new
            elif isinstance(node, list):
                # A layer that is just a name gets room for options.
                node[index] = {"class": node[index]} if isinstance(node[index], str) else node[index]
                node = node[index]
            else:
                node = node.setdefault(index, {})
    except (ValueError, IndexError, AttributeError, TypeError):
        raise ConfigError(f"{name}.{path} names nothing in {old!r}") from None
    return value


def build(config: type, values: Mapping[str, Any]) -> Any:
    """One checked dataclass out of merged values; keys of the other classes are left alone."""
    hints = fields_of(config)
    found = {}
    for f in dataclasses.fields(config):
        if f.name in values:
            value, default = values[f.name], f.default
            if isinstance(value, Mapping) and isinstance(default, Part):
                value = {"class": default.name, **value}
            found[f.name] = checked = coerce(f.name, value, hints[f.name])
            check(f.name, checked, default)
    return config(**found)


def _plain_fields(config: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Part):
            return copy.deepcopy(value.plain())
        return list(value) if isinstance(value, tuple) else value

    names = [f.name for f in dataclasses.fields(config) if f.name not in _unused(type(config))]
    return {name: plain(getattr(config, name)) for name in names}
