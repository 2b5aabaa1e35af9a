"""Settings of a run with several behaviours, each with an algorithm of its own.

behaviours:                       # also `behaviors` and `ma_config`
  hunter: {algorithm: sac, lr: 1e-3}
  prey: {algorithm: ppo, num_steps: 128}

What is outside of `behaviours` holds for all of them; what concerns the run as a whole can only stand there.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from whorl.core.errors import ConfigError, nearest
from whorl.settings.merge import Settings, configure, merge, plain_fields
from whorl.settings.run import RunConfig
from whorl.settings.schema import wrong
from whorl.settings.secrets import hidden
from whorl.settings.sections import without_sections

BEHAVIORS = "behaviours"
SPELLINGS = (BEHAVIORS, "behaviors", "ma_config")
OPTION = "behavior"
"""the option of an environment that chooses one of its behaviours"""
OWN = ("num_envs", "num_steps", "disable_sample", "hold_policy", "learner_threads")
"""settings of the loop that each behaviour has by itself; all others hold for the run"""
SHARED = tuple(one.name for one in fields(RunConfig) if one.name not in OWN)


@dataclass(frozen=True)
class BehaviorSettings:
    """All settings of a run with several behaviours."""

    env: str
    env_options: Mapping[str, Any]
    behaviors: Mapping[str, Settings]
    """the settings of each behaviour, as of a run that trains it alone"""
    components: Mapping[str, Any] = field(default_factory=dict)
    """none: each behaviour has its own"""
    algo: None = None

    def __post_init__(self) -> None:
        run = self.run
        if run.learners > 1:
            raise ConfigError(
                f"learners is {run.learners}, but a run of several behaviours has one; leave it out"
            )
        for name in ("render", "screenshot_freq"):
            if getattr(run, name):
                raise ConfigError(f"a run of several behaviours is not shown; leave {name} out")

    @property
    def algorithm(self) -> str:
        """The algorithms of all behaviours."""
        return "+".join(dict.fromkeys(one.algorithm for one in self.behaviors.values()))

    @property
    def run(self) -> RunConfig:
        """The settings of the loop; an iteration is the shortest time after which all rollouts end together."""
        runs = [one.run for one in self.behaviors.values()]
        steps = math.lcm(*(run.num_steps for run in runs))
        return replace(runs[0], num_envs=sum(run.num_envs for run in runs), num_steps=steps)

    def plain(self) -> dict[str, Any]:
        """Plain containers, as written to config.yaml; also a file of settings."""
        shared = plain_fields(self.run)
        return {
            "algorithm": self.algorithm,
            "env": self.env,
            "env_options": copy.deepcopy(dict(self.env_options)),
            "components": [],
            **{name: shared[name] for name in SHARED},
            BEHAVIORS: {
                name: {k: v for k, v in one.plain().items() if k not in (*SHARED, "env", "env_options")}
                for name, one in self.behaviors.items()
            },
        }

    def saved(self) -> dict[str, Any]:
        """What is written to files: `plain` without secrets."""
        return dict(hidden(self.plain()))

    def replace(self, **changes: Any) -> "BehaviorSettings":
        """The same settings with some values changed in all behaviours."""
        return read_saved(self.plain(), changes)


def take_behaviors(
    layers: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, dict[str, Any]]], list[dict[str, Any]]]:
    """The settings of each behaviour that every layer names, and the layers without them."""
    found, rest = [], []
    for layer in layers:
        ours = {key: value for key, value in layer.items() if str(key).partition(".")[0] in SPELLINGS}
        rest.append({key: value for key, value in layer.items() if key not in ours})
        merged: dict[str, Any] = {}
        for key, value in ours.items():
            _, dot, path = str(key).partition(".")
            merge(merged, {f"{BEHAVIORS}{dot}{path}": value}, {})
        found.append(dict(_sections(merged.get(BEHAVIORS) or {})))
    return found, rest


def _sections(given: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    if not isinstance(given, Mapping):
        raise wrong(BEHAVIORS, given, "a mapping of behaviours to their settings")
    for name, settings in given.items():
        if not isinstance(settings, Mapping | None):
            raise wrong(f"{BEHAVIORS}.{name}", settings, "a mapping of settings")
        yield str(name), without_sections(settings or {})


def check_sections(sections: Mapping[str, Mapping[str, Any]], names: Iterable[str], env: str) -> None:
    """Raise for a behaviour that the environment does not have, and for settings that concern the whole run."""
    names = list(names)
    for name, settings in sections.items():
        if not names:
            raise ConfigError(
                f"{BEHAVIORS} has settings for {name!r}, but {env} has one agent; leave {BEHAVIORS} out"
            )
        if name not in names:
            raise ConfigError(f"{env} has no behaviour {name!r}; {nearest(name, names)}")
        for key in settings:
            if str(key).replace("-", "_") in (*SHARED, "env", "env_options"):
                raise ConfigError(
                    f"{key} in {BEHAVIORS}.{name} holds for the whole run; write it outside of {BEHAVIORS}"
                )


def read_saved(config: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> BehaviorSettings:
    """The settings of a saved run, with `changes` in all behaviours."""
    shared = {name: config[name] for name in SHARED if name in config}
    found = {
        name: configure(
            section["algorithm"],
            config["env"],
            {**shared, **section, "env_options": {**config["env_options"], OPTION: name}},
            presets=False,
            changes=changes,
        )
        for name, section in config[BEHAVIORS].items()
    }
    options = dict(next(iter(found.values())).env_options)
    options.pop(OPTION)
    return BehaviorSettings(config["env"], options, found)


def together(settings: Mapping[str, Settings], env_options: Mapping[str, Any]) -> BehaviorSettings:
    """The settings of one run out of those of its behaviours, in which what is shared is that of the first."""
    first = next(iter(settings.values()))
    shared = {name: getattr(first.run, name) for name in SHARED}
    found = {name: replace(one, run=replace(one.run, **shared)) for name, one in settings.items()}
    return BehaviorSettings(first.env, dict(env_options), found)
