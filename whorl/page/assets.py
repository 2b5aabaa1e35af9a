"""Files that the page consists of: its own, and the script of plotly's package."""

import json
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whorl.core.errors import missing_extra

STATIC = files("whorl.page") / "static"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


def text_of(name: str) -> str:
    """A file of the page."""
    return (STATIC / name).read_text("utf-8")


def plotly_script() -> Path:
    """The script of the plotting library, without importing its package."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise missing_extra("plotly", "serve")
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    if not path.is_file():
        raise missing_extra("plotly with its script", "serve")
    return path


def page(head: str, scripts: str, title: str) -> str:
    """The page with what differs between the live one and a report."""
    text = text_of("page.html").replace("<!-- TITLE -->", escaped(title))
    return text.replace("<!-- HEAD -->", head).replace("<!-- SCRIPTS -->", scripts)


def escaped(text: str) -> str:
    """Text in HTML."""
    for letter, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot")):
        text = text.replace(letter, f"&{name};")
    return text


def embedded(data: Any) -> str:
    """JSON that can stand in a script of a page."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
