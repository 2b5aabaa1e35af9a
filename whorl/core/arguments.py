"""Arguments of the public functions."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def listed(given: Any) -> Iterable[Any]:
    """A list as it is, and one name, path, mapping or function as a list of it: a string is never read by letters."""
    return [given] if isinstance(given, str | Path | Mapping) or callable(given) else given
