"""Errors that teach: one sentence with what was given, what is allowed, and the nearest valid choice."""

from collections.abc import Iterable
from difflib import get_close_matches


class WhorlError(Exception):
    """A mistake that the caller can mend; the command line prints the sentence and no traceback."""


class ConfigError(WhorlError, ValueError):
    """A wrong key, type or combination of settings."""


class EnvError(WhorlError):
    """An environment that can't be made, or that broke its contract."""


class CheckpointError(WhorlError):
    """A run folder or checkpoint that can't be read or written."""


class DamagedError(CheckpointError):
    """A file that a checkpoint needs is missing, truncated or altered."""


class DivergedError(WhorlError):
    """A loss, observation or reward stopped being a finite number."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """'; did you mean X?' for the closest allowed word, else the list of them."""
    words = sorted(allowed)
    lower = {word.lower(): word for word in words}
    close = get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    return "choose one of: " + ", ".join(words)


def missing_extra(package: str, extra: str) -> WhorlError:
    """The error for an optional package that is not installed."""
    return WhorlError(f"{package} is not installed; install it with: pip install 'whorl[{extra}]'")
