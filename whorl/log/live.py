"""Frames of an episode while it is played: in a window, or on a page of this machine where there is no display."""

import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from PIL import Image

from whorl.core.errors import WhorlError, install_command
from whorl.core.hardware import has_display
from whorl.log.video import Frame

HOST = "127.0.0.1"
"""the page is served to this machine only"""
FIRST_VIEWER = 10.0
"""seconds that the first frame waits for the page to be opened"""
LAST_FRAME = 2.0
"""seconds that the end waits for open pages to receive the last frame"""
INVISIBLE = ("offscreen", "dummy", "evdev")
"""drivers of SDL that show nothing, which it takes where it finds no display"""
BOUNDARY = "frame"
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>body {{ margin: 0; background: #eceff1; display: grid; min-height: 100vh; place-items: center }}
img {{ max-width: 100vw; max-height: 100vh }}</style>
<img src="/frames" alt="{title}">
"""


class Screen(Protocol):
    """Shows frames one after another."""

    def show(self, frame: Frame) -> bool:
        """Show a frame; false once the user has closed the screen."""

    def close(self) -> None:
        """Free it; safe to call twice."""


def open_screen(title: str, say: Callable[[str], None]) -> Screen:
    """A window where there is a display and pygame, else a page, whose address `say` is called with."""
    hint = ""
    if has_display():
        try:
            return Window(title)
        except ImportError:
            hint = f" ({install_command('render')} shows a window instead)"
        except WhorlError as error:
            hint = f" ({error})"
    page = Page(title)
    say(f"watch {title} at {page.address}{hint}")
    return page


class Window:
    """A window of pygame; it may be closed by mouse, Escape or q."""

    def __init__(self, title: str) -> None:
        import pygame

        self._pygame: Any = pygame
        try:
            with _runtime_folder():
                pygame.display.init()
            pygame.display.set_caption(title)
        except pygame.error as error:
            raise WhorlError(f"no window can be opened: {error}") from None
        if pygame.display.get_driver() in INVISIBLE and not os.environ.get("SDL_VIDEODRIVER"):
            pygame.display.quit()
            raise WhorlError("no window can be opened: the display that DISPLAY names does not answer")
        self._surface: Any = None
        self._open = True

    def show(self, frame: Frame) -> bool:
        pygame = self._pygame
        if not self._open:
            return False
        size = frame.shape[1], frame.shape[0]
        if self._surface is None or self._surface.get_size() != size:
            self._surface = pygame.display.set_mode(size)
        self._surface.blit(pygame.image.frombuffer(frame.tobytes(), size, "RGB"), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            quits = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
            if event.type == pygame.QUIT or quits:
                self.close()
        return self._open

    def close(self) -> None:
        if self._open:
            self._open = False
            self._pygame.display.quit()


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Without XDG_RUNTIME_DIR, SDL prints an error line about it even where it then uses X11."""
    if os.environ.get("XDG_RUNTIME_DIR"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]


class Page:
    """A page at a free port of the loopback interface, with the frames as a stream of JPEG images."""

    def __init__(self, title: str, wait: float = FIRST_VIEWER) -> None:
        self.title, self._wait = title, wait
        self._changed = threading.Condition()
        self._image = b""
        self._number = 0
        self._viewers = 0
        self._over = False
        self._server = ThreadingHTTPServer((HOST, 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = f"http://{HOST}:{self.port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def show(self, frame: Frame) -> bool:
        with self._changed:
            if self._wait and not self._viewers:
                self._changed.wait_for(lambda: self._viewers > 0, self._wait)
            self._wait = 0.0
        image = _jpeg(frame)
        with self._changed:
            self._image, self._number = image, self._number + 1
            self._changed.notify_all()
        return True

    def close(self) -> None:
        with self._changed:
            if self._over:
                return
            self._over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._viewers == 0, LAST_FRAME)
        self._server.shutdown()
        self._server.server_close()

    def stream(self, send: Callable[[bytes], None]) -> None:
        """Send frames as they come, until the last one was sent; a slow reader misses some."""
        with self._changed:
            self._viewers += 1
            self._changed.notify_all()
        try:
            seen = 0
            while True:
                with self._changed:
                    while not self._over and self._number == seen:
                        self._changed.wait()
                    image, number, over = self._image, self._number, self._over
                if number > seen:
                    send(image)
                    seen = number
                elif over:
                    return
        finally:
            with self._changed:
                self._viewers -= 1
                self._changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, page: Page, *args: Any) -> None:
        self.page = page
        super().__init__(*args)

    def do_GET(self) -> None:
        page = self.page
        # A page of another site may have made its name lead here. The port is another one behind a tunnel (ssh -L).
        if str(self.headers.get("Host")).partition(":")[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            text = PAGE.format(title=_escaped(page.title)).encode()
            self._start("text/html; charset=utf-8", ("Content-Length", str(len(text))))
            self.wfile.write(text)
        elif self.path == "/frames":
            self._start(f"multipart/x-mixed-replace; boundary={BOUNDARY}")
            try:
                page.stream(self._send)
            except OSError:  # the browser has left
                self.close_connection = True
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _start(self, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (("Content-Type", kind), ("Cache-Control", "no-store"), *headers):
            self.send_header(name, value)
        self.end_headers()

    def _send(self, image: bytes) -> None:
        head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(image)}\r\n\r\n"
        self.wfile.write(head.encode() + image + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _jpeg(frame: Frame) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def _escaped(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in " -_./:" else " " for letter in text)
