"""Errors: one sentence with what was given, what is allowed, and the nearest valid choice."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from pathlib import Path

from whorl.core import messages


class WhorlError(Exception):
    """A mistake that the user can correct; the command line prints its message without a traceback.

    Args:
        message: one sentence.
        details: lines to show below it, such as the traceback of the user's own code in another process.
    """

    def __init__(self, message: str = "", details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self._details = details

    @property
    def details(self) -> str:
        return self._details

    def __str__(self) -> str:
        return f"{self.message}\n\n{self._details}" if self._details else self.message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.message, self.details)


class ConfigError(WhorlError, ValueError):
    """A wrong key, type or combination of settings."""


class EnvError(WhorlError):
    """An environment that can't be made, or that violates its interface."""


class EnvFailure(EnvError):
    """An exception in an environment's own code, from which this one is raised."""

    @property
    def details(self) -> str:
        """The traceback of that exception. Python prints it itself, so `str()` has it only after a journey."""
        if self._details or self.__cause__ is None:
            return self._details
        return "".join(traceback.format_exception(self.__cause__)).rstrip()


class CheckpointError(WhorlError):
    """A run folder or checkpoint that can't be read or written."""


class DamagedError(CheckpointError):
    """A file that a checkpoint needs is missing, truncated or altered."""


class DivergedError(WhorlError):
    """A loss, observation or reward stopped being a finite number."""


def extend(error: Exception, text: str) -> None:
    """Add to the message of an error that is raised again: what was saved, how to continue."""
    if isinstance(error, WhorlError):
        error.message = f"{error.message}; {text}"
        error.args = (error.message,)
    elif hasattr(error, "add_note"):
        error.add_note(text)
    else:  # Python 3.10, whose tracebacks do not show notes
        error.__notes__ = [*getattr(error, "__notes__", ()), text]
        messages.warn(text)


def nearest(given: str, allowed: Iterable[str], most: int = 0, prefix: str = "") -> str:
    """'did you mean X?' with the closest allowed word, or else the first `most` of them; 0: all.

    Args:
        prefix: what all words begin with, which makes none of them closer.
    """
    words = sorted(allowed)
    lower = {word.removeprefix(prefix).lower(): word for word in words}
    close = get_close_matches(given.removeprefix(prefix).lower(), lower, n=1, cutoff=0.65)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    more = f" and {len(words) - most} more" if 0 < most < len(words) else ""
    return f"choose one of: {', '.join(words[: most or None])}{more}"


def misspelt(given: str, allowed: Iterable[str]) -> str | None:
    """The allowed name of which `given` is a misspelling: a typing error in a word or two, never another word."""
    distances = {name: _distance(given.lower(), name.lower()) for name in allowed}
    best = min(distances, key=lambda name: (distances[name], name), default=None)
    return best if best is not None and distances[best] <= 2 else None


def _distance(given: str, name: str) -> float:
    """Typing errors between two names; infinite if a word is too different, for its length, to be the same."""
    pairs = list(zip(given.split("_"), name.split("_")))
    if given.count("_") != name.count("_"):
        pairs = [(given.replace("_", ""), name.replace("_", ""))]
    found = [(edits(a, b), len(b)) for a, b in pairs]
    return sum(n for n, _ in found) if all(n <= length // 4 for n, length in found) else inf


def edits(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbouring letters that turn `a` into `b`."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a):
        row = [i + 1]
        for j, y in enumerate(b):
            cost = min(last[j] + (x != y), last[j + 1] + 1, row[j] + 1)
            if i and j and x == b[j - 1] and y == a[i - 1]:
                cost = min(cost, before[j - 1] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def missing_extra(package: str, extra: str) -> WhorlError:
    """The error for an optional package that is not installed."""
    return WhorlError(f"{package} is not installed; install it with: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that installs an extra of this copy of Whorl: of its clone, or of the installed distribution."""
    folder = Path(__file__).resolve().parents[2]
    if (folder / "pyproject.toml").is_file():
        return f"pip install -e '{folder}[{extra}]'"
    return f"pip install 'whorl-rl[{extra}]'"
