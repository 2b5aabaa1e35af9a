"""Headless Chromium for tests of the page, and the server beside it."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from whorl.page.server import Desk, listen, make_app

TOKEN = "token-of-the-test"


@contextmanager
def served(root: Path) -> Iterator[tuple[str, Desk]]:
    """A folder of runs served in a thread: its address with the token, and what it answers from."""
    import uvicorn

    app, desk = make_app(root, TOKEN)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/?token={TOKEN}", desk
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    sync = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What a page must not do: print errors, or ask another host."""

    def __init__(self, page: Any) -> None:
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("request", self._request)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:")):
            self.wrong.append(f"asked {request.url}")


def until(page: Any, expression: str, seconds: float = 600.0) -> None:
    """Wait until an expression is true; `wait_for_function` would need what the policy of the page forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not true after {seconds} s: {expression}"
        page.wait_for_timeout(20)
