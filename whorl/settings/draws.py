"""Settings that are drawn at random: `random_params`.

random_params:
  gamma: [0.95, 0.98, 0.99]                         # one of these; also {in: [...]}
  learning_rate: {low: 1e-4, high: 1e-2, log: true}  # uniform between two numbers, or uniform in their logarithms
  tau: {std: 0.002, truncated: [0.001, 0.02]}        # normal around the configured value, within two numbers

The last layer that names a setting decides: one that a later file or argument sets is not drawn.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import known
from whorl.settings.aliases import canonical, translated
from whorl.settings.merge import Settings, settings_of, unknown_setting
from whorl.settings.presets import algorithm_class
from whorl.settings.schema import coerce, fields_of, wrong

RANDOM = "random_params"
FORMS = "a list of values, {low, high, log} or {std, truncated}"
_KEYS = ("in", "low", "high", "log", "std", "truncated")


@dataclass(frozen=True)
class Choices:
    """One of several values, which a population draws in proportion to counts."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Each value with equal probability."""
        return self.values[int(rng.integers(len(self.values)))]

    def counts(self, chosen: Sequence[Any]) -> list[int]:
        """One for each value, and one more for each time that a selected learner had it."""
        return [1 + sum(one == value for one in chosen) for value in self.values]

    def select(self, rng: np.random.Generator, chosen: Sequence[Any]) -> Any:
        """A value drawn in proportion to its count; `chosen` are the values of all learners selected so far."""
        counts = np.array(self.counts(chosen), dtype=np.float64)
        return self.values[int(rng.choice(len(counts), p=counts / counts.sum()))]

    def perturb(self, rng: np.random.Generator, value: Any, factors: Sequence[float]) -> Any:
        """The next or the previous value of the list; at an end the only neighbour."""
        at = self.values.index(value)
        beside = [i for i in (at - 1, at + 1) if 0 <= i < len(self.values)]
        return self.values[beside[int(rng.integers(len(beside)))]] if beside else value

    def extremes(self) -> tuple[Any, ...]:
        """The values that settings are checked with."""
        return self.values

    def plain(self) -> Any:
        return list(self.values)


@dataclass(frozen=True)
class Interval:
    """A number between two others.

    Args:
        log: drawn and averaged by its logarithm.
        centre, std: drawn from a normal distribution around `centre`; std 0: uniformly.
        whole: a whole number.
    """

    low: float
    high: float
    log: bool = False
    centre: float = 0.0
    std: float = 0.0
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """Uniform, or normal around `centre` and drawn again until it is within the bounds."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        if not self.std:
            return self._bounded(low + (high - low) * rng.random())
        return self._normal(rng, self.centre, self.std)

    def select(self, rng: np.random.Generator, chosen: Sequence[float]) -> float:
        """Normal with the mean and deviation of the values that the selected learners of a generation have."""
        values = np.array([self._scaled(value) for value in chosen], dtype=np.float64)
        return self._normal(rng, float(values.mean()), float(values.std()))

    def perturb(self, rng: np.random.Generator, value: float, factors: Sequence[float]) -> float:
        """`value` times one of the factors, within the bounds; a whole number moves by 1 at least."""
        factor = factors[int(rng.integers(len(factors)))]
        moved = value * factor
        if self.whole and round(moved) == value:
            moved = value + math.copysign(1, (factor - 1) * (value or 1))
        return self._number(min(max(moved, self.low), self.high))

    def extremes(self) -> tuple[float, ...]:
        """The values that settings are checked with."""
        return self._number(self.low), self._number(self.high)

    def plain(self) -> Any:
        if self.std:
            return {"std": self.std, "truncated": [self.low, self.high]}
        return {"low": self.low, "high": self.high, "log": self.log}

    def _normal(self, rng: np.random.Generator, mean: float, std: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        for _ in range(1000):
            value = mean + std * rng.standard_normal()
            if low <= value <= high:
                return self._bounded(value)
        return self._bounded(min(max(mean, low), high))  # the bounds are far from the mean

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else float(value)

    def _bounded(self, scaled: float) -> float:
        value = math.exp(scaled) if self.log else scaled
        return self._number(min(max(value, self.low), self.high))

    def _number(self, value: float) -> float:
        return round(value) if self.whole else float(value)


Draw = Choices | Interval


def take_random(
    layers: Iterable[Mapping[str, Any]], hints: Mapping[str, Any]
) -> tuple[Any, list[dict[str, Any]]]:
    """`random_params` out of layers of settings, also as `random_params.NAME`, and the layers without them.

    Names that a later layer sets are left out; `hints` are the settings that aliases can stand for.
    """
    drawn: Any = None
    rest = []
    for layer in layers:
        kept = {key: value for key, value in layer.items() if not is_random(key)}
        if isinstance(drawn, Mapping):
            drawn = _without(drawn, kept, hints)
        for key, value in layer.items():
            if is_random(key):
                _, _, name = str(key).partition(".")
                value = {name: value} if name else value
                both = isinstance(value, Mapping) and isinstance(drawn, Mapping)
                drawn = {**drawn, **value} if both else value
        rest.append(kept)
    return drawn, rest


def is_random(key: Any) -> bool:
    """Whether a key of settings is `random_params` or a part of it."""
    return str(key).replace("-", "_").partition(".")[0] == RANDOM


def _without(drawn: Mapping[Any, Any], layer: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[Any, Any]:
    """`random_params` without the names that a later layer sets."""
    given = _names(layer, hints)
    found = {}
    for name, form in drawn.items():
        wanted = _targets(str(name), hints)
        both = sorted(wanted & given)
        if not both:
            found[name] = form
        elif left := sorted(wanted - given):
            raise ConfigError(
                f"{RANDOM}.{name} draws {' and '.join(sorted(wanted))}, but {' and '.join(both)} is set; draw "
                f"{' and '.join(left)} instead"
            )
    return found


def _names(layer: Mapping[str, Any], hints: Mapping[str, Any]) -> set[str]:
    """The settings that a layer sets; options of components and parts with a dot, as in rnd.lr."""
    found = set[str]()
    for key, value in layer.items():
        if key == "components" and isinstance(value, Mapping):
            found |= _names(value, {})
        elif isinstance(value, Mapping):
            found |= {f"{key}.{option}" for option in value}
        found |= _targets(str(key), hints)
    return found


def _targets(name: str, hints: Mapping[str, Any]) -> set[str]:
    return {name} if "." in name else set(translated(name, 0, hints))


def read_draws(given: Any, value_of: Callable[[str], Any]) -> dict[str, Draw]:
    """`random_params` of a file or call, checked; `value_of` gives the configured value of a setting by its name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise wrong("random_params", given, f"a mapping of settings to {FORMS}")
    return {
        str(name): _draw(f"random_params.{name}", form, value_of(str(name))) for name, form in given.items()
    }


def meant(settings: Settings, name: str, where: str = RANDOM) -> list[str]:
    """The settings of a run that a name in `random_params` stands for; those of components as in rnd.lr.

    Args:
        where: the section that names it, in errors.
    """
    head = next((one for one in settings.components if name.startswith(f"{one}.")), name.partition(".")[0])
    option = name[len(head) + 1 :]
    if option and head in settings.components:
        kind: Any = type(settings.components[head])
        own = fields_of(kind)
        found = [key for key in translated(option, 0, own) if key in own]
        if not found:
            raise ConfigError(f"{where}: {head} has no setting {option!r}; {nearest(option, own)}")
        return [f"{head}.{key}" for key in found]
    hints = settings_of(algorithm_class(settings.algorithm)[1])
    if option and head in known("component"):
        raise ConfigError(f"{where}.{name}: {head} is not in use; add it: components: [{head}]")
    names = [f"{canonical(head, hints)}.{option}"] if option else list(translated(name, 0, hints))
    there = settings.plain()
    if not all(key.partition(".")[0] in there for key in names):
        raise ConfigError(f"{where}: {unknown_setting(settings.algorithm, head, hints).message}")
    return names


def configured(settings: Settings, name: str, where: str = RANDOM) -> Any:
    """The value that settings have for a name in `random_params`; None: an option that is not set."""
    key = meant(settings, name, where)[0]
    found = settings.plain()
    head = next((one for one in found if key.startswith(f"{one}.")), key)
    value = found[head]
    for word in key[len(head) + 1 :].split(".") if head != key else ():
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def saying_random(error: ConfigError) -> ConfigError:
    """An error of drawn values, which says where they came from."""
    return ConfigError(f"{RANDOM}: {error.message}")


def draw_all(draws: Mapping[str, Draw], rng: np.random.Generator) -> dict[str, Any]:
    """A first value for each setting."""
    return {name: draw.draw(rng) for name, draw in draws.items()}


def _draw(name: str, form: Any, configured: Any) -> Draw:
    if isinstance(form, (list, tuple)):
        form = {"in": form}
    if not isinstance(form, Mapping):
        raise wrong(name, form, FORMS)
    for key in form:
        if key not in _KEYS:
            raise ConfigError(f"{name} has a key {key!r}; {nearest(str(key), _KEYS)}")
    if "in" in form:
        return _choices(name, form)
    if "std" in form:
        return _around(name, form, configured)
    if "low" not in form or "high" not in form:
        raise wrong(name, dict(form), FORMS)
    low, high = (coerce(f"{name}.{key}", form[key], float) for key in ("low", "high"))
    log = coerce(f"{name}.log", form.get("log", False), bool)
    _check_bounds(name, low, high)
    if log and low <= 0:
        raise wrong(f"{name}.low", low, "above 0 where log is true")
    return Interval(low, high, log, whole=_is_whole(configured))


def _choices(name: str, form: Mapping[str, Any]) -> Choices:
    values = form["in"]
    if set(form) != {"in"} or not isinstance(values, (list, tuple)) or len(values) < 2:
        raise wrong(name, dict(form), f"{FORMS}, with two values or more in a list")
    return Choices(tuple(values))


def _around(name: str, form: Mapping[str, Any], configured: Any) -> Interval:
    if isinstance(configured, bool) or not isinstance(configured, (int, float)):
        raise ConfigError(
            f"{name} is drawn around the configured value, which is {configured!r}; set that to a number, or give "
            "low and high"
        )
    std = coerce(f"{name}.std", form["std"], float)
    low, high = coerce(f"{name}.truncated", form.get("truncated", ()), tuple[float, float])
    _check_bounds(name, low, high)
    if std <= 0:
        raise wrong(f"{name}.std", std, "above 0")
    return Interval(low, high, False, float(configured), std, _is_whole(configured))


def _check_bounds(name: str, low: float, high: float) -> None:
    if not low < high or math.isinf(low) or math.isinf(high):
        raise wrong(name, [low, high], "two finite numbers, the smaller first")


def _is_whole(configured: Any) -> bool:
    return isinstance(configured, int) and not isinstance(configured, bool)
