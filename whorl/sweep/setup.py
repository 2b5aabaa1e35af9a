"""From the layers of a sweep's settings to checked ones: which belong to the sweep, which to its trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, misspelt
from whorl.log.groups import MACHINE, REPORTING
from whorl.run.prepare import prepare_all
from whorl.settings.aliases import canonical, is_expansion
from whorl.settings.draws import meant
from whorl.settings.merge import Settings, plain_fields, settings_of
from whorl.settings.presets import algorithm_class, read_file, read_yaml
from whorl.settings.schema import build, fields_of
from whorl.settings.secrets import hidden
from whorl.sweep.config import MAY_CHANGE, SweepConfig
from whorl.sweep.space import SEARCH, Space, read_spaces
from whorl.sweep.strategy import check_names

CONFIG = "sweep.yaml"
EVALUATIONS = 10
"""of a run, unless eval_freq is set"""
DEFAULTS: dict[str, Any] = {"tensorboard": False, "save_model": False, "n_eval_episodes": 10}
"""default settings of trials: many short trainings"""
FIXED = {
    "eval": "trials are compared by their evaluations; set eval_freq and n_eval_episodes",
    "name": "runs are named after their trials; name the sweep's folder with --folder",
    "render": "trials are evaluated in their own processes; leave it out",
}
"""settings that a sweep decides, with what to do instead"""
BUDGET = ("total_timesteps", "max_iterations", "total_episodes", "max_seconds")


@dataclass(frozen=True)
class Sweeping:
    """All that a sweep is made of."""

    config: SweepConfig
    search: Any
    """as it was written"""
    algorithm: str
    env: str
    layers: tuple[Mapping[str, Any], ...]
    """settings of the trials, as they were written"""
    base: Settings
    """settings of a trial before anything is searched"""
    spaces: tuple[Space, ...]

    @property
    def eval_freq(self) -> int:
        return self.base.run.eval_freq

    def trial_layers(self) -> tuple[Mapping[str, Any], ...]:
        """The layers of a trial's settings."""
        return DEFAULTS, *self.layers, {"eval_freq": self.eval_freq}

    def plain(self) -> dict[str, Any]:
        """What is written to the sweep's folder."""
        return {
            "algorithm": self.algorithm,
            "env": self.env,
            "sweep": plain_fields(self.config),
            SEARCH: self.search,
            "settings": [dict(hidden(dict(layer))) for layer in self.layers],
        }


def read(layers: Sequence[Mapping[str, Any]]) -> Sweeping:
    """A sweep out of layers of settings, all of them checked."""
    algorithm, env = (
        _named(layers, key, word) for key, word in (("algorithm", "ppo"), ("env", "CartPole-v1"))
    )
    search = _search(layers)
    own, rest = _split(layers, algorithm)
    config = build(SweepConfig, own)
    check_names(config.sampler, config.pruner)
    base = _base(algorithm, env, rest)
    spaces = read_spaces(search, base)
    for space in spaces:
        _check_searchable(space, base)
    return Sweeping(config, search, algorithm, env, tuple(rest), base, tuple(spaces))


def load(folder: Path, changes: Mapping[str, Any]) -> Sweeping:
    """The sweep of a folder, with some settings changed."""
    saved = _saved(folder)
    for key in changes:
        if canonical(str(key), fields_of(SweepConfig)) not in MAY_CHANGE:
            raise ConfigError(
                f"a continued sweep can't change {key!r}; it can change {', '.join(MAY_CHANGE)}; use another "
                "--folder for a new sweep"
            )
    head = {"algorithm": saved["algorithm"], "env": saved["env"], SEARCH: saved[SEARCH]}
    return read([{**head, **saved["sweep"]}, *saved["settings"], changes])


def save(sweeping: Sweeping, folder: Path) -> None:
    """Write the settings, or raise where the folder has a sweep with other ones."""
    found = sweeping.plain()
    if (folder / CONFIG).is_file():
        before = _saved(folder)
        for part in ("algorithm", "env", SEARCH, "settings", "sweep"):
            if difference := _difference(part, before[part], found[part]):
                raise ConfigError(
                    f"{folder} holds a sweep with another {difference}; use another --folder for a new sweep, or "
                    f"delete that one"
                )
    files.write_atomic(folder / CONFIG, yaml.safe_dump(found, sort_keys=False).encode())


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / CONFIG).is_file()


def _saved(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        found = read_yaml(path.read_text("utf-8"), str(path))
        return {key: found[key] for key in ("algorithm", "env", "sweep", SEARCH, "settings")}
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {error}") from None


def _difference(part: str, before: Any, now: Any) -> str:
    """The name of the first setting that differs; empty: none does."""
    if part == "settings":
        before, now = (
            {key: value for layer in layers for key, value in layer.items()} for layers in (before, now)
        )
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return "" if before == now else part
    names = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    names = [key for key in names if part != "sweep" or key not in MAY_CHANGE]
    return f"{SEARCH}.{names[0]}" if names and part == SEARCH else (names[0] if names else "")


def _named(layers: Sequence[Mapping[str, Any]], key: str, example: str) -> str:
    found = [layer[key] for layer in layers if layer.get(key) is not None]
    if not found:
        raise ConfigError(f"the settings of a sweep must name its {key}, as in {key}: {example}")
    if not isinstance(found[-1], str):
        raise ConfigError(f"{key} is {found[-1]!r}; it must be a name, as in {key}: {example}")
    return found[-1]


def _search(layers: Sequence[Mapping[str, Any]]) -> Any:
    """`search`, also as `search.NAME`; the last layer that has any decides on each name."""
    found: Any = None
    for layer in layers:
        for key, value in layer.items():
            head, _, name = str(key).partition(".")
            if head != SEARCH:
                continue
            value = {name: value} if name else value
            both = isinstance(value, Mapping) and isinstance(found, Mapping)
            found = {**found, **value} if both else value
    if found is None:
        raise ConfigError(
            f"the settings of a sweep must say what it searches: {SEARCH}: default, or {SEARCH}: {{lr: log 1e-5..1e-2}}"
        )
    return found


def _split(
    layers: Sequence[Mapping[str, Any]], algorithm: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Settings of the sweep, and the layers of its trials'."""
    hints, theirs = fields_of(SweepConfig), settings_of(algorithm_class(algorithm)[1])
    own: dict[str, Any] = {}
    rest = []
    for layer in layers:
        kept = {}
        for key, value in layer.items():
            name = canonical(str(key), hints)
            if name in hints:
                own[name] = value
            elif str(key).partition(".")[0] not in ("algorithm", "env", SEARCH):
                kept[key] = value
                _check(str(key), algorithm, hints, theirs)
        if kept:
            rest.append(kept)
    return own, rest


def _check(key: str, algorithm: str, hints: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    name = canonical(key, theirs)
    if name in FIXED:
        raise ConfigError(f"{key} can't be set for a sweep: {FIXED[name]}")
    word = misspelt(name, [*hints, SEARCH])
    if word and name not in theirs and not is_expansion(name, theirs):
        raise ConfigError(f"neither a sweep nor {algorithm} has a setting {key!r}; did you mean {word!r}?")


def _base(algorithm: str, env: str, layers: Sequence[Mapping[str, Any]]) -> Settings:
    base = prepare_all(env, algorithm, {}, [DEFAULTS, *layers], None, {})[1]
    if not isinstance(base, Settings):
        raise ConfigError(f"{env} has several behaviours, but a sweep searches the settings of one")
    hints = settings_of(algorithm_class(algorithm)[1])
    chosen = any(canonical(str(key), hints) == "eval_freq" for layer in layers for key in layer)
    total = base.run.total_timesteps
    return base if chosen or not total else base.replace(eval_freq=max(1, -(-total // EVALUATIONS)))


def _check_searchable(space: Space, base: Settings) -> None:
    for key in meant(base, space.name, SEARCH):
        if key in (*BUDGET, *REPORTING, *MACHINE):
            raise ConfigError(
                f"{SEARCH}.{space.name} changes how a run is measured, not how it learns; search settings of "
                f"{base.algorithm} such as gamma"
            )


def layers_of(config: str | Path, settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The layers of a settings file and of flags."""
    return [*read_file(config), *([settings] if settings else [])]
