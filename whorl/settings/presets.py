"""Algorithms by name, their presets, and settings files."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from whorl.core.arguments import listed
from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import registered, resolve
from whorl.settings.aliases import POLICIES
from whorl.settings.sections import as_variants, without_sections

OTHER_NAMES = {
    "rainbow_dqn": "rainbow",
    "qrdqn": "qr_dqn",
    "ddqn": "double_dqn (RLcycle's ddqn is dueling_dqn)",
    "rsac_s": "rsac_share",
    "csac": "sac, with an environment that shows images",
    **dict.fromkeys(("ppo_lstm", "recurrent_ppo", "recurrentppo"), "ppo, with the setting memory: lstm"),
    **dict.fromkeys(("maskable_ppo", "maskableppo", "ppo_mask"), "ppo, which obeys masks by itself"),
    **dict.fromkeys(("apex", "ape_x"), "apex_dqn"),
}
"""algorithms in other libraries, and what they are called here"""
_ZOO = re.compile(r"deep_rl_zoo\.(\w+)\.(\w+)")
"""modules of Deep RL Zoo"""


def algorithm_class(name: str) -> tuple[str, type, dict[str, Any]]:
    """Canonical name, agent class and preset of an algorithm, given its name in any case or its import path."""
    if not isinstance(name, str):
        raise ConfigError(
            f"the algorithm is {name!r}; give its name, its import path, or a config object such as PPOConfig()"
        )
    word = same_name(name)
    users = {same_name(key): (key, cls) for key, cls in registered("algorithm").items()}
    if word in users:
        key, cls = users[word]
        return key, cls, {}
    if zoo := _ZOO.fullmatch(name):
        here = "eval RUN" if zoo[2] == "eval_agent" else f"train {zoo[1]} ENV"
        raise ConfigError(f"{name!r} is a module of Deep RL Zoo; here it is whorl {here}")
    if "." in name:
        found = resolve("algorithm", name)
        if not hasattr(found, "Config"):
            raise ConfigError(
                f"{name!r} is not an algorithm; derive a class with a Config from whorl.agents.agent.Agent"
            )
        return name, found, {}  # type: ignore[return-value]
    presets = preset_names()
    if name in POLICIES:
        raise ConfigError(
            f"{name!r} is a policy of Stable-Baselines3; here networks are settings: name the algorithm, as in ppo"
        )
    if word in OTHER_NAMES:
        raise ConfigError(f"no algorithm is called {name!r}; here it is {OTHER_NAMES[word]}")
    if word not in presets:
        raise ConfigError(f"no algorithm is called {name!r}; {nearest(word, [*presets, *users])}")
    preset = load_preset(word)
    return word, resolve("algorithm", preset["rule"]), preset  # type: ignore[return-value]


def same_name(name: str) -> str:
    """A name in the form in which case and hyphens do not matter."""
    return name.lower().replace("-", "_")


def algorithms() -> dict[str, str]:
    """The name of every algorithm with a one-line description."""
    known = {name: load_preset(name)["about"] for name in preset_names()}
    users = {
        name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in registered("algorithm").items()
    }
    return dict(sorted({**known, **users}.items()))


@cache
def preset_names() -> tuple[str, ...]:
    """The algorithm names of the package."""
    found = (item.name for item in resources.files("whorl.presets").iterdir())
    return tuple(sorted(name[:-5] for name in found if name.endswith(".yaml")))


@cache
def load_preset(name: str) -> dict[str, Any]:
    """The preset of an algorithm name: `rule`, `about`, `settings`, and `environments` with tuned settings.

    A preset that `inherits:` another one starts from it: the parent's settings and tuned settings come first.
    """
    found = read_yaml(
        (resources.files("whorl.presets") / f"{name}.yaml").read_text("utf-8"), f"preset {name}"
    )
    parent = load_preset(found["inherits"]) if "inherits" in found else {}
    return {"rule": parent.get("rule"), "settings": {}, "environments": {}, **found}


WRAPPED = "-wrapped"
"""suffix of the name of a wrapped environment, which gets no settings tuned for the unwrapped one"""


def preset_layers(preset: Mapping[str, Any], env: str) -> list[dict[str, Any]]:
    """The settings of a preset for an environment: for all, for patterns that match it (`ALE/*`), for itself.

    Those of its parent come before all of them, so that its own settings are never overridden by its parent's.
    """
    parent = preset_layers(load_preset(preset["inherits"]), env) if "inherits" in preset else []
    return [*parent, preset.get("settings") or {}, *tuned_layers(preset, env)]


def tuned_layers(preset: Mapping[str, Any], env: str) -> list[dict[str, Any]]:
    """The settings of a preset, without its parent's, that were tuned for an environment."""
    tuned = preset.get("environments") or {}
    named = {} if env.endswith(WRAPPED) else tuned
    families = [values for name, values in named.items() if "*" in name and fnmatchcase(env, name)]
    return [*families, tuned.get(env) or {}]


class _Loader(yaml.SafeLoader):
    """Numbers as in YAML 1.2: 1e-3 is one, although it has no dot. A key that is there twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines and key.value != "<<":
                raise _DuplicateKey(
                    f"names {key.value!r} twice, in lines {lines[key.value]} and {line}; keep one of them"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class _DuplicateKey(Exception):
    """A key that is there twice in one mapping."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@cache
def rules() -> dict[str, type]:
    """The agent classes of the package by the names of the presets called like their files."""
    found = {name: load_preset(name)["rule"] for name in preset_names()}
    named = {name: path for name, path in found.items() if path.split(".")[-2] == name}
    return {name: resolve("algorithm", path) for name, path in named.items()}  # type: ignore[misc]


def owners(setting: str) -> str:
    """The algorithms of the package that have a setting, at most three by name; empty where there are none."""
    configs = {cls.__name__: cls.Config for cls in rules().values()}  # type: ignore[attr-defined]
    found = [
        name
        for name, config in configs.items()
        if setting in {f.name for f in dataclasses.fields(config)} - set(getattr(config, "unused", ()))
    ]
    if len(found) > 3:
        return f"{', '.join(found[:3])} and others"
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def algorithm_of(config: Any) -> str:
    """The name of the algorithm that a config object belongs to."""
    if isinstance(config, type):
        raise ConfigError(
            f"{config.__name__} is a class; give an object of it, as in {config.__name__}(gamma=0.99)"
        )
    for name, cls in [*registered("algorithm").items(), *rules().items()]:
        if cls.Config is type(config):
            return name
    raise ConfigError(
        f"{type(config).__name__} is not the Config of an algorithm; choose one of "
        f"{', '.join(cls.Config.__name__ for cls in rules().values())}, or register your algorithm first"  # type: ignore[attr-defined]
    )


def read_yaml(text: str, what: str) -> Any:
    """Plain values from YAML; `what` names the source in errors."""
    try:
        return yaml.load(text, _Loader)
    except _DuplicateKey as error:
        raise ConfigError(f"{what} {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}" if mark is not None and "\n" in text.strip() else ""
        raise ConfigError(f"{what} is not valid YAML{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise ConfigError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from None


def read_files(files: "str | Path | Iterable[str | Path | Mapping[str, Any]]") -> list[dict[str, Any]]:
    """The layers of several files, or of one."""
    return [layer for path in listed(files) for layer in read_file(path)]


def read_file(path: "str | Path | Mapping[str, Any]", seen: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The layers of a YAML file of settings: those of files and presets that it `inherits:`, then its own.

    `FILE:NAME` adds the settings under that name in the file's `variants:`. A mapping is a layer that was read already.
    """
    if isinstance(path, Mapping):
        return [dict(path)]
    path, variant = _file_and_variant(Path(path))
    if path.suffix == ".gin":
        raise ConfigError(
            f"{str(path)!r} is a gin file, which can't be read; write its values as YAML settings"
        )
    if not path.is_file():
        others = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = f"; {nearest(path.name, others)}" if others else ""
        raise ConfigError(f"there is no settings file {str(path)!r}{hint}")
    if path.resolve() in seen:
        raise ConfigError(f"settings file {str(path)!r} inherits from itself")
    what = f"settings file {str(path)!r}"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} can't be read: {error}") from None
    content = read_yaml(text, what) or {}
    if not isinstance(content, dict):
        raise ConfigError(f"{what} must hold a mapping of settings, such as gamma: 0.99")
    if sections := [key for key, value in content.items() if _is_section(key, value)]:
        raise ConfigError(
            f"{what} has a section for each environment, as files of RL Baselines3 Zoo do; save the settings of one, "
            f"such as {sections[0]}, in a file of their own, without its name above them"
        )
    theirs: dict[str, Any] = {}
    if isinstance(content.get("default"), dict):
        content, theirs = as_variants(content, what)
    variants = content.pop("variants", None) or theirs
    if not isinstance(variants, dict) or not all(isinstance(one, dict) for one in variants.values()):
        raise ConfigError(f"variants in {what} must be a mapping of names to settings")
    chosen = _variant(variant, variants, what) if variant else []
    inherited = [layer for name in _parents(content) for layer in _inherited(name, path, seen)]
    return [*inherited, *(without_sections(layer) for layer in (content, *chosen))]


def _file_and_variant(path: Path) -> tuple[Path, str]:
    """A path and what follows the last colon, if there is a file before it."""
    file, _, variant = str(path).rpartition(":")
    return (Path(file), variant) if not path.is_file() and file and Path(file).is_file() else (path, "")


def _variant(
    name: str, variants: Mapping[str, Any], what: str, seen: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The layers of a variant: those of the variants that it `inherits:`, then its own."""
    if name not in variants:
        hint = nearest(name, variants) if variants else "it has no variants"
        raise ConfigError(f"{what} has no variant {name!r}; {hint}")
    if name in seen:
        raise ConfigError(f"variant {name!r} in {what} inherits from itself")
    content = dict(variants[name])
    parents = [layer for one in _parents(content) for layer in _variant(one, variants, what, (*seen, name))]
    return [*parents, content]


def _parents(content: dict[str, Any]) -> list[str]:
    """What settings inherit from, taken out of them."""
    parents = content.pop("inherits", None) or []
    return [str(name) for name in (parents if isinstance(parents, list) else [parents])]


def _is_section(key: Any, value: Any) -> bool:
    """Whether an entry of a file holds the settings for one environment."""
    return isinstance(value, dict) and re.search(r"-v\d+$", str(key)) is not None


def _inherited(name: str, child: Path, seen: tuple[Path, ...]) -> list[dict[str, Any]]:
    for candidate in (child.parent / name, child.parent / f"{name}.yaml"):
        if candidate.is_file():
            return read_file(candidate, (*seen, child.resolve()))
    algorithm, _, env = name.partition("/")
    if same_name(algorithm) in preset_names():
        preset = load_preset(same_name(algorithm))
        return preset_layers(preset, env)
    beside = [p.stem for p in child.parent.glob("*.yaml") if p != child]
    raise ConfigError(
        f"{str(child)!r} inherits from {name!r}, which is neither a file in the same folder nor a preset; "
        f"{nearest(name, [*beside, *preset_names()])}"
    )
