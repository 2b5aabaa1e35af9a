"""Messages to the user, as Python's warnings: filters and `pytest.warns` treat them as any other."""

import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_PACKAGE = __name__.partition(".")[0]
_PYTHON = sysconfig.get_paths()["stdlib"]
_RECORD: ContextVar[Callable[[str], object] | None] = ContextVar("record", default=None)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that called the library, and record the message where a run is under way.

    A filter for `module="whorl"` applies.
    """
    frame = sys._getframe(1)
    module, place = str(frame.f_globals.get("__name__", _PACKAGE)), _users(frame)
    if place is None:
        warnings.warn_explicit(text, category, _PACKAGE, 1, module, _registry)
    else:
        registry = place.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, category, place.f_code.co_filename, place.f_lineno, module, registry)
    record = _RECORD.get()
    if record is not None:
        record(text)


@contextmanager
def recording(record: Callable[[str], object]) -> Iterator[None]:
    """Give messages to `record` as well, those of this thread."""
    token = _RECORD.set(record)
    try:
        yield
    finally:
        _RECORD.reset(token)


_registry: dict[str | tuple[str, type[Warning], int], int] = {}
"""what was shown without a line of the user's"""


def _users(frame: FrameType | None) -> FrameType | None:
    """Where the library was called; None: by Python itself, in a thread or process or as a command."""
    found = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] == _PACKAGE:
            found = frame.f_back
        frame = frame.f_back
    file = "" if found is None else found.f_code.co_filename
    installed = ("site-packages", "dist-packages")
    of_python = file.startswith(("<frozen", _PYTHON)) and not any(part in file for part in installed)
    return None if of_python else found
