"""A report: the page of some runs as one file that needs no server and no network."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whorl.core import files
from whorl.core.errors import WhorlError
from whorl.log.groups import RETURN, Style
from whorl.page import assets
from whorl.page.catalog import Catalog, Entry
from whorl.page.curves import Curves, Query, expanded, metrics_of
from whorl.page.details import details, map_picture, media_file

MEDIA_BYTES = 48_000_000
"""pictures and videos that a report holds at most; the newest of each run come first"""
METRICS = 60
"""metrics that a report holds at most"""
NO_LIMIT = float("inf")


def write_report(run_folders: Sequence[Path], output: Path, style: Style) -> Path:
    """Write the page of these runs into one HTML file."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise WhorlError(f"a report can't be written as {output.name!r}; end the name in .html")
    script = assets.plotly_script()
    catalog = Catalog(Path.cwd(), run_folders)
    catalog.refresh()
    entries = list(catalog.entries.values())
    if not entries:
        raise WhorlError(f"there is no run in {', '.join(map(str, run_folders))}; name run folders")
    if not any(entry.metrics for entry in entries):
        raise WhorlError("these runs have no rows of metrics yet; let them log something first")
    data = _data(entries, style)
    names = ", ".join(entry.name for entry in entries[:3]) + (" …" if len(entries) > 3 else "")
    # The script closes no element of the page: the library's build has no such text, the data is escaped.
    scripts = "".join(
        [
            f'<script type="application/json" id="whorl-data">{assets.embedded(data)}</script>',
            f"<script>{_script(script.read_text('utf-8'))}</script>",
            f"<script>{_script(assets.text_of('page.js'))}</script>",
        ]
    )
    page = assets.page(f"<style>{assets.text_of('page.css')}</style>", scripts, f"{names} · Whorl")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(output, page.encode())
    except OSError as error:
        raise WhorlError(f"can't write {output}: {files.reason(error)}") from None
    return output


def _script(text: str) -> str:
    return text.replace("</script", "<\\/script")


def _data(entries: Sequence[Entry], style: Style) -> dict[str, Any]:
    runs = [entry for entry in entries if not entry.population]
    metrics = metrics_of(runs)[:METRICS]
    system = [name for name in metrics if _of_system(name)]
    found: dict[str, Any] = {}
    reader = Curves()
    first = f"|steps|{RETURN}"
    main = [name for name in metrics if name.endswith(("episode/return", "evaluation/return"))]
    for axis in ("steps", "time", "episodes"):
        for metric in dict.fromkeys([RETURN, *(metrics if axis == "steps" else main)]):
            own = Style(axis, style.statistic, style.band, style.smooth)
            found[f"|{axis}|{metric}"] = reader.panels(runs, Query(metric, own), NO_LIMIT)
    for entry in runs if len(runs) > 1 else ():
        for metric in system:
            own = Style("steps", smooth=0)
            found[f"{entry.name}|steps|{metric}"] = reader.panels([entry], Query(metric, own), NO_LIMIT)
    shown = expanded(RETURN, metrics)
    return {
        "runs": {
            "server": "report",
            "version": 1,
            "rows": [entry.row for entry in entries],
            "root": f"report of {time.strftime('%Y-%m-%d %H:%M')}",
            "now": time.time(),
        },
        "curves": found,
        "first": first,
        "axes": ["steps", "time", "episodes"],
        "style": {"statistic": style.statistic, "band": style.band},
        "shown": shown,
        "system": system,
        "details": {entry.name: details(entry) for entry in entries},
        "files": _files(entries),
    }


def _of_system(name: str) -> bool:
    return "system/" in name or name.endswith(("updates_per_second", "time/steps_per_second"))


def _files(entries: Sequence[Entry]) -> dict[str, str]:
    """Pictures, videos and maps as addresses that hold their data."""
    found: dict[str, str] = {}
    left = MEDIA_BYTES
    for entry in entries:
        about = details(entry)
        for name in about["maps"]:
            found[f"{entry.name}|map|{name}"] = _address(map_picture(entry, name), "image/png")
        for item in about["media"]:
            if item["bytes"] <= left:
                path, kind = media_file(entry, item["path"])
                found[f"{entry.name}|{item['path']}"] = _address(path.read_bytes(), kind)
                left -= item["bytes"]
    return found


def _address(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
