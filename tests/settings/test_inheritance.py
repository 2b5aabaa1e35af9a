"""What a preset states is never overridden by its parent's entries for an environment."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import pytest

from whorl.core import hardware
from whorl.core.registry import known
from whorl.settings.conditions import ConditionContext, layers_where
from whorl.settings.merge import configure, merge, settings_of
from whorl.settings.presets import algorithm_class, preset_names, read_yaml, tuned_layers

MEMBERS = {
    "ALE/*": "ALE/Pong-v5",
    "*NoFrameskip-v*": "PongNoFrameskip-v4",
    "MinAtar/*": "MinAtar/Breakout-v1",
    "MiniGrid-*": "MiniGrid-DoorKey-8x8-v0",
}
"""an environment of each pattern among the entries"""
MACHINES = {"cpu": 2, "gpu": 16}
"""hardware and cores"""


@cache
def chain(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A preset's file and those that it inherits from, itself first."""
    found = read_yaml((resources.files("whorl.presets") / f"{name}.yaml").read_text("utf-8"), name)
    return [(name, found), *(chain(found["inherits"]) if "inherits" in found else [])]


CHILDREN = [name for name in preset_names() if len(chain(name)) > 1]


def environments(name: str) -> list[str]:
    """The environments that a preset or one of its parents has an entry for, and one that none has."""
    entries = {entry for _, preset in chain(name) for entry in preset.get("environments") or {}}
    return ["Untuned-v0", *sorted(MEMBERS.get(entry, entry) for entry in entries)]


def stated(name: str, env: str, context: ConditionContext) -> Iterator[tuple[str, str, str, Any]]:
    """Each (preset, where in it, setting, value) for an environment, the child's first, the last of a file first."""
    hints = settings_of(algorithm_class(name)[1])
    for owner, preset in chain(name):
        layers = [("settings", preset.get("settings") or {})]
        layers += [(f"entry for {env}", layer) for layer in tuned_layers(preset, env)]
        for place, layer in reversed(layers):
            for part in reversed(layers_where(layer, context)):
                canonical: dict[str, Any] = {}
                merge(canonical, part, hints)
                for key, value in canonical.items():
                    yield owner, place, key, value


def holds(found: Any, wanted: Any) -> bool:
    """Whether a setting has a value; options of a part may stand beside those that were stated."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(found.get(key) == value for key, value in wanted.items())
    return bool(found == wanted)


def fitted(key: str, value: Any, settings: Mapping[str, Any]) -> Any:
    """A value as training uses it: with memory, a rollout is made of whole strides (`whorl.settings.follow`)."""
    if key != "num_steps" or settings.get("memory", "none") == "none":
        return value
    stride = settings.get("sequence_stride" if "sequence_stride" in settings else "chunk_length", 1)
    return math.ceil(value / stride) * stride


def inherited(name: str, env: str, machine: str) -> tuple[list[str], list[str]]:
    """Lines that say where each setting of a preset for an environment comes from, and those that are wrong."""
    images = ("images",) if env.startswith("ALE") or "NoFrameskip" in env else ("vectors",)
    settings = configure(name, env, {"hardware": machine}, kind=lambda options: images).plain()
    context = ConditionContext(machine == "gpu", settings.get("memory", "none") != "none", lambda: images)
    lines, wrong, seen = [], [], set()
    for owner, place, key, value in stated(name, env, context):
        if key in seen or (key in known("component") and key not in settings["components"]):
            continue
        seen.add(key)
        lines.append(f"  {key}: {value}  from {owner}, {place}")
        if not holds(settings[key], fitted(key, value, settings)):
            others = [
                f"{o}, {p}" for o, p, k, v in stated(name, env, context) if (k, v) == (key, settings[key])
            ]
            source = others[0] if others else "nowhere"
            wrong.append(
                f"{name} on {env} ({machine}): {key} is {settings[key]} (from {source}), but {owner} states {value} "
                f"in its {place}"
            )
    return lines, wrong


@pytest.mark.parametrize("name", CHILDREN)
def test_no_setting_of_a_preset_is_overridden_by_a_parents_entry(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, tables = [], []
    for machine, cores in MACHINES.items():
        monkeypatch.setattr(hardware, "cores", lambda cores=cores: cores)
        for env in environments(name):
            lines, found = inherited(name, env, machine)
            wrong += found
            tables += [f"\n{name} on {env} ({machine}):", *lines] if found else []
    assert not wrong, "\n".join([*wrong, "\nWhere the settings come from:", *tables])


TUNED = ("CartPole-v1", "LunarLander-v3", "MountainCar-v0", "MinAtar/Breakout-v1")


@pytest.mark.parametrize("env", TUNED)
def test_r2d2_explores_with_its_own_ladder_of_epsilons(env: str) -> None:
    found = configure("r2d2", env, {})
    assert (found.exploration_initial_eps, found.exploration_final_eps) == (0.4, 0.4)


@pytest.mark.parametrize(
    ("name", "n_step", "gamma"),
    [("rainbow", 3, 0.98), ("btr", 3, 0.997), ("apex_dqn", 3, 0.98), ("r2d2", 5, 0.997)],
)
def test_what_dqn_was_tuned_to_on_mountaincar_is_taken_only_where_a_preset_says_nothing(
    name: str, n_step: int, gamma: float
) -> None:
    """DQN's entry has n_step 8 and gamma 0.98; Rainbow and Ape-X state the one and not the other."""
    found = configure(name, "MountainCar-v0", {})
    assert (found.n_step, found.gamma) == (n_step, gamma)
