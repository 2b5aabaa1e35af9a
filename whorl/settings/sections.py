"""Sections of the settings files of Advanced-SAC and RLcycle: their keys are settings, but not all mean the same here.

`alpha` of `replay_config` is the exponent of priorities, while `alpha` alone is SAC's temperature.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from whorl.core import messages
from whorl.core.errors import ConfigError
from whorl.settings.aliases import ALIASES, NOTES

RENAMED = {
    "replay_config": {"alpha": "priority_alpha", "beta": "priority_beta"},
    "hyper_params": {"eps": "exploration_initial_eps"},
    "sac_config": {
        "update_target_per_step": "target_update_interval",
        "write_summary_per_step": "log_freq",
        "save_model_per_step": "checkpoint_freq",
    },
}
"""keys by section that would mean something else by themselves, or that count steps of training"""
OFF = {
    "use_prediction": ("transition_kl", "use_extra_data"),
    "curiosity": ("curiosity_strength",),
    "use_rnd": ("rnd_n_sample",),
    "siamese": ("siamese_use_q", "siamese_use_adaptive"),
    "use_normalization": (),
    "use_add_with_td": (),
    "evolver_enabled": (
        *("evolver_cem_length", "evolver_cem_best", "evolver_cem_min_length", "evolver_cem_time"),
        "evolver_remove_worst",
    ),
}
"""keys that switch something on, with those that only matter then; switched off they are left out"""
CHOSEN = {
    "base_config": ("env_type", "env_name", "env_args", "unity_args"),
    "sac_config": ("nn",),
    "experiment_info": (
        *("env", "experiment_name", "agent", "learner", "action_selector"),
        *("loss", "actor_loss", "critic_loss"),
    ),
}
"""keys by section that say which environment, algorithm and networks run, which the command says here"""
SECTIONS = ("base_config", "replay_config", "sac_config", "oc_config", "hyper_params", "experiment_info")
EMPTY = ("nn_config", "reset_config", "net_config", "model")
"""sections that have to be empty; `NOTES` says what to write instead"""
AS_HERE = {
    **dict.fromkeys(("max_iter", "max_step", "max_step_each_iter", "max_actors_each_learner"), -1),
    **dict.fromkeys(("render_train", "render_test", "train_render", "test_render"), 0),
    **dict.fromkeys(("q_reg_coeff", "noise_increasing_rate"), 0),
    **dict.fromkeys(("reset_on_iteration", "per_beta_max"), 1),
}
"""keys whose value, if it is this one, means what leaving them out means"""
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
            if _is_set(section, value):
                raise ConfigError(f"{section} can't be read: {NOTES[section]}")
        elif section not in SECTIONS:
            if section != SEVERAL or value is not None:
                found[key] = value
        elif dot:
            found.update(_settings(section, {name: value}, own))
        elif isinstance(value, Mapping):
            found.update(_settings(section, value, own))
        elif value is not None:
            raise ConfigError(f"{section} is {value!r}; it must be a mapping of settings")
    return found


def _is_set(section: str, value: Any) -> bool:
    """Whether a section that has to be empty holds anything; a port alone names no learner."""
    if not isinstance(value, Mapping):
        return bool(value)
    return any(found for key, found in value.items() if (section, key) != ("net_config", "learner_port"))


def _settings(section: str, values: Mapping[str, Any], own: Collection[str]) -> Iterator[tuple[str, Any]]:
    ignored = [key for key in CHOSEN.get(section, ()) if values.get(key) is not None]
    if ignored:
        verb = "is" if len(ignored) == 1 else "are"
        messages.warn(
            f"{', '.join(ignored)} of {section} {verb} ignored: environment, algorithm and networks are those of this "
            "run"
        )
    for key, value in _together(_without_off(values)).items():
        # A setting of the run is one even so: another file may have another value.
        needless = AS_HERE.get(key) == value and not any(name in own for name in ALIASES.get(key, ()))
        if value is not None and not needless and key not in CHOSEN.get(section, ()):
            yield RENAMED.get(section, {}).get(key, key), value


def _without_off(values: Mapping[str, Any]) -> dict[str, Any]:
    off = [key for key in OFF if key in values and not values[key]]
    left_out = {*off, *(name for key in off for name in OFF[key])}
    return {key: value for key, value in values.items() if key not in left_out}


def _together(values: dict[str, Any]) -> dict[str, Any]:
    """Two keys of `replay_config` that are one setting here."""
    found = dict(values)
    if {"td_error_min", "td_error_max"} <= found.keys():
        found["priority_clip"] = [found.pop("td_error_min"), found.pop("td_error_max")]
    beta, increment = found.get("beta"), found.get("beta_increment_per_sampling")
    if isinstance(beta, int | float) and isinstance(increment, int | float):
        found.pop("beta_increment_per_sampling")
        found["priority_beta_steps"] = steps = round((1 - beta) / increment) if increment else 0
        messages.warn(
            f"beta_increment_per_sampling is read as priority_beta_steps {steps:,}, which is the same at one update "
            "per environment step; with another updates_per_step divide it by that"
        )
    return found


def as_variants(content: dict[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and variants of a file of Advanced-SAC, whose variants are on the top level, over `default`."""
    others = {key: value for key, value in content.items() if key != "default"}
    for name, value in others.items():
        if not isinstance(value, Mapping) or not {*value} <= {*SECTIONS, *EMPTY, SEVERAL, "inherited"}:
            raise ConfigError(
                f"{what} has a section 'default', so {name!r} must be a variant over it, made of "
                f"{', '.join(SECTIONS)}; variants with other settings stand under 'variants'"
            )
    variants = {
        name: {"inherits" if key == "inherited" else key: inner for key, inner in value.items()}
        for name, value in others.items()
    }
    return dict(content["default"] or {}), variants
