"""The command `whorl`: train, evolve, resume, eval, plot, list, check, config, completion."""

import atexit
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from whorl.cli.status import INTERRUPTED, MISTAKE

COLOURS = re.compile(r"\x1b\[[0-9;]*m")

UNTOUCHED = {
    **dict.fromkeys(("train", "evolve"), "before training began; nothing was saved"),
    "resume": "before training resumed; the run is unchanged",
}
"""what a Ctrl-C leaves that comes before training"""


def run() -> int:
    """`main` as a process, which a Ctrl-C in a terminal ends as shells expect it, with that signal.

    A loop of a shell over seeds would go on with the next one after any ordinary exit status, 130 too.
    """
    status = 0

    def end() -> None:
        if status == INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            _end_by_interrupt()

    atexit.register(end)  # runs after what is registered later
    status = main()
    return status


def _end_by_interrupt() -> None:
    """End the process by the signal, if it has a terminal; Windows has no such end."""
    if os.name == "posix" and os.isatty(2):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for findings of `check`, 2 for a mistake, 130 after Ctrl-C, 143 after
    SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _quiet_interrupts(UNTOUCHED.get(words[0], "") if words else ""):
        from whorl.core.errors import (
            WhorlError,  # here and below, so that Ctrl-C is quiet from the first import on
        )

        try:
            with warnings.catch_warnings():
                warnings.showwarning = _WarningPrinter()  # type: ignore[assignment]  # it ignores other arguments
                return _dispatch(words)
        except WhorlError as error:
            from whorl.cli.report import in_lines

            print(f"whorl: {in_lines(error)}", file=sys.stderr)
            return MISTAKE
        except KeyboardInterrupt as stop:
            what = str(stop) or (UNTOUCHED.get(words[0], "") if words else "")
            print(f"whorl: interrupted{what and ' '}{what}", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # `whorl list | head`
            sys.stderr.close()
            return 1


def _dispatch(words: list[str]) -> int:
    from whorl.cli.command import ELSEWHERE, commands, overview
    from whorl.core.errors import ConfigError, nearest
    from whorl.core.version import __version__

    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V", "version"):
        print(f"whorl {__version__}")
        return 0
    command = commands().get(words[0])
    if command is None and words[0] in ELSEWHERE:
        raise ConfigError(f"no command is called {words[0]!r}; here it is whorl {ELSEWHERE[words[0]]}")
    if command is None:
        raise ConfigError(f"no command is called {words[0]!r}; {nearest(words[0], commands())}")
    return command.run(words[1:])


class _WarningPrinter:
    """Prints warnings in one line; files are read more than once, so the same one in a row is printed once."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, message: Any, *details: Any) -> None:
        text = COLOURS.sub("", " ".join(str(message).split())).removeprefix(
            "WARN: "
        )  # Gymnasium's are yellow
        if text != self.last:
            print(f"whorl: {text}", file=sys.stderr)
        self.last = text


@contextmanager
def _quiet_interrupts(untouched: str) -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, but ends the process at once during an import and the second time.

    Packages that are imported would print a traceback, or turn the interrupt into another error.

    Args:
        untouched: what is said about an interrupt during an import.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _interrupter(untouched))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupter(untouched: str) -> Callable[[int, FrameType | None], None]:
    pressed = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1 or _importing(frame):
            what = f" {untouched}" if untouched and pressed == 1 else ""
            os.write(2, f"whorl: interrupted{what}\n".encode())
            if "whorl.distributed.watch" in sys.modules:  # which has no more to say
                sys.modules["whorl.distributed.watch"].close_all()
            _end_by_interrupt()
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    return interrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame or one of its callers imports a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
