"""Suites: which algorithms are compared on which environments, with which seeds and budgets.

    about: one line
    needs: [mujoco]                                # extras, for readers
    seeds: [1, 2, 3, 4, 5]
    algorithms: [ppo, {name: ppo small, algorithm: ppo, hidden_sizes: [16]}]
    environments:
      CartPole-v1: {random: 22, reference: 500, total_timesteps: 100_000}
    settings: {n_eval_episodes: 20}                # of all runs

`random` and `reference` are returns that scores are normalised by: 0 and 1. Other keys of an algorithm or environment
are settings; those of an environment come before those of an algorithm, which come before common ones.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError, misspelt, nearest
from whorl.run.prepare import prepare
from whorl.settings.merge import Settings
from whorl.settings.presets import algorithm_class, read_yaml
from whorl.state.policy import build_agent
from whorl.state.runfolder import run_of

CONFIG = "suite.yaml"
KEYS = ("about", "needs", "seeds", "algorithms", "environments", "settings")
RANDOM, REFERENCE = "random", "reference"
EVALUATIONS, CHECKPOINTS = 20, 5
"""of a run, unless eval_freq or checkpoint_freq is set"""
DEFAULTS: dict[str, Any] = {"tensorboard": False, "n_eval_episodes": 10, "keep_checkpoints": 1, "quiet": True}
"""settings of runs where nobody chose them"""
FIXED = ("seed", "name", "runs", "tag", "eval", "save_model", "render", "ray")
"""settings that a suite decides"""
LONGEST = 80
"""characters in the name of a run"""


@dataclass(frozen=True)
class Task:
    """An environment with the returns that stand for 0 and 1."""

    env: str
    random: float
    reference: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def normalized(self, value: Any) -> Any:
        """A return, or an array of returns, as scores."""
        return (value - self.random) / (self.reference - self.random)


@dataclass(frozen=True)
class Contestant:
    """An algorithm with its settings, under a name."""

    name: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Algorithms, environments and seeds to compare."""

    name: str
    about: str
    seeds: tuple[int, ...]
    contestants: tuple[Contestant, ...]
    tasks: tuple[Task, ...]
    settings: Mapping[str, Any]

    def layers(self, contestant: Contestant, task: Task) -> list[dict[str, Any]]:
        """Settings of the runs of one algorithm on one environment."""
        return [DEFAULTS, dict(self.settings), dict(contestant.settings), dict(task.settings)]

    def plain(self) -> dict[str, Any]:
        """The suite as a file holds it."""
        return {
            "name": self.name,
            "about": self.about,
            "seeds": list(self.seeds),
            "algorithms": [
                {"name": one.name, "algorithm": one.algorithm, **one.settings} for one in self.contestants
            ],
            "environments": {
                task.env: {RANDOM: task.random, REFERENCE: task.reference, **task.settings}
                for task in self.tasks
            },
            "settings": dict(self.settings),
        }


def suites() -> dict[str, str]:
    """The suites of the package with their descriptions."""
    found = {}
    for item in resources.files("whorl.bench").joinpath("suites").iterdir():
        if item.name.endswith(".yaml"):
            content = read_yaml(item.read_text("utf-8"), item.name)
            found[item.name[:-5]] = str(content["about"])
    return dict(sorted(found.items()))


def find_suite(name: str) -> tuple[str, dict[str, Any]]:
    """The name and content of a suite: a file, the folder of a benchmark, or one of the package."""
    path = Path(name)
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise ConfigError(
                f"{path} is not the folder of a benchmark; name one, a file, or one of {', '.join(suites())}"
            )
        content = _content((path / CONFIG).read_text("utf-8"), str(path / CONFIG))
        return str(content.pop("name", path.name)), content
    if path.is_file():
        return path.stem, _content(path.read_text("utf-8"), f"suite {name!r}")
    if name not in suites():
        raise ConfigError(
            f"no suite is called {name!r}, and there is no such file; {nearest(name, suites())}"
        )
    text = (resources.files("whorl.bench") / "suites" / f"{name}.yaml").read_text("utf-8")
    return name, _content(text, f"suite {name!r}")


def read_suite(name: str, content: Mapping[str, Any]) -> Suite:
    """A suite out of the content of its file, checked as far as that is possible without its environments."""
    where = f"suite {name!r}"
    for key in content:
        if key not in KEYS:
            raise ConfigError(f"{where} has a key {key!r}; {nearest(str(key), KEYS)}")
    for key in ("algorithms", "environments"):
        if not content.get(key):
            raise ConfigError(f"{where} names no {key}")
    common = content.get("settings") or {}
    if not isinstance(common, Mapping):
        raise ConfigError(f"settings of {where} must be a mapping of settings to values")
    _check_fixed(where, common)
    if not isinstance(content["algorithms"], Sequence) or isinstance(content["algorithms"], str):
        raise ConfigError(f"algorithms of {where} must be a list of names or mappings")
    if not isinstance(content["environments"], Mapping):
        raise ConfigError(
            f"environments of {where} must be a mapping of ids to random, reference and settings"
        )
    contestants = [read_contestant(where, one) for one in content["algorithms"]]
    names = [one.name for one in contestants]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ConfigError(f"{where} has two algorithms called {twice[0]!r}; give one of them another name:")
    tasks = [_task(where, str(env), values) for env, values in content["environments"].items()]
    _check_folders(where, names, [task.env for task in tasks])
    return Suite(
        name,
        str(content.get("about", "")),
        read_seeds(where, content.get("seeds", 5)),
        tuple(contestants),
        tuple(tasks),
        common,
    )


def check_runs(suite: Suite) -> dict[tuple[str, str], Settings]:
    """The settings of the runs of every algorithm on every environment; raises for what can't be made or trained."""
    found = {}
    for task in suite.tasks:
        for one in suite.contestants:
            layers = suite.layers(one, task)
            try:
                source, settings = prepare(task.env, one.algorithm, {}, layers, None, {})
                build_agent(settings, source.spec(settings.run.num_envs))
            except WhorlError as error:
                error.message = f"{one.name} can't be trained on {task.env}: {error.message}"
                error.args = (error.message,)
                raise
            found[one.name, task.env] = _with_frequencies(settings, layers)
    return found


def save(suite: Suite, folder: Path) -> None:
    """Write the suite, or raise where the folder has runs with other settings; new algorithms and seeds may join."""
    now = suite.plain()
    path = folder / CONFIG
    if path.is_file():
        before = _content(path.read_text("utf-8"), str(path))
        old = {one["name"]: one for one in before["algorithms"]}
        pairs = [
            *((one["name"], old.get(one["name"], one), one) for one in now["algorithms"]),
            *((env, before["environments"].get(env, one), one) for env, one in now["environments"].items()),
            ("settings", before["settings"], now["settings"]),
        ]
        for what, was, is_now in pairs:
            different = [key for key in {**was, **is_now} if was.get(key) != is_now.get(key)]
            different = [key for key in different if key not in (RANDOM, REFERENCE)]
            if different:
                raise ConfigError(
                    f"{folder} holds runs with another {different[0]} of {what}; use another --folder, or give the "
                    "algorithm another name"
                )
        now["seeds"] = sorted({*before["seeds"], *now["seeds"]})
        now["algorithms"] += [
            one for name, one in old.items() if name not in {a["name"] for a in now["algorithms"]}
        ]
        now["environments"] = {**before["environments"], **now["environments"]}
    _check_folders(str(folder), [one["name"] for one in now["algorithms"]], now["environments"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"can't create {folder}: {files.reason(error)}") from error
    files.write_atomic(path, yaml.safe_dump(now, sort_keys=False).encode())


def run_name(name: str, env: str, seed: int) -> str:
    """The name of the folder of a run."""
    found = re.sub(r"[^\w.-]+", "-", f"{name}_{env}_seed_{seed}").lstrip(".-")
    if len(found) <= LONGEST:
        return found
    return f"{found[:40]}-{hashlib.sha256(found.encode()).hexdigest()[:8]}_seed_{seed}"


def _check_folders(where: str, names: Iterable[str], environments: Iterable[str]) -> None:
    """Raise where two algorithms or environments would have the same run folders, or those of checkpoints."""
    there: dict[str, str] = {}
    for one, env in product(names, environments):
        found, run = run_name(one, env, 1), f"{one!r} on {env!r}"
        if run_of(Path(found)) != Path(found):
            raise ConfigError(
                f"{run} of {where} would have the run folder {found}, a name that only checkpoints have; give the "
                "algorithm another name"
            )
        if found in there:
            raise ConfigError(
                f"{there[found]} and {run} of {where} would share the run folder {found}; "
                "give one of the algorithms another name"
            )
        there[found] = run


def _content(text: str, what: str) -> dict[str, Any]:
    content = read_yaml(text, what)
    if not isinstance(content, dict):
        raise ConfigError(f"{what} must hold a mapping with algorithms and environments")
    return content


def read_contestant(where: str, given: Any) -> Contestant:
    """An algorithm of a suite: a name, or a mapping with settings."""
    if isinstance(given, str):
        return Contestant(given, algorithm_class(given)[0])
    if not isinstance(given, Mapping) or "algorithm" not in given:
        raise ConfigError(
            f"{where} lists {given!r}; an algorithm is a name, or a mapping with algorithm: and settings"
        )
    settings = {key: value for key, value in given.items() if key not in ("name", "algorithm")}
    _check_fixed(where, settings)
    algorithm = algorithm_class(str(given["algorithm"]))[0]
    return Contestant(str(given.get("name", given["algorithm"])), algorithm, settings)


def _task(where: str, env: str, given: Any) -> Task:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{env} of {where} is {given!r}; write its random and reference returns, and settings"
        )
    numbers = {}
    for key in (RANDOM, REFERENCE):
        value = given.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(
                f"{env} of {where} has no {key} return, which scores are normalised by; add {key}: NUMBER"
            )
        numbers[key] = float(value)
    if not numbers[RANDOM] < numbers[REFERENCE]:
        raise ConfigError(f"{env} of {where}: the reference return must be above that of a random policy")
    settings = {key: value for key, value in given.items() if key not in (RANDOM, REFERENCE)}
    for key in settings:
        if word := misspelt(str(key), (RANDOM, REFERENCE)):
            raise ConfigError(f"{env} of {where} has a key {key!r}; did you mean {word!r}?")
    _check_fixed(where, settings)
    return Task(env, numbers[RANDOM], numbers[REFERENCE], settings)


def _check_fixed(where: str, settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key in FIXED:
            raise ConfigError(f"{where} sets {key}, which a benchmark decides itself; leave it out")


def read_seeds(where: str, given: Any) -> tuple[int, ...]:
    """The seeds of a suite: a list, or their number."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(range(1, given + 1))
    fits = isinstance(given, Sequence) and given and all(isinstance(one, int) and one >= 0 for one in given)
    if not fits or len(set(given)) < len(given):
        raise ConfigError(
            f"seeds of {where} are {given!r}; give different ones, none below 0, or in a file their number"
        )
    return tuple(given)


def _with_frequencies(settings: Settings, layers: Sequence[Mapping[str, Any]]) -> Settings:
    """Evaluations and checkpoints in proportion to the budget, unless the suite sets them."""
    total = settings.run.total_timesteps
    given = {str(key) for layer in layers for key in layer}
    cadences = {"eval_freq": EVALUATIONS, "checkpoint_freq": CHECKPOINTS}
    chosen = {
        key: max(1, -(-total // count)) for key, count in cadences.items() if key not in given and total
    }
    return settings.replace(**chosen) if chosen else settings
