"""The live page: a server on the loopback interface, which reads run folders and never writes to them by itself."""

import errno
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whorl.core.errors import ConfigError, WhorlError, missing_extra
from whorl.core.files import reason
from whorl.log.groups import Style
from whorl.page import assets
from whorl.page.catalog import Catalog
from whorl.page.control import Control
from whorl.page.curves import Curves, Query
from whorl.page.details import Machine, details, map_picture, media_file
from whorl.page.guard import App, Guard, new_token
from whorl.settings.schema import build

HOST, PORT = "127.0.0.1", 8765
NEXT_PORTS = 50
"""ports after the one asked for that are tried while it is in use"""
LOOK_SECONDS = 1.0
"""time between two looks at the folders"""
BODY_BYTES = 1 << 20
FIRST_RUNS = 20
"""runs that a page plots when it is opened, as in page.js"""


class Desk:
    """Responses of the server, independent of HTTP."""

    def __init__(self, root: Path, trust: Sequence[str] = ()) -> None:
        self.catalog = Catalog(root)
        self.curves, self.control, self.machine = Curves(), Control(self.catalog, trust), Machine()
        self.id = secrets.token_hex(8)
        """of this server: counts of an earlier one mean nothing to it"""
        self._asked: dict[str, dict[str, Any]] = {}
        """states of rows that a request has changed"""
        self._looked = float("-inf")
        self._lock = threading.Lock()

    def look(self) -> None:
        """Look for changes, not more than once a second."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self.catalog.refresh()
                self._looked = time.monotonic()

    def prepare(self) -> None:
        """Read what the page shows first, so that it need not wait for it."""
        self.look()
        entries = [entry for entry in list(self.catalog.entries.values()) if not entry.parent]
        entries.sort(key=lambda entry: (entry.row["state"] == "running", entry.row["written"]), reverse=True)
        self.curves.prefetch(entries[:FIRST_RUNS])

    def runs(self, server: str, since: int) -> dict[str, Any]:
        """Rows of the table that changed since a version of the catalog; all of them for another server's."""
        self.look()
        since = since if server == self.id else -1
        entries = list(self.catalog.entries.values())
        rows = []
        for entry in entries:
            asked = self.control.state(entry)
            if asked != self._asked.get(entry.name, {}):
                self._asked[entry.name] = asked
                self.catalog.touch(entry)
            if entry.version > since:
                rows.append({**entry.row, **asked})
        found: dict[str, Any] = {"server": self.id, "version": self.catalog.version, "rows": rows}
        if self.catalog.names_version > since:
            found["names"] = [entry.name for entry in entries]
        return {**found, "machine": self.machine.use(), "root": str(self.catalog.root), "now": time.time()}


def panels_of(desk: Desk, body: dict[str, Any]) -> dict[str, Any]:
    """The curves that a page asks for."""
    style = build(Style, {name: body[name] for name in ("x", "statistic", "band", "smooth") if name in body})
    names = body.get("runs") or []
    have = body.get("have") or {}
    if not isinstance(names, list) or not isinstance(have, dict):
        raise ConfigError("runs is a list of names, have a mapping of curves to digests")
    entries = [entry for name in names if (entry := desk.catalog.entries.get(str(name))) is not None]
    metric = str(body.get("metric") or "episode/return")
    return desk.curves.panels(entries, Query(metric, style, have))


def make_app(
    root: Path, token: str, cookie: str = "whorl", everywhere: bool = False, trust: Sequence[str] = ()
) -> tuple[App, Desk]:
    """The web application for a folder of runs, and what it answers from."""
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise missing_extra("starlette", "serve") from None
    plotly = assets.plotly_script()
    desk = Desk(root, trust)

    def home(request: Request) -> Response:
        head = (
            f'<meta name="whorl-token" content="{assets.escaped(token)}">'
            '<link rel="stylesheet" href="static/page.css">'
            '<link rel="preload" href="static/plotly.js" as="script">'  # page.js runs it when it has drawn
        )
        scripts = '<script src="static/page.js" defer></script>'
        return HTMLResponse(assets.page(head, scripts, f"{desk.catalog.root.name} · Whorl"))

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.js":
            return FileResponse(
                plotly, media_type=assets.TYPES[".js"], headers={"cache-control": "max-age=86400"}
            )
        if name not in ("page.css", "page.js"):
            return JSONResponse({"error": "there is no such file"}, 404)
        return Response(assets.text_of(name), media_type=assets.TYPES[Path(name).suffix])

    def runs(request: Request) -> Response:
        since = request.query_params.get("since", "-1")
        known = int(since) if since.isdecimal() else -1
        return JSONResponse(desk.runs(request.query_params.get("server", ""), known))

    def run(request: Request) -> Response:
        entry = desk.catalog.get(request.query_params.get("name", ""))
        found = details(entry)
        found["row"] = {**entry.row, **desk.control.state(entry)}
        return JSONResponse(found)

    def file(request: Request) -> Response:
        entry = desk.catalog.get(request.query_params.get("run", ""))
        path, kind = media_file(entry, request.query_params.get("path", ""))
        return FileResponse(path, media_type=kind)

    def picture(request: Request) -> Response:
        entry = desk.catalog.get(request.query_params.get("run", ""))
        return Response(map_picture(entry, request.query_params.get("name", "")), media_type="image/png")

    def curves(body: dict[str, Any]) -> Any:
        return panels_of(desk, body)

    def stop(body: dict[str, Any]) -> Any:
        desk.control.stop(str(body.get("name", "")))
        return {"state": "stopping"}

    def resume(body: dict[str, Any]) -> Any:
        steps = body.get("total_timesteps") or 0
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ConfigError(f"total_timesteps is {steps!r}, but must be a whole number of steps")
        return {"state": "starting", "pid": desk.control.resume(str(body.get("name", "")), steps)}

    def reads(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            try:
                return answer(request)
            except WhorlError as error:
                return JSONResponse({"error": error.message}, 404)

        return endpoint

    def takes(answer: Callable[[dict[str, Any]], Any]) -> Any:
        """An endpoint that is called with a JSON object."""
        from starlette.concurrency import run_in_threadpool

        async def endpoint(request: Request) -> Response:
            data = b""
            async for part in request.stream():
                data += part
                if len(data) > BODY_BYTES:
                    return JSONResponse({"error": "the request is too large"}, 413)
            try:
                body = json.loads(data)
                if not isinstance(body, dict):
                    raise ValueError
            except ValueError:
                return JSONResponse({"error": "the request is not a JSON object"}, 400)
            try:
                return JSONResponse(await run_in_threadpool(answer, body))
            except WhorlError as error:
                return JSONResponse({"error": error.message}, 409)

        return endpoint

    routes = [
        Route("/", home),
        Route("/static/{name}", static),
        Route("/api/runs", runs),
        Route("/api/run", reads(run)),
        Route("/file", reads(file)),
        Route("/map", reads(picture)),
        *(Route(f"/api/{f.__name__}", takes(f), methods=["POST"]) for f in (curves, stop, resume)),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return Guard(app, token, cookie, everywhere), desk


def serve(root: Path, host: str, port: int, say: Callable[[str], None], trust: Sequence[str] = ()) -> None:
    """Serve a folder of runs until Ctrl-C; `say` is called with the address.

    Args:
        trust: code of the user's own that runs may load when they are resumed.
    """
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("uvicorn", "serve") from None
    listener = listen(host, port)
    port = listener.getsockname()[1]
    token = new_token()
    app, desk = make_app(
        root, token, f"whorl-{port}", everywhere=host not in (HOST, "localhost", "::1"), trust=trust
    )
    threading.Thread(target=desk.prepare, daemon=True).start()
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port}/?token={token}")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket at this port, or at the next one that is free; 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(port + NEXT_PORTS, 65535)
    for number in range(port, last + 1) if port else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((host, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise WhorlError(f"{host} is not an address of this machine; leave out --host") from None
            if error.errno == errno.EACCES:
                raise WhorlError(
                    f"port {number} can't be used: {reason(error)}; choose one above 1023"
                ) from None
            continue
        return listener
    raise WhorlError(f"ports {port} to {last} are in use; choose another one with --port")
