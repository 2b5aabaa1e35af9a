"""Sections of the settings files of Advanced-SAC and RLcycle: their keys are settings, but not all mean the same here.

`alpha` of `replay_config` is the exponent of priorities, while `alpha` alone is SAC's temperature.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from whorl.core.errors import ConfigError
from whorl.settings.aliases import NOTES

RENAMED = {"replay_config": {"alpha": "priority_alpha", "beta": "priority_beta"}}
"""keys by section that would mean something else by themselves"""
CHOSEN = {
    "base_config": ("env_type", "env_name", "env_args", "unity_args"),
    "sac_config": ("nn",),
    "experiment_info": ("env", "experiment_name", "agent", "learner", "action_selector"),
}
"""keys by section that say which environment, algorithm and networks run, which the command says here"""
SECTIONS = ("base_config", "replay_config", "sac_config", "oc_config", "hyper_params", "experiment_info")
EMPTY = ("nn_config", "reset_config", "net_config", "model")
"""sections that have to be empty; `NOTES` says what to write instead"""
NO_LIMIT = ("max_iter", "max_step", "max_step_each_iter", "max_actors_each_learner")
"""keys for which -1 means what leaving them out means"""
SEVERAL = "ma_config"
"""the section of several behaviours (`whorl.settings.behaviors`)"""


def without_sections(layer: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """A layer of settings with the keys of its sections as settings; keys without a value are left out.

    Args:
        own: settings and components of the run, which are no sections although an own one may be called `model`.
    """
    found: dict[str, Any] = {}
    for key, value in layer.items():
        section, dot, name = str(key).partition(".")
        if section in own:
            found[key] = value
        elif section in EMPTY and not dot:
            if value:
                raise ConfigError(f"{section} can't be read: {NOTES[section]}")
        elif section not in SECTIONS:
            if section != SEVERAL or value is not None:
                found[key] = value
        elif dot:
            found.update(_settings(section, {name: value}))
        elif isinstance(value, Mapping):
            found.update(_settings(section, value))
        elif value is not None:
            raise ConfigError(f"{section} is {value!r}; it must be a mapping of settings")
    return found


def _settings(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    ignored = [key for key in CHOSEN.get(section, ()) if values.get(key) is not None]
    if ignored:
        warnings.warn(
            f"{', '.join(ignored)} of {section} is ignored: environment, algorithm and networks are those of this run",
            stacklevel=4,
        )
    for key, value in values.items():
        unlimited = key in NO_LIMIT and value == -1
        if value is not None and not unlimited and key not in CHOSEN.get(section, ()):
            yield RENAMED.get(section, {}).get(key, key), value


def as_variants(content: dict[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and variants of a file of Advanced-SAC, whose variants are on the top level, over `default`."""
    others = {key: value for key, value in content.items() if key != "default"}
    for name, value in others.items():
        if not isinstance(value, Mapping) or not {*value} <= {*SECTIONS, *EMPTY, SEVERAL, "inherited"}:
            raise ConfigError(
                f"{what} has a section 'default', so {name!r} must be a variant over it, made of {', '.join(SECTIONS)}"
            )
    variants = {
        name: {"inherits" if key == "inherited" else key: inner for key, inner in value.items()}
        for name, value in others.items()
    }
    return dict(content["default"] or {}), variants
