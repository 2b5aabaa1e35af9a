"""The command `whorl`: train, resume, eval, plot, list, check, config, completion."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from whorl import __version__
from whorl.cli.commands import COMMANDS, overview
from whorl.cli.report import INTERRUPTED, MISTAKE, in_lines
from whorl.core.errors import ConfigError, WhorlError, nearest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for findings of `check`, 2 for a mistake, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]  # it ignores the other arguments
            return _dispatch(words)
    except WhorlError as error:
        print(f"whorl: {in_lines(error)}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("whorl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `whorl list | head`
        sys.stderr.close()
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"whorl {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        raise ConfigError(f"no command is called {words[0]!r}; {nearest(words[0], COMMANDS)}")
    return command.run(words[1:])


def _show_warning(message: Any, *details: Any) -> None:
    print(f"whorl: {' '.join(str(message).split())}", file=sys.stderr)
