"""Settings of a run: tuned preset < files < arguments, merged by name or alias, checked and typed.

A run has two flat frozen dataclasses, `RunConfig` of the training loop and `Config` of the algorithm, and one more for
each component. Keys are flat; those of a component are nested under its name (`rnd: {lr: 1e-4}`, `rnd.lr`).
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from whorl.core import hardware, messages
from whorl.core.errors import ConfigError, misspelt
from whorl.core.registry import Part, known, options_of, resolve
from whorl.settings.aliases import (
    ALIASES,
    COGYM,
    EXPANSIONS,
    IN_SEQUENCES,
    SHARE_NOTHING,
    SHARED_OFF_POLICY,
    SHARED_ON_POLICY,
    TWINS,
    canonical,
    in_epochs,
    is_expansion,
    note_on,
    translated,
)
from whorl.settings.alike import same_meaning, same_topic
from whorl.settings.conditions import WHERE, ConditionContext, layers_where
from whorl.settings.follow import follow
from whorl.settings.presets import algorithm_class, owners, preset_layers, preset_names, read_files, same_name
from whorl.settings.run import RunConfig
from whorl.settings.schema import bare, build, coerce, describe, fields_of, wrong
from whorl.settings.secrets import hidden
from whorl.settings.sections import without_sections
from whorl.settings.switches import without_effect

RESERVED = ("algorithm", "env", "env_options", "components", "where")


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Those of the loop and the algorithm, and their aliases, can be read as attributes."""

    algorithm: str
    env: str
    run: RunConfig
    algo: Any
    env_options: Mapping[str, Any] = field(default_factory=dict)
    components: Mapping[str, Any] = field(default_factory=dict)
    """the config of each component by its name"""
    buffer_chosen: bool = field(default=True, compare=False)
    """whether the user or a saved run chose the size of the replay buffer; else it may shrink to fit into memory"""

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "algo"):  # not set yet while a copy is being made
            raise AttributeError(name)
        own = {f.name: config for config in (self.run, self.algo) for f in dataclasses.fields(config)}
        name = canonical(name, own)
        if name not in own:
            raise AttributeError(f"no setting is called {name!r}")
        return getattr(own[name], name)

    def plain(self) -> dict[str, Any]:
        """Plain containers under canonical names, as written to config.yaml."""
        return {
            "algorithm": self.algorithm,
            "env": self.env,
            "env_options": copy.deepcopy(dict(self.env_options)),
            "components": list(self.components),
            **plain_fields(self.run),
            **plain_fields(self.algo),
            **{name: plain_fields(config) for name, config in self.components.items()},
        }

    def saved(self) -> dict[str, Any]:
        """What is written to files: `plain` without secrets."""
        return dict(hidden(self.plain()))

    def replace(self, **changes: Any) -> "Settings":
        """The same settings with some values changed (names or aliases)."""
        found = configure(self.algorithm, self.env, self.plain(), presets=False, changes=changes)
        sizes = dict.fromkeys(("buffer_size", "buffer_size_per_env"))
        chosen = any(canonical(key, sizes) in sizes for key in changes)
        return replace(found, buffer_chosen=self.buffer_chosen or chosen)


def configure(
    algorithm: str,
    env: str,
    arguments: Mapping[str, Any],
    files: Iterable[str | Path | Mapping[str, Any]] = (),
    presets: bool = True,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
    objects: Mapping[str, Any] = MappingProxyType({}),
    kind: Callable[[Mapping[str, Any]], Iterable[str]] = lambda options: (),
) -> Settings:
    """Merge tuned preset < files < objects < arguments < changes into checked, typed settings.

    With presets, values that the user did not choose depend on the hardware and the kind of environment
    (`whorl.settings.conditions`), and follow those that the user did choose (`whorl.settings.follow`).

    Args:
        options: what the environment was made with, which comes before a preset's `env_options`; None: the environment
            is already made and takes no options from a preset.
        objects: all settings of config objects; those that the user chose are among `arguments` as well.
        kind: words for the kind of environment, made with the options that the user chose; see `ConditionContext`.
    """
    name, cls, preset = algorithm_class(algorithm)
    hints, configs = settings_of(cls, name), (RunConfig, config_of(cls))
    tuned: list[Mapping[str, Any]] = [*preset_layers(preset, env)] if presets else []
    tuned = tuned if options is not None else [_without(layer, "env_options") for layer in tuned]
    tuned = [*tuned, {"env_options": dict(options or {})}]
    # A saved config.yaml, which names its algorithm, holds all settings: none of them was chosen by name.
    complete = {"algorithm": name, **objects} if objects else {}
    in_files = read_files(files)
    for read in in_files:
        _check_one_name(read, hints)
    given_layers = [*in_files, complete, arguments, changes or {}]
    if not presets:  # a run of an earlier version may have saved settings that its algorithm never used
        given_layers = [_used(layer, configs[1]) if "algorithm" in layer else layer for layer in given_layers]
    own = {*hints, *component_names([*tuned, *given_layers])}
    user: list[Mapping[str, Any]] = [without_sections(layer, own) for layer in given_layers]
    chosen = component_names([*tuned, *user])
    if presets:
        context = _condition_context(tuned, user, hints, configs[1], chosen, kind)
        tuned = [part for layer in tuned for part in layers_where(layer, context)]
        # A preset may hold settings of components that are tuned for an environment, in case they are used.
        unused = set(known("component")) - {*chosen, *hints}
        tuned = [{key: value for key, value in part.items() if key not in unused} for part in tuned]
        user = [part for layer in user for part in layers_where(layer, context)]
    merged, default, given = _merged(tuned, hints, chosen), _merged(tuned, hints, chosen), set[str]()
    epochs: dict[str, Any] = {}
    for layer in user:
        asked = _merged([layer], hints, chosen)
        epochs = {key: value for key, value in epochs.items() if key not in asked} | in_epochs(layer)
        merge(merged, layer, hints, chosen)
        if "algorithm" in layer:
            merge(default, layer, hints, chosen)
        else:
            given |= set(asked)
    for key, value in (("algorithm", name), ("env", env)):
        word = str(merged.pop(key, value))
        if same_name(word) != same_name(value):
            raise ConfigError(f"the settings name {key} {word!r}, but {value!r} was asked for")
    env_options = merged.pop("env_options", None)
    env_options = {} if env_options is None else env_options
    if not isinstance(env_options, Mapping) or not all(isinstance(key, str) for key in env_options):
        raise wrong("env_options", env_options, "a mapping of options to values")
    merged.pop("components", None)
    components = {component: _component(component, merged.pop(component, {}), hints) for component in chosen}
    _check_known(name, cls, merged, hints, chosen)
    run, algo = (build(config, merged) for config in configs)
    if presets:
        before = {key: value for config in configs for key, value in vars(build(config, default)).items()}
        run, algo = _fitted(run, algo, before, given, epochs, context.gpu)
        if "max_iterations" in epochs and not any(name in layer for layer in user for name in COGYM):
            messages.warn(
                f"max_epochs is read as CO-GYM's, iterations of {run.num_envs * run.num_steps:,} steps; for Tianshou's "
                "set total_timesteps to max_epochs times epoch_num_steps"
            )
        chosen_names = {canonical(key, hints) for layer in user for key in layer if "algorithm" not in layer}
        _check_meaning(chosen_names, algo)
        default_values = {key: value for config in configs for key, value in vars(config()).items()}
        for sentence in in_sequences(user, vars(run) | vars(algo)):
            messages.warn(sentence)
        for sentence in without_effect({**vars(run), **vars(algo)}, default_values, chosen_names):
            messages.warn(sentence)
    if not (run.total_timesteps or run.max_iterations or run.total_episodes):
        raise ConfigError("training would never end; set total_timesteps, max_iterations or total_episodes")
    buffer_chosen = not presets or bool(given & {"buffer_size", "buffer_size_per_env"})
    return Settings(name, env, run, algo, dict(env_options), components, buffer_chosen)


def in_sequences(layers: Iterable[Mapping[str, Any]], values: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on numbers of steps that Deep RL Zoo, where an algorithm has a memory, counts in sequences."""
    if values.get("memory", "none") == "none":
        return
    for name in dict.fromkeys(key for layer in layers for key in layer if key in IN_SEQUENCES):
        setting = ALIASES[name][0]
        steps, stride = values[setting], values["sequence_stride"]
        yield (
            f"{name} is read as {setting}, {steps:,} steps; for {steps:,} sequences, as Deep RL Zoo counts them with a "
            f"memory, set {setting} to {steps * stride} (sequence_stride is {stride})"
        )


def _check_one_name(layer: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise for a setting that a file names twice, by different names and with different values."""
    spelt: dict[str, str] = {}
    for key in layer:
        name = canonical(str(key), hints)
        before = spelt.setdefault(name, key)
        if before != key and layer[before] != layer[key]:
            raise ConfigError(
                f"{before!r} and {key!r} are one setting, but have the values {layer[before]!r} and {layer[key]!r}; "
                "leave one of them out"
            )


def _merged(
    layers: Iterable[Mapping[str, Any]], hints: Mapping[str, Any], components: Iterable[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layer in layers:
        merge(found, layer, hints, components)
    return found


def _fitted(
    run: RunConfig,
    algo: Any,
    before: Mapping[str, Any],
    given: set[str],
    epochs: Mapping[str, Any],
    gpu: bool,
) -> tuple[RunConfig, Any]:
    """Both configs with the values that follow what the user chose, and cadences that were given in epochs in steps."""
    values = {key: value for key, value in (vars(run) | vars(algo)).items() if key not in _unused(type(algo))}
    changed = follow(values, before, given) | _hardware(run, given, gpu)
    rows = changed.get("num_envs", run.num_envs) * changed.get("num_steps", run.num_steps)
    cadences = {key: value for key, value in epochs.items() if key != "max_iterations"}
    changed |= {key: coerce(key, value, int) * rows for key, value in cadences.items()}
    return _changed(run, changed), _changed(algo, changed)


def _changed(config: Any, values: Mapping[str, Any]) -> Any:
    return dataclasses.replace(
        config, **{f.name: values[f.name] for f in dataclasses.fields(config) if f.name in values}
    )


def _condition_context(
    tuned: Iterable[Mapping[str, Any]],
    user: Iterable[Mapping[str, Any]],
    hints: Mapping[str, Any],
    config: Any,
    components: Iterable[str],
    kind: Callable[[Mapping[str, Any]], Iterable[str]],
) -> ConditionContext:
    """What conditions in settings are checked against."""
    asked = _merged([_without(layer, WHERE) for layer in user], hints, components)
    values = _merged([_without(layer, WHERE) for layer in tuned], hints, components) | asked
    device, memory = str(asked.get("device", "auto")), values.get("memory", getattr(config, "memory", "none"))
    wanted = asked.get("hardware", "auto")
    wanted = wanted if wanted != "auto" else {"auto": "auto", "cpu": "cpu"}.get(device, "gpu")
    gpu = hardware.has_gpu() if wanted == "auto" else wanted == "gpu"
    return ConditionContext(gpu, memory not in ("none", None), partial(kind, asked.get("env_options") or {}))


def _hardware(run: RunConfig, given: set[str], gpu: bool) -> dict[str, Any]:
    """The hardware that presets were chosen for, and the device, where the hardware was chosen by name."""
    found = {"hardware": "gpu" if gpu else "cpu"}
    if "hardware" in given and run.hardware != "auto" and "device" not in given:
        found["device"] = "cuda" if gpu else "cpu"
    return found


def config_of(algorithm: type) -> Any:
    """The config class of an algorithm."""
    return algorithm.Config  # type: ignore[attr-defined]


def settings_of(algorithm: type, name: str = "") -> dict[str, Any]:
    """The settings of a run with an algorithm, by name with their types: the training loop's and the algorithm's."""
    config = config_of(algorithm)
    own, run = fields_of(config), fields_of(RunConfig)
    if taken := sorted(set(own) & {*run, *RESERVED}):
        raise ConfigError(
            f"{name or algorithm.__name__} has a setting {taken[0]!r}, a name that the training loop uses; rename it"
        )
    return {key: hint for key, hint in (run | own).items() if key not in _unused(config)}


def component_config(name: str) -> Any:
    """The config class of a component."""
    config = getattr(resolve("component", name), "Config", None)
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"component {name!r} has no Config; give its class a frozen dataclass of that name")
    return config


def component_names(layers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The components that settings name; the last layer that names any decides."""
    given = [layer["components"] for layer in layers if "components" in layer]
    value = given[-1] if given else ()
    value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Mapping) else value
    return list(dict.fromkeys(coerce("components", value if value is not None else (), tuple[str, ...])))


def _component(name: str, values: Any, hints: Mapping[str, Any]) -> Any:
    """The config of a component from its merged options."""
    if name in hints or name in RESERVED:
        raise ConfigError(f"component {name!r} has the name of a setting; register it under another name")
    config = component_config(name)
    if not isinstance(values, Mapping):
        raise wrong(name, values, "a mapping of the component's settings")
    own, found = fields_of(config), {}
    for key, value in values.items():
        found.update(translated(str(key), value, own))
    if unknown := sorted(set(found) - set(own)):
        raise unknown_component_setting(name, unknown[0], own)
    return build(config, found, prefix=f"{name}.")


def _check_known(
    name: str, cls: type, merged: dict[str, Any], hints: Mapping[str, Any], components: Sequence[str]
) -> None:
    """Raise for settings that an algorithm does not have; warn of, and drop, those that CO-GYM's tables share."""
    shared = SHARED_OFF_POLICY if "buffer_size" in hints else SHARED_ON_POLICY
    problems: list[str] = []
    for key in sorted(set(merged) - set(hints)):
        if key in known("component"):
            raise ConfigError(f"{key} was configured, but it is not in use; add it: components: [{key}]")
        meant = next((word for word in (key, *ALIASES.get(key, ())) if word in shared), None)
        if meant is None:
            if key in _unused(config_of(cls)):
                raise ConfigError(f"{name} does not use {key}; {note_on(key, hints) or 'leave it out'}")
            problems.append(unknown_setting(name, key, hints, components).message)
            continue
        own = f"; its own is {TWINS[meant]}" if TWINS.get(meant) in hints else ""
        messages.warn(f"{meant} is a setting of {owners(meant)}; {name} ignores it{own}")
        del merged[key]
    if problems:
        raise ConfigError(problems[0], "\n".join(problems[1:]))


def unknown_component_setting(component: str, key: str, hints: Mapping[str, Any]) -> ConfigError:
    """The error for a setting that a component does not have."""
    word = component_setting(key, [component])
    remedy = f"did you mean {word!r}?" if word else f"it has {', '.join(hints)}"
    return ConfigError(f"{component} has no setting {key!r}; {remedy}")


def component_setting(key: str, components: Iterable[str]) -> str | None:
    """The setting of one of these components that a word means or misspells, as in rnd.weight."""
    for component in components:
        own = fields_of(component_config(component))
        if word := key if key in own else misspelt(key, spellings(own)):
            return f"{component}.{word}"
    return None


def unknown_setting(
    owner: str, key: str, hints: Mapping[str, Any], components: Sequence[str] = ()
) -> ConfigError:
    """The error for a setting that neither an algorithm nor its `components` have."""
    start = f"{owner} has no setting {key!r}"
    if TWINS.get(key) in hints:
        return ConfigError(f"{start}; here it is called {TWINS[key]!r}")
    if note := note_on(key, hints):
        return ConfigError(f"{start}: {note}")
    if key in preset_names():
        return ConfigError(f"{start}: settings are not grouped by algorithm; write them at the top level")
    for name in (key, *ALIASES.get(key, ())):
        if others := owners(name):
            alias = "" if name == key else f" ({name})"
            near = related(key, hints)
            return ConfigError(f"{start}{alias}, which belongs to {others}{near and f'; {near}'}")
    if not same_meaning(key, hints) and (word := misspelt(key, spellings(hints))):
        return ConfigError(f"{start}; did you mean {word!r}?")
    if word := component_setting(key, components):
        return ConfigError(f"{start}; did you mean {word!r}?")
    return ConfigError(
        f"{start}; {related(key, hints) or f'whorl train {owner} ENV --help-all lists all settings'}"
    )


def related(key: str, hints: Mapping[str, Any], shown: Callable[[str], str] = repr) -> str:
    """What an unknown name may mean among `hints`, in words; empty where nothing is near.

    Args:
        shown: how a setting is written.
    """
    if found := same_meaning(key, hints):
        return f"did you mean {' or '.join(map(shown, found))}?"
    if found := same_topic(key, hints):
        return f"perhaps {', '.join(map(shown, found))}?"
    return ""


def spellings(hints: Mapping[str, Any]) -> list[str]:
    """All names and aliases that are accepted for these settings."""
    aliases = [alias for alias, targets in ALIASES.items() if any(target in hints for target in targets)]
    return [*hints, *aliases, *(name for name in EXPANSIONS if is_expansion(name, hints))]


def _check_meaning(given: set[str], algo: Any) -> None:
    """Raise for names that do something else in Stable-Baselines3, if they would have no effect here."""

    def changed(name: str) -> bool:
        return name in given and getattr(algo, name, None) != getattr(type(algo), name, None)

    if changed("clip_range_vf") and not algo.clip_value:
        raise ConfigError("clip_range_vf is used only with clip_value; set clip_value to true")
    if changed("value_coef") and not algo.shared_trunk:
        raise ConfigError(f"value_coef is used only with shared_trunk; without it {SHARE_NOTHING}")
    for name in ("lr", "hidden_sizes", "network"):
        critic, actor = getattr(algo, f"critic_{name}", None), getattr(algo, f"actor_{name}", None)
        asked = {f"critic_{name}", "net_arch"} if name == "hidden_sizes" else {f"critic_{name}"}
        if asked & given and getattr(algo, "shared_trunk", False) and critic != actor:
            raise ConfigError(
                f"critic_{name} has no effect with shared_trunk: actor and critic share the actor's layers and one "
                f"optimizer; set actor_{name}, or shared_trunk to false"
            )
    if changed("target_kl") and algo.lr_schedule.name != "kl":
        raise ConfigError(
            "target_kl is used only with lr_schedule kl; set kl_cut to stop updates early at a KL divergence, as "
            "target_kl of Stable-Baselines3 does"
        )


def _unused(config: type) -> tuple[str, ...]:
    return getattr(config, "unused", ())


def _used(layer: Mapping[str, Any], config: type) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name not in _unused(config)}


def _without(layer: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name != key}


def merge(
    into: dict[str, Any], layer: Mapping[str, Any], hints: Mapping[str, Any], components: Iterable[str] = ()
) -> None:
    """Put `layer` over `into`, under canonical names.

    Parts, components and `env_options` are merged option by option, unless another class is named. A name that sets
    several settings comes before those named individually in the same layer; dotted keys (`optimizer.weight_decay`),
    which change one option, come last.
    """
    dotted: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    several: dict[str, Any] = {}
    for given, value in layer.items():
        key = str(given)
        if key == "components" and isinstance(value, Mapping):
            plain.update({name: options for name, options in value.items() if options is not None})
        elif "." in key and key not in components:
            dotted[key] = value
        else:
            group = several if is_expansion(key.replace("-", "_"), hints) else plain
            group.update(translated(key, value, hints))
    for name, value in (several | plain).items():
        part = bare(hints.get(name)) is Part
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, Part)):
            value = plain_fields(value)
        into[name] = _combined(into.get(name), value, name, part)
    for key, value in dotted.items():
        head = next((name for name in components if key.startswith(f"{name}.")), key.partition(".")[0])
        path, name = key[len(head) + 1 :], canonical(head, hints)
        if name in hints and bare(hints[name]) is not Part:
            raise ConfigError(f"{key} does not exist: {name} is {describe(hints[name])}, without options")
        into[name] = _override(into.get(name), path, value, name)


def _combined(old: Any, new: Any, name: str, part: bool) -> Any:
    if part:
        if not isinstance(new, (str, list, tuple, Mapping, Part)) and not callable(new):
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
                # A layer that is just a name becomes a mapping that can hold options.
                node[index] = {"class": node[index]} if isinstance(node[index], str) else node[index]
                node = node[index]
            else:
                node = node.setdefault(index, {})
    except (ValueError, IndexError, AttributeError, TypeError):
        raise ConfigError(f"{name}.{path} does not exist in {old!r}") from None
    return value


def plain_fields(config: Any) -> dict[str, Any]:
    """The settings of a config in plain containers."""

    def plain(value: Any) -> Any:
        if isinstance(value, Part):
            return copy.deepcopy(value.plain())
        return list(value) if isinstance(value, tuple) else value

    names = [f.name for f in dataclasses.fields(config) if f.name not in _unused(type(config))]
    return {name: plain(getattr(config, name)) for name in names}


def chosen_fields(config: Any) -> dict[str, Any]:
    """The settings of a config, in plain containers, that differ from their defaults."""
    default = plain_fields(type(config)())
    return {name: value for name, value in plain_fields(config).items() if value != default[name]}
