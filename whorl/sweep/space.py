"""Search spaces in words.

    search:
      lr: log 1e-5..1e-2                            # uniform in the logarithm
      gamma: 0.9..0.9999                            # uniform; `step 0.01` allows multiples only
      n_steps: int 16..512 log                      # whole numbers, as everywhere where the setting is one
      memory: [none, gru]                           # one of these
      memory_size: {space: [32, 64, 128], when: {memory: gru}}   # searched only where memory is gru
      clip_range: default                           # the space that comes with the algorithm

`search: default` searches all that come with the algorithm (`spaces.yaml`).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from whorl.core.errors import ConfigError, nearest
from whorl.settings.draws import configured, meant
from whorl.settings.merge import Settings, settings_of
from whorl.settings.presets import algorithm_class, read_yaml

SEARCH, DEFAULT = "search", "default"
FORMS = "a range such as 'log 1e-5..1e-2', 'int 16..512' or '0..1 step 0.1', or a list of values"
_RANGE = re.compile(r"(?P<low>\S+?)\.\.(?P<high>\S+)")
_KEYS = ("space", "when", "in", "low", "high", "log", "step")
MOST_VALUES = 1000
"""of one range in a grid"""


@dataclass(frozen=True)
class Space:
    """The values of one setting that are tried: `values`, or the numbers between two others."""

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    step: float = 0.0
    """distance of neighbouring values; 0: 1 for whole numbers, else any"""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """searched only where the settings of these names have one of these values"""

    def suggest(self, trial: Any) -> Any:
        """A value chosen by Optuna's trial."""
        if self.values:
            labels = [label(value) for value in self.values]
            return self.values[labels.index(trial.suggest_categorical(self.name, labels))]
        if self.whole:
            step = int(self.step) or 1
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step or None, log=self.log)

    def applies(self, chosen: Mapping[str, Any]) -> bool:
        """Whether it is searched beside these values."""
        return all(name in chosen and chosen[name] in allowed for name, allowed in self.when.items())

    def extremes(self) -> tuple[Any, ...]:
        """The values that settings are checked with."""
        return self.values or (self._number(self.low), self._number(self.high))

    def grid(self) -> list[Any]:
        """All values, as Optuna's labels, where there are not too many."""
        if self.values:
            return [label(value) for value in self.values]
        step = self.step or (1.0 if self.whole and not self.log else 0.0)
        count = 1 + math.floor((self.high - self.low) / step + 1e-9) if step else math.inf
        if count > MOST_VALUES:
            raise ConfigError(
                f"{SEARCH}.{self.name} has too many values for a grid; list them, or give a range with a step, as in "
                "'0..1 step 0.1'"
            )
        return [self._number(self.low + number * step) for number in range(int(count))]

    def _number(self, value: float) -> float:
        return round(value) if self.whole else float(value)


def label(value: Any) -> Any:
    """A value as Optuna stores it: lists and mappings as text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def read_spaces(given: Any, settings: Settings) -> list[Space]:
    """The spaces of `search:`, checked against the settings of a run, those that others depend on first."""
    if given == DEFAULT:
        given = defaults(settings.algorithm)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"{SEARCH} is {given!r}; it must be 'default' or a mapping of settings to spaces, each {FORMS}"
        )
    spaces = {str(name): _space(str(name), form, settings) for name, form in given.items()}
    _check_twice(spaces, settings)
    ordered = _ordered(spaces)
    for space in ordered:
        for value in space.extremes():
            try:
                settings.replace(**{space.name: value})
            except ConfigError as error:
                raise ConfigError(
                    f"{SEARCH}.{space.name} includes an invalid value: {error.message}"
                ) from None
    return ordered


def defaults(algorithm: str) -> dict[str, Any]:
    """The spaces that come with an algorithm; those of its own settings where it is not one of the package."""
    table = _table()
    name, cls, preset = algorithm_class(algorithm)
    hints = settings_of(cls)
    rule = str(preset["rule"]).split(".")[-2] if preset.get("rule") else ""
    names = table["algorithms"].get(name) or table["algorithms"].get(rule)
    if names is None:
        names = [one for one in table["spaces"] if one in hints or one in ("learning_rate", "hidden_sizes")]
    own = names if isinstance(names, dict) else dict.fromkeys(names, DEFAULT)
    return {key: table["spaces"][key] if form == DEFAULT else form for key, form in own.items()}


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("whorl.sweep") / "spaces.yaml").read_text("utf-8")
    return dict(read_yaml(text, "spaces.yaml"))


def _space(name: str, form: Any, settings: Settings) -> Space:
    where = f"{SEARCH}.{name}"
    value = configured(settings, name, SEARCH)
    whole = isinstance(value, int) and not isinstance(value, bool)
    when: Any = {}
    if isinstance(form, Mapping):
        for key in form:
            if key not in _KEYS:
                raise ConfigError(f"{where} has a key {key!r}; {nearest(str(key), _KEYS)}")
        when = form.get("when", {})
        form = _form(where, form)
    if form == DEFAULT:
        known = defaults(settings.algorithm)
        if name not in known:
            raise ConfigError(
                f"{where} has no default space; write {FORMS}, or choose one of: {', '.join(known)}"
            )
        form = known[name]
    if isinstance(form, (list, tuple)):
        if len(form) < 2:
            raise ConfigError(f"{where} lists {len(form)} values; list two or more")
        return Space(name, tuple(form), when=_conditions(where, when))
    if not isinstance(form, str):
        raise ConfigError(f"{where} is {form!r}, which leaves nothing to search; write {FORMS}")
    return _range(name, form, whole, _conditions(where, when))


def _form(where: str, given: Mapping[str, Any]) -> Any:
    """The space in a mapping with conditions, or one that is spelt as in `random_params`."""
    if "space" in given:
        return given["space"]
    if "in" in given:
        return given["in"]
    if "low" not in given or "high" not in given:
        raise ConfigError(f"{where} names no space; write space: and {FORMS}")
    words = [
        f"{given['low']}..{given['high']}",
        *(["log"] if given.get("log") else []),
        *(["step", str(given["step"])] if given.get("step") else []),
    ]
    return " ".join(words)


def _range(name: str, text: str, whole: bool, when: Mapping[str, tuple[Any, ...]]) -> Space:
    where = f"{SEARCH}.{name} is {text!r}"
    words = re.sub(r"\s*\.\.\s*", "..", text).split()
    ranges = [match for word in words if (match := _RANGE.fullmatch(word))]
    step = ""
    if "step" in words:
        at = words.index("step")
        step = words[at + 1] if len(words) > at + 1 else ""
        del words[at : at + 2]
    rest = [word for word in words if ".." not in word]
    for word in rest:
        if word not in ("log", "int"):
            raise ConfigError(f"{where}; {word!r} is not understood: write {FORMS}")
    if len(ranges) != 1:
        raise ConfigError(f"{where}; it must be {FORMS}")
    low, high = (_read_number(where, ranges[0][key]) for key in ("low", "high"))
    distance = _read_number(where, step) if step or "step" in text.split() else 0.0
    log, whole = "log" in rest, whole or "int" in rest
    if not low < high:
        raise ConfigError(f"{where}; the smaller number comes first, as in {high:g}..{low:g}")
    if log and low <= 0:
        raise ConfigError(f"{where}; a range in logarithms starts above 0")
    if log and distance:
        raise ConfigError(f"{where}; a range in logarithms has no step")
    if distance < 0 or distance > high - low:
        raise ConfigError(f"{where}; the step must be above 0 and no longer than the range")
    if whole and any(number != round(number) for number in (low, high, distance)):
        raise ConfigError(f"{where}, but {name} takes whole numbers")
    return Space(name, (), low, high, log, whole, distance, when)


def _read_number(where: str, text: str) -> float:
    try:
        found = float(text.replace("_", ""))
    except ValueError:
        raise ConfigError(f"{where}; {text!r} is not a number") from None
    if not math.isfinite(found):
        raise ConfigError(f"{where}; its ends must be finite")
    return found


def _conditions(where: str, given: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where}.when is {given!r}; write the value of another setting: when: {{memory: gru}}"
        )
    return {
        str(name): tuple(values) if isinstance(values, list) else (values,) for name, values in given.items()
    }


def _ordered(spaces: Mapping[str, Space]) -> list[Space]:
    """Those that conditions name before those that have them."""
    for space in spaces.values():
        for parent, values in space.when.items():
            where = f"{SEARCH}.{space.name}.when"
            if parent not in spaces:
                raise ConfigError(
                    f"{where} names {parent!r}, which is not searched; {nearest(parent, spaces)}"
                )
            choices = spaces[parent].values
            if not choices:
                raise ConfigError(
                    f"{where} names {parent!r}, which is a range; conditions need a list of values"
                )
            for value in values:
                if value not in choices:
                    raise ConfigError(
                        f"{where}: {parent} never is {value!r}; {nearest(str(value), map(str, choices))}"
                    )
    found: list[Space] = []
    while len(found) < len(spaces):
        names = {space.name for space in found}
        ready = [one for one in spaces.values() if one.name not in names and set(one.when) <= names]
        if not ready:
            left = sorted(set(spaces) - names)
            raise ConfigError(f"{SEARCH}: the conditions of {' and '.join(left)} depend on each other")
        found += ready
    return found


def _check_twice(spaces: Mapping[str, Space], settings: Settings) -> None:
    """Raise where two names stand for one setting."""
    owner: dict[str, str] = {}
    for name in spaces:
        for key in meant(settings, name, SEARCH):
            if key in owner:
                raise ConfigError(f"{SEARCH} names {key} twice, as {owner[key]} and {name}; keep one of them")
            owner[key] = name


def suggested(spaces: Sequence[Space], trial: Any) -> dict[str, Any]:
    """The settings of one trial."""
    chosen: dict[str, Any] = {}
    for space in spaces:
        if space.applies(chosen):
            chosen[space.name] = space.suggest(trial)
    return chosen


def decoded(spaces: Sequence[Space], params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial out of what Optuna stores."""
    found = {}
    for space in spaces:
        if space.name in params:
            value = params[space.name]
            labels = [label(one) for one in space.values]
            found[space.name] = space.values[labels.index(value)] if value in labels else value
    return found
