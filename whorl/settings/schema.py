"""Types of settings: what a field accepts, how values are converted, and the error for a value that does not fit.

A setting is a dataclass field. Its range is part of its type, `tau: Annotated[float, Range(0, 1)]` or an alias such as
`Probability`; the string under the field is its documentation and command-line help.
"""

import ast
import dataclasses
import fractions
import inspect
import math
import numbers
import os
import re
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from string import Formatter
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part, registered

ABOVE_0 = math.ulp(0.0)
LARGE = 10**15
"""more than any run counts to, and still exact as a float"""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; in a tuple this holds for each item."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, name: str, value: Any) -> None:
        for number in numbers_in(value):
            # That there is an upper bound as well is of no interest.
            if number < self.low and self.high >= LARGE:
                raise wrong(name, number, str(Range(self.low)))
            if not self.low <= number <= self.high:
                raise wrong(name, number, str(self))

    def __str__(self) -> str:
        if self.high == math.inf:
            return "above 0" if self.low == ABOVE_0 else f"at least {self.low:,}"
        if self.low == ABOVE_0:
            return f"above 0 and at most {self.high:,}"
        return f"from {self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Ordered:
    """Two numbers of which the first is the smaller one."""

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, tuple) and not value[0] < value[1]:
            raise wrong(name, list(value), "two numbers, the smaller first")


@dataclass(frozen=True)
class Pattern:
    """Text that matches a regular expression; `words` describe it in errors."""

    pattern: str
    words: str

    def check(self, name: str, value: Any) -> None:
        if not re.fullmatch(self.pattern, value):
            raise wrong(name, value, self.words)


@dataclass(frozen=True)
class Template:
    """Text in which words in braces are filled in."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def check(self, name: str, value: Any) -> None:
        try:
            parts = list(Formatter().parse(value))
        except ValueError as error:
            raise ConfigError(f"{name} is {value!r}, which is not a template: {error}") from None
        for _, field, spec, conversion in parts:
            if field is None:
                continue
            if spec or conversion:
                raise ConfigError(f"{name} is {value!r}; words in braces take no format: {{{field}}}")
            if field not in self.words:
                raise ConfigError(
                    f"{name} is {value!r}; {{{field}}} is not known: {nearest(field, self.words)}"
                )


@dataclass(frozen=True)
class Choice:
    """One of `names`, or a name registered under `kind`; a part may also be an import path."""

    kind: str
    names: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:
        word = value.name if isinstance(value, Part) else value
        known = {*self.names, *registered(self.kind)}
        if word not in known and not (isinstance(value, Part) and "." in word):
            raise ConfigError(f"{name} is {word!r}; {nearest(word, known)}")


@dataclass(frozen=True)
class Without:
    """A part without a certain option."""

    option: str
    reason: str

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, Part) and self.option in value.options:
            raise ConfigError(f"{name} has an option {self.option!r}; {self.reason}")


@dataclass(frozen=True)
class Renamed:
    """Earlier or foreign spellings of values: `Renamed({"apart": "async"})`."""

    values: Mapping[Any, Any]

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def convert(self, value: Any) -> Any:
        known = isinstance(value, (str, bool)) and value in self.values
        return self.values[value] if known else value


Probability = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(ABOVE_0, 10**6)]
NonNegative = Annotated[float, Range(0, 10**6)]
Number = Annotated[float, Range(-(10**6), 10**6)]
Temperature = Annotated[float, Range(1e-6, 10**6)]
Limit = Annotated[float, Range(0, math.inf)]
"""a bound or threshold; 0 usually turns it off"""
PositiveLimit = Annotated[float, Range(ABOVE_0, math.inf)]
LearningRate = Annotated[float, Range(0, 100)]
Epsilon = Annotated[float, Range(1e-30, 1)]
Count = Annotated[int, Range(0, LARGE)]
PositiveCount = Annotated[int, Range(1, LARGE)]
Size = Annotated[int, Range(1, 100_000)]
HiddenSizes = Annotated[tuple[int, ...], Range(1, 100_000)]
LogStd = Annotated[float, Range(-40, 40)]  # the variance is exp(2 * log_std), in single precision
LogStdRange = Annotated[tuple[float, float], Range(-40, 40), Ordered()]
Device = Annotated[
    str, Pattern(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N"), Renamed({"gpu": "cuda"})
]
Optimizer = Annotated[Part, Without("lr", "learning rates are settings of their own")]
Schedule = Annotated[Part, Choice("schedule", ("constant", "linear", "cosine", "warmup"))]
AdaptiveSchedule = Annotated[Part, Choice("schedule", ("constant", "linear", "cosine", "warmup", "kl"))]
Activation = Annotated[
    Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"],
    Renamed({"leakyrelu": "leaky_relu"}),
]


@cache
def fields_of(*configs: type) -> dict[str, Any]:
    """The settings of config classes by name, with their annotated types."""
    found = {}
    for config in configs:
        hints = get_type_hints(config, include_extras=True)
        found.update({f.name: hints[f.name] for f in dataclasses.fields(config)})
    return found


def bare(hint: Any) -> Any:
    """A type without its annotations."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def rules_of(hint: Any) -> tuple[Any, ...]:
    """The annotations of a type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


@cache
def help_of(config: type) -> dict[str, str]:
    """The string under each field of a dataclass; an inherited field keeps its parent's."""
    found: dict[str, str] = {}
    for parent in reversed(config.__mro__):
        if not dataclasses.is_dataclass(parent):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0].body  # type: ignore[attr-defined]
        except (OSError, SyntaxError):  # a class without a source file
            continue
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())  # type: ignore[union-attr]
    return {f.name: found.get(f.name, "") for f in dataclasses.fields(config)}


def build(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """One checked config out of plain values; keys that it does not have are ignored."""
    hints = fields_of(config)
    found = {}
    for f in dataclasses.fields(config):
        if f.name in values:
            value, default = values[f.name], f.default
            if isinstance(value, Mapping) and isinstance(default, Part):
                value = {"class": default.name, **value}
            found[f.name] = checked(prefix + f.name, value, hints[f.name], default)
    return config(**found)


def checked(name: str, value: Any, hint: Any, default: Any = None) -> Any:
    """`value` converted to the type of a field and checked against its range."""
    for rule in rules_of(hint):
        if isinstance(rule, Renamed):
            value = rule.convert(value)
    found = coerce(name, value, bare(hint))
    for rule in rules_of(hint):
        if hasattr(rule, "check"):
            rule.check(name, found)
    for number in numbers_in(found):
        if abs(number) == math.inf and math.inf not in map(abs, numbers_in(default)):
            raise wrong(name, number, "finite")
    return found


def coerce(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the field declares, or an error with the type it should have."""
    hint = bare(hint)
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        word = value.__name__ if isinstance(value, type) else value  # torch.nn.Tanh
        word = word.lower() if isinstance(word, str) else word
        if word not in options or isinstance(word, bool) is not isinstance(options[0], bool):
            raise ConfigError(f"{name} is {value!r}; {nearest(str(value), [str(o) for o in options])}")
        return word
    if origin in (tuple, list):
        return origin(_items(name, value, hint))
    if origin in (Union, types.UnionType):
        for option in options:
            try:
                return coerce(name, value, option)
            except ConfigError:
                continue
        raise wrong(name, value, describe(hint))
    if hint is Part:
        return Part.of(value)
    if hint in (int, float):
        return _number(name, value, hint)
    if hint is str and (isinstance(value, os.PathLike) or type(value).__name__ == "device"):
        return str(value)  # a path, or a torch.device
    if hint in (bool, str, type(None)) and not isinstance(value, hint):
        raise wrong(name, value, describe(hint))
    return value


def _items(name: str, value: Any, hint: Any) -> list[Any]:
    options = get_args(hint)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong(name, value, describe(hint))
    values = list(value)
    fixed = get_origin(hint) is tuple and options[-1] is not Ellipsis
    kinds = options if fixed else options[:1] * len(values)
    if len(kinds) != len(values):
        raise wrong(name, value, describe(hint))
    try:
        return [coerce(name, v, kind) for v, kind in zip(values, kinds)]
    except ConfigError:
        raise wrong(name, value, describe(hint)) from None


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


def describe(hint: Any) -> str:
    """What a setting of this type must be, in words."""
    hint = bare(hint)
    origin, options = get_origin(hint), get_args(hint)
    if hint is Part:
        return "a name, an import path, or a mapping with 'class'"
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in options)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in options)
    if origin in (tuple, list):
        plural = _WORDS.get(options[0], str(options[0])).removeprefix("a ") + "s"
        many = origin is list or options[-1] is Ellipsis
        return f"a list of {plural}" if many else f"{len(options)} {plural}"
    return _WORDS.get(hint, str(hint))


_THOUSANDS = {"k": 1_000, "m": 1_000_000}
"""suffixes of whole numbers, as the progress display writes them: 100k, 1.5M"""


def _number(name: str, value: Any, hint: type) -> Any:
    kind, given = describe(hint), value
    if isinstance(value, str):  # from the command line, or quoted in a file
        try:
            if hint is int and (short := re.fullmatch(r"([\d_.]+)([kKmM])", value)):
                value = fractions.Fraction(short[1].replace("_", "")) * _THOUSANDS[short[2].lower()]
            else:
                value = int(value) if hint is int and not set(value.lower()) & set(".e") else float(value)
        except ValueError:
            raise wrong(name, given, kind) from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(name, given, kind)
    if hint is int and isinstance(value, numbers.Integral):
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        raise wrong(name, given, "a number that fits a float") from None
    if math.isnan(number) or (hint is int and not number.is_integer()):
        raise wrong(name, given, kind)
    return int(number) if hint is int else number


def numbers_in(value: Any) -> list[float]:
    """The numbers of a setting's value."""
    values = value if isinstance(value, tuple) else (value,)
    return [n for n in values if isinstance(n, (int, float)) and not isinstance(n, bool)]


SWITCHES = {
    "eval_freq": "to train without evaluations set eval to false",
    "n_eval_episodes": "to train without evaluations set eval to false",
    "checkpoint_freq": "to train without checkpoints set save_model to false",
    "total_timesteps": "to only evaluate a run use whorl eval RUN",
}
"""numbers that other libraries switch off by 0 or -1"""


def wrong(name: str, value: Any, wanted: str) -> ConfigError:
    """The error for a value that is not what is wanted."""
    more = ""
    if value is None:
        more = "; leave it out for the default"
    elif callable(value) and name.endswith(("lr", "learning_rate")):
        more = "; its schedule is lr_schedule: linear, cosine, warmup, or a function that you register"
    elif isinstance(value, str) and value.startswith("lin_"):  # RL Baselines3 Zoo
        more = "; write the number alone, and for a learning rate that falls lr_schedule: linear"
    elif name in SWITCHES and value in (0, -1):
        more = f"; {SWITCHES[name]}"
    return ConfigError(f"{name} is {value!r}; it must be {wanted}{more}")
