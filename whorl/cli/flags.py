"""Command-line flags, generated from dataclasses: one argparse parser reads them and prints the help.

Flags are settings. They are read into a mapping, which `whorl.settings.merge` checks like files and Python's dicts.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from whorl.core.errors import ConfigError, misspelt
from whorl.core.registry import Part, known
from whorl.settings.aliases import (
    EXPANSIONS,
    NOTES,
    OF_ENVIRONMENT,
    OF_EVALUATION,
    OPPOSITES,
    canonical,
    is_expansion,
    note_on,
)
from whorl.settings.alike import same_meaning
from whorl.settings.merge import component_setting, related, spellings
from whorl.settings.presets import read_yaml
from whorl.settings.schema import Choice, Renamed, bare, coerce, describe, fields_of, help_of, rules_of

MOST_SEEDS = 10_000
"""of a range such as 1..8"""
SHORT = {
    "-c": "--config FILE, or --config FILE:VARIANT",
    "-f": "--runs FOLDER",
    "-n": "--name NAME (Advanced-SAC's -n), or --total-timesteps N (RL Baselines3 Zoo's)",
    "-p": "--port N",
    "-s": "--seed N, or --seeds N N ...",
}
"""short flags of other libraries, which do not all mean the same"""
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
OPTION_FLAGS: dict[str, tuple[str, type]] = {
    "editor": ("editor", bool),
    "port": ("port", int),
    "env_args": ("args", str),
}
"""options of Unity environments that have a flag of their own: --port is --env_options.port"""
_BOOLEANS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
METAVARS = {
    **dict.fromkeys(("config", "output", "gif"), "FILE"),
    **dict.fromkeys(("video", "apply"), "[FILE]"),
    **dict.fromkeys(("folder", "runs", "record.output"), "FOLDER"),
    **dict.fromkeys(("env", "environments"), "ENV"),
    **dict.fromkeys(("device", "env_device"), "DEVICE"),
    **dict.fromkeys(("dataset", "demonstrations"), "DATASET"),
    **dict.fromkeys(("host", "ray"), "ADDRESS"),
    **dict.fromkeys(("http_url", "mlflow_uri"), "URL"),
    "trust": "PATH",
    "group_by": "SETTING",
    "revision": "REVISION",
    "load_checkpoint_dir": "RUN",
}
"""what the help calls the value of a flag that takes text, by its name or by COMMAND.NAME; others are a NAME"""


class FlagParser(argparse.ArgumentParser):
    """The flags of one command.

    Args:
        command: whose flags these are, in errors.
        elsewhere: the settings of other algorithms, whose flags are read too: they are judged where files are.
        nested: whether the command takes settings, whose options (`--optimizer.weight_decay`) are flags as well.
    """

    def __init__(
        self,
        command: str,
        usage: str = "",
        about: str = "",
        elsewhere: Callable[[], Mapping[str, Any]] = dict,
        nested: bool = False,
    ) -> None:
        super().__init__(usage=f"whorl {usage}", description=about, add_help=False, allow_abbrev=False)
        self.formatter_class = lambda prog: argparse.HelpFormatter(prog, max_help_position=32)
        self.command, self.elsewhere, self.nested = command, elsewhere, nested
        self.hints: dict[str, Any] = {}
        self.registered: set[str] = set()
        self.groups: dict[str, Any] = {}
        self.components: list[str] = []
        """those that the command line names"""

    def add_config(
        self,
        config: Any,
        group: str | Callable[[str], str] = "flags",
        prefix: str = "",
        only: Sequence[str] = (),
    ) -> None:
        """A flag for every field of a dataclass, with the object's values as defaults in the help.

        Args:
            group: the title under which the help shows them, or a function of a field's name that gives it.
            only: the fields to add; empty: all.
        """
        kind: Any = type(config)
        texts = help_of(kind)
        for name, hint in fields_of(kind).items():
            if name in getattr(kind, "unused", ()) or (only and name not in only):
                continue
            flag = _as_flag(prefix + name)
            word = METAVARS.get(f"{self.command}.{name}") or METAVARS.get(name, "NAME")
            text = _with_default(texts[name], getattr(config, name), hint).replace("%", "%%")
            self.group(group if isinstance(group, str) else group(name)).add_argument(
                flag, action=_Store, dest=prefix + name, hint=hint, metavar=_metavar(hint, word), help=text
            )
            self.registered.add(flag)
            if not prefix:
                self.hints[name] = hint

    def group(self, title: str) -> Any:
        """The group of flags with this title; the help shows groups in the order in which they were asked for."""
        if title not in self.groups:
            self.groups[title] = self.add_argument_group(title)
        return self.groups[title]

    def read(self, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Names and settings out of words such as `RUN --num_envs 8 --optimizer.weight_decay 0.1 --no-eval`."""
        prepared: list[str] = []
        index = 0
        named = (words[at + 1 :] for at, word in enumerate(words) if word == "--components")
        self.components = [
            name for given in named for name in _until_flag(given) if name in known("component")
        ]
        while index < len(words):
            word, following = words[index], _until_flag(words[index + 1 :])
            index += 1
            if not _is_flag(word) or word == "--":
                # argparse takes a word like -1e-3 for a flag unless it starts with a space.
                prepared.append(f" {word}" if word.startswith("-") else word)
                continue
            flag, equals, _ = word.partition("=")
            hint, off = self._register(flag, following)
            optional = hint is not None and bool in (bare(hint), *get_args(bare(hint))) and not off
            if optional and not equals:
                takes = following and _is_value(following[0], bare(hint))
                prepared.append(f"{flag}={following[0] if takes else ''}")
                index += bool(takes)
            elif not equals and not off and not following:
                _typed(flag, [], hint)  # raises: the value is missing
            else:
                prepared.append(word)
        found, rest = self.parse_known_args(prepared, argparse.Namespace(values={}))
        names = [word.strip() for word in rest]
        if dashed := next((name for name in names if is_dashed(name)), None):
            raise one_dash(dashed, () if self.nested else self.hints)
        return names, found.values

    def _register(self, flag: str, following: Sequence[str]) -> tuple[Any, bool]:
        """Add a flag as it was spelt, with an alias or underscores, or for one option of a nested setting."""
        meaning = self._meaning(flag, self.hints)
        if meaning is None and flag[2:].replace("-", "_") not in NOTES:
            meaning = self._meaning(flag, self.elsewhere())
        name, hint, off = meaning or self._unknown(flag)
        if flag not in self.registered:
            several = hint is None and bool(following) and all(map(_is_number, following))
            self.add_argument(
                flag, action=_Store, dest=name, hint=hint, off=off, several=several, help=argparse.SUPPRESS
            )
            self.registered.add(flag)
        return hint, off

    def _meaning(self, flag: str, hints: Mapping[str, Any]) -> tuple[str, Any, bool] | None:
        """The setting behind a flag, its type (None if it is not known), and whether it is a --no-flag."""
        head, dot, path = flag[2:].replace("-", "_").partition(".")
        name = canonical(head, hints)
        if dot:
            nested = name in hints and bare(hints[name]) in (Part, dict)
            return (f"{name}.{path}", None, False) if path and (nested or self._passes(name)) else None
        if name in hints:
            return name, hints[name], False
        if name in OPTION_FLAGS and "env_options" in hints:
            option, kind = OPTION_FLAGS[name]
            return f"env_options.{option}", kind, False
        if is_expansion(head, hints):
            hint = EXPANSIONS[head][0]
            return head, None if hint is str else hint, False
        # --no-eval, and --noeval as absl has it
        negated = (
            canonical(head.removeprefix(prefix), hints) for prefix in ("no_", "no") if head.startswith(prefix)
        )
        positive = next((name for name in negated if bare(hints.get(name)) is bool), None)
        return None if positive is None else (positive, bool, True)

    def _passes(self, name: str) -> bool:
        """Whether options of `name` may be those of a component, which is decided where settings are merged."""
        return self.nested and name not in self.hints

    def _unknown(self, flag: str) -> NoReturn:
        head, dot, _ = flag[2:].partition(".")
        name = head.replace("-", "_")
        if dot and canonical(name, self.hints) in self.hints:
            raise ConfigError(f"{flag} does not exist: {head} has no options")
        if "env_options" in self.hints and NOTES.get(name) == OF_ENVIRONMENT:
            option = "NAME" if name in ("env_kwargs", "env_config", "gym_kwargs") else name
            raise ConfigError(
                f"{self.command} has no flag {flag}; options of the environment are --env_options.{option} VALUE"
            )
        # Other commands than those with settings are named by some notes.
        note = note_on(name, self.hints)
        if note and (self.nested or f"whorl {self.command}" in note):
            raise ConfigError(f"{self.command} has no flag {flag}: {note}")
        if (here := OF_EVALUATION.get(name)) in self.hints:
            raise ConfigError(f"{self.command} has no flag {flag}; here it is called {_as_flag(str(here))}")
        if (here := OPPOSITES.get(name)) in self.hints:
            raise ConfigError(
                f"{self.command} has no flag {flag}; the opposite is {_as_flag(str(here))}, true or false"
            )
        word = None
        if not same_meaning(name, self.hints):
            word = misspelt(name, spellings(self.hints) if self.nested else self.hints)
            if word is None and self.nested:
                word = component_setting(name, self.components) or misspelt(name, spellings(self.elsewhere()))
        hint = f"did you mean '{_as_flag(word)}'?" if word else ""
        hint = (
            hint
            or related(name, self.hints, lambda one: f"'{_as_flag(one)}'")
            or f"{self._help} lists all flags"
        )
        raise ConfigError(f"{self.command} has no flag {flag}; {hint}")

    @property
    def _help(self) -> str:
        """The flag that lists all flags."""
        return "--help-all" if self.nested else "--help"

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Store(argparse.Action):
    """Puts the typed value of a flag into `namespace.values`; errors name the flag as it was spelt."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        hint: Any = None,
        off: bool = False,
        several: bool = False,
        help: str | None = None,
        metavar: str | None = None,
    ) -> None:
        kinds = (bare(hint), *get_args(bare(hint)))
        several = several or any(kind is list or get_origin(kind) in (tuple, list) for kind in kinds)
        nargs: Any = 0 if off else "+" if several else None
        super().__init__(option_strings, dest, nargs, help=help, metavar=metavar)
        self.hint, self.off = hint, off

    def __call__(self, parser: Any, namespace: Any, given: Any, flag: str | None = None) -> None:
        words = [word.strip() for word in (given if isinstance(given, list) else [given]) if word]
        if self.dest == "seeds":
            parts = [part for word in words for part in word.strip("[]").split(",") if part]
            words = [number for part in parts for number in in_range(str(flag), part)]
        value: Any = False if self.off else _typed(str(flag), words, self.hint)
        if get_args(bare(self.hint)) == (
            str,
            ...,
        ):  # a list of words can be given in pieces: --config a --config b
            value = [*namespace.values.get(self.dest, ()), *value]
        namespace.values[self.dest] = value


def is_dashed(word: str) -> bool:
    """Whether a word is a flag with one dash: -n, -lr."""
    return re.match(r"-[A-Za-z]", word) is not None


def one_dash(word: str, flags: Iterable[str] = ()) -> ConfigError:
    """The error for a flag with one dash.

    Args:
        flags: the names of a command's own flags, among which it may be the first letter of one.
    """
    own = [_as_flag(name) for name in flags if len(word) == 2 and name.startswith(word[1].lower())]
    if own:
        return ConfigError(f"unknown flag {word!r}; write {' or '.join(own)}")
    if word in SHORT and not flags:
        return ConfigError(f"unknown flag {word!r}; use {SHORT[word]}")
    if len(word) == 2:
        return ConfigError(
            f"unknown flag {word!r}; flags are written out, with two dashes: --help lists them"
        )
    return ConfigError(f"unknown flag {word!r}; flags start with two dashes: -{word}")


def in_range(flag: str, word: str) -> list[str]:
    """The numbers of a range such as 1..8; any other word as it is."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", word)
    if found is None:
        return [word]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + MOST_SEEDS:
        raise ConfigError(
            f"{flag} {word} is not a range of at most {MOST_SEEDS} seeds; write the lower number first, as in 1..8"
        )
    return [str(number) for number in range(first, last + 1)]


def _typed(flag: str, given: list[str], hint: Any) -> Any:
    """The value of a flag, checked against its type so that the error can name the flag."""
    kind = bare(hint)
    if not given:
        if kind is bool or bool in get_args(kind):
            return True
        raise ConfigError(f"{flag} needs a value: {_wanted(hint)}")
    text = given[0]
    if kind in (None, Part, dict, list):
        read = [read_yaml(word, f"{flag} {word}") for word in given]
        return (
            read[0]
            if len(read) == 1 and not (kind is list and not isinstance(read[0], (list, dict)))
            else read
        )
    for rule in rules_of(hint):
        if isinstance(rule, Renamed):
            text = rule.convert(_BOOLEANS.get(text.lower(), text) if True in rule.values else text)
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(f"{flag} is {text!r}; it must be true or false")
        return _BOOLEANS[text.lower()]
    if get_origin(kind) in (Union, type(int | str)):
        if str in get_args(kind):
            return text
        listed = read_yaml(text, f"{flag} {text}") if text.startswith("[") else given
        return coerce(flag, listed[0] if len(listed) == 1 else listed, kind)
    if get_origin(kind) in (tuple, list):
        listed = read_yaml(text, f"{flag} {text}") if len(given) == 1 and text.startswith("[") else given
        return list(coerce(flag, listed, kind))
    return coerce(flag, text, kind)


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _until_flag(words: Sequence[str]) -> list[str]:
    count = next((i for i, word in enumerate(words) if _is_flag(word)), len(words))
    return list(words[:count])


def _is_flag(word: str) -> bool:
    """Whether a word is a flag; one with a space before any equals sign is a value: --env-args "--level 3"."""
    return word.startswith("--") and " " not in word.partition("=")[0]


def _is_value(word: str, hint: Any) -> bool:
    """Whether a word is the value of a flag whose value may be left out, rather than a name."""
    return word.lower() in _BOOLEANS if hint is bool else not Path(word).is_dir()


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


def _metavar(hint: Any, word: str) -> str:
    """What the help calls the value of a flag; `word` if it is text."""
    kind, parts = bare(hint), get_args(bare(hint))
    for rule in rules_of(hint):
        if isinstance(rule, Choice):
            return "|".join(rule.names)
    if get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in parts if choice != "")
    if get_origin(kind) in (tuple, list):
        return _metavar(parts[0], word)
    if get_origin(kind) in (Union, type(int | str)):
        if str in parts:
            return word
        return "|".join(dict.fromkeys(_metavar(part, word) for part in parts if part is not type(None)))
    return {int: "N", float: "X", bool: "true|false", str: word, Part: "NAME"}.get(kind, "VALUE")


def _wanted(hint: Any) -> str:
    """What the value of a flag has to be, in words."""
    choice = next((rule for rule in rules_of(hint) if isinstance(rule, Choice)), None)
    if choice is not None:
        return f"one of {', '.join(choice.names)}"
    return describe(hint) if bare(hint) else "what to set it to"


def _with_default(text: str, value: Any, hint: Any) -> str:
    """The help of a flag with its default; empty ones, but those of sizes, are explained by the text itself.

    So is what happens without a flag that takes a name or nothing, such as `--video [FILE]`.
    """
    empty = value in ("", ()) and not (value == () and rules_of(hint))
    empty = empty or (value is False and str in get_args(bare(hint)))
    return text if empty else f"{text} (default: {_shown(value)})"


def _shown(value: Any) -> str:
    if isinstance(value, Part):
        return value.name if not value.options else json.dumps(value.plain())
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
