"""From what a caller asks for to the environment and the complete settings of a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from whorl.core.errors import ConfigError
from whorl.core.registry import registered
from whorl.envs.make import Source, find
from whorl.run.build import kind_of
from whorl.settings.aliases import NOTES, OF_ENVIRONMENT, POLICIES
from whorl.settings.behaviors import BehaviorSettings, check_sections, take_behaviors, together
from whorl.settings.draws import configured, draw_all, read_draws, saying_random, take_random
from whorl.settings.merge import Settings, chosen_fields, configure, merge, plain_fields, settings_of
from whorl.settings.presets import algorithm_class, algorithm_of, preset_names, read_files, same_name
from whorl.settings.run import RunConfig
from whorl.settings.schema import wrong


def prepare_all(
    env: Any,
    algorithm: Any,
    config: Mapping[str, Any] | RunConfig | None,
    files: Sequence[str | Path | Mapping[str, Any]],
    env_options: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Source, Settings | BehaviorSettings]:
    """The environment and all settings of a run, which may have several behaviours; see `load`."""
    _check_order(env, algorithm)
    read = read_files(files)
    objects = config if isinstance(config, RunConfig) else None
    sections, layers = take_behaviors(
        [*read, settings_given(config, {}) if objects is None else {}, settings]
    )
    given = {} if env_options is None else {"env_options": as_options(env_options)}
    source = find(env, _options_in(layers, [given], env))
    options = {**source.options, **env_options_in([*layers, given])}
    several = source.adapter is not None and source.adapter.single is False
    names = source.with_options(options).behaviors if several else ()
    for section in sections:
        check_sections(section, names, source.id)
    if len(names) < 2 and not any(sections):
        return prepare(source, algorithm, config, files, env_options, settings)
    source = source.with_options(options)
    found: dict[str, Settings] = {}
    for name in names:
        own = [one.get(name, {}) for one in sections]
        rule, common = algorithm, layers
        if chosen := [section["algorithm"] for section in own if "algorithm" in section]:
            rule, common = chosen[-1], [_without_algorithm(layer) for layer in layers]
        # A flag comes over the section of a file, a section over what its own layer says for all.
        ordered = [
            part for layer, section in zip(common, own) for part in (layer, _without_algorithm(section))
        ]
        try:
            one, found[name] = prepare(source.behavior(name), rule, objects, ordered, env_options, {})
        except ConfigError as error:
            raise ConfigError(f"behaviour {name!r}: {error.message}") from None
        if found[name].run.num_envs != one.num_envs:
            raise ConfigError(
                f"num_envs of {name!r} is {found[name].run.num_envs}, but all copies together have {one.num_envs} of "
                "its agents; leave num_envs out, and set the number of copies in env_options"
            )
    return source, together(found, source.options)


def prepare(
    env: Any,
    algorithm: Any,
    config: Mapping[str, Any] | RunConfig | None,
    files: Sequence[str | Path | Mapping[str, Any]],
    env_options: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Source, Settings]:
    """The environment and all settings of a run; see `load`. What `random_params` name is drawn with the run's seed."""
    objects: dict[str, Any] = {}
    given = {} if env_options is None else {"env_options": as_options(env_options)}
    if dataclasses.is_dataclass(algorithm):
        algorithm, chosen = algorithm_of(algorithm), algorithm
        objects |= plain_fields(chosen)
        given |= chosen_fields(chosen)
    if isinstance(config, RunConfig):
        objects |= plain_fields(config)
    read = read_files(files)
    drawn, layers = take_random(
        [*read, objects, settings_given(config, {}), settings], settings_of(algorithm_class(algorithm)[1])
    )
    layers, in_config, keywords = layers[: len(read)], layers[-2], layers[-1]
    made = find(env, _options_in(layers, [given, in_config, keywords], env))

    def made_with(options: Mapping[str, Any]) -> Source:
        return made.with_options({**made.options, **options})

    determined = _determined(made, layers, given, {**in_config, **keywords})

    def resolved(random: Mapping[str, Any]) -> Settings:
        return configure(
            algorithm,
            made.id,
            {**given, **determined, **in_config},
            layers,
            changes={**keywords, **random},
            options=made.options if made.named else None,
            objects=objects,
            kind=lambda options: kind_of(made_with(options)),
        )

    found = resolved({})
    if drawn is not None:
        draws = read_draws(drawn, partial(configured, found))
        try:
            found = resolved(draw_all(draws, np.random.default_rng(found.run.seed)))
        except ConfigError as error:
            raise saying_random(error) from None
    source = made_with(found.env_options)
    source.check(found.run)
    return source, dataclasses.replace(found, env_options=dict(source.options))


def _check_order(env: Any, algorithm: Any) -> None:
    """Raise where environment and algorithm are swapped, or where a policy of Stable-Baselines3 comes first."""
    if not isinstance(env, str) or env in registered("environment"):
        return
    if env in POLICIES:
        raise ConfigError(
            f"{env!r} is a policy of Stable-Baselines3; here the environment comes first, and networks are settings: "
            "whorl.load(env, 'ppo')"
        )
    known = {same_name(name) for name in (*preset_names(), *registered("algorithm"))}
    if same_name(env) in known and not (isinstance(algorithm, str) and same_name(algorithm) in known):
        shown = repr(algorithm) if isinstance(algorithm, str) else "env"
        raise ConfigError(f"the environment comes before the algorithm: whorl.load({shown}, {env!r})")


def _without_algorithm(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "algorithm"}


def settings_given(
    config: Mapping[str, Any] | RunConfig | None, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings given as a mapping or config object and as keywords, which come first."""
    if not isinstance(config, Mapping | RunConfig | None):
        raise ConfigError(
            f"config is {config!r}; it must be a mapping of settings or a RunConfig (YAML files: files=[...])"
        )
    values = chosen_fields(config) if isinstance(config, RunConfig) else dict(config or {})
    return {**values, **keywords}


def _options_in(
    files: Sequence[str | Path | Mapping[str, Any]], given: Sequence[Mapping[str, Any]], env: Any
) -> dict[str, Any]:
    """The options among settings that a class or function needs to make its first environment."""
    if isinstance(env, str | gymnasium.Env) or not callable(env):
        return {}
    layers = [*read_files(files), *given]
    for layer in layers:
        if foreign := [name for name in layer if NOTES.get(name) == OF_ENVIRONMENT]:
            raise ConfigError(f"there is no setting {foreign[0]!r}: {OF_ENVIRONMENT}")
    return env_options_in(layers)


def _determined(
    made: Source, layers: Sequence[Mapping[str, Any]], given: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that a batched environment determines, unless they were asked for."""
    if made.adapter is None or made.adapter.single:
        return made.settings(asked)
    # The number of environments depends on options, which are among the settings.
    source = made.with_options({**made.options, **env_options_in([*layers, given, asked])})
    return source.settings({key: value for layer in layers for key, value in layer.items()} | dict(asked))


def env_options_in(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of the environment that layers of settings name."""
    found: dict[str, Any] = {}
    for layer in layers:
        merge(found, {key: value for key, value in layer.items() if key.startswith("env_options")}, {})
    return as_options(found.get("env_options"))


def as_options(value: Any) -> dict[str, Any]:
    """A copy of the options of an environment; raises for what is no mapping."""
    if not isinstance(value or {}, Mapping):
        raise wrong("env_options", value, "a mapping of options to values")
    return dict(value or {})
