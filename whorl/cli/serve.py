"""`whorl serve`: the live page of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from whorl.cli.command import command, own_flags, parser_of, wants_help
from whorl.core.errors import ConfigError
from whorl.settings.schema import Range


@dataclass(frozen=True)
class ServeFlags:
    """Flags of `whorl serve`."""

    port: Annotated[int, Range(0, 65535)] = 8765
    """port of the page; the next free one if it is in use; 0: any"""
    host: str = "127.0.0.1"
    """address to listen on; 127.0.0.1: this machine only"""
    open: bool = False
    """open the page in a browser"""
    trust: tuple[str, ...] = ()
    """your own code that resumed runs may load: an import path, a module or a file (my_env.py)"""


@command("serve [RUNS] [--port N]", ServeFlags)
def serve(words: list[str]) -> int:
    """show runs on a live page of this machine: curves, settings, videos, logs; stop and resume them"""
    parser = parser_of("serve")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own: ServeFlags = own_flags(ServeFlags, values)
    if len(names) > 1:
        raise ConfigError(f"serve takes one folder of runs, but got {' and '.join(map(repr, names))}")
    from whorl.page.server import serve as serve_page
    from whorl.state.runfolder import RUNS

    def say(address: str) -> None:
        print(
            f"runs are shown at {address}\npress Ctrl-C to stop the page; runs continue without it",
            flush=True,
        )
        if own.open:
            import webbrowser

            webbrowser.open(address)

    try:
        serve_page(Path(names[0]) if names else RUNS, own.host, own.port, say, own.trust)
    except KeyboardInterrupt:
        return 0
    return 0
