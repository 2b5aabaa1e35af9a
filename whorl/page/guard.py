"""Access control of the server: who may request what.

The page is for the person who started it: the address it prints holds a token, which the browser keeps as a cookie.
Pages of other sites are refused even if their name leads to this machine (DNS rebinding): `Host` must be a name of the
loopback interface, `Origin` this server's own, and whatever changes something needs the token as a header, which no
other page can know.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADER = "x-whorl-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""content security policy: nothing is loaded from elsewhere; the plotting library sets styles of its own"""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Passes on requests of this server's own pages; adds headers to every answer.

    Args:
        everywhere: the server listens on other interfaces too, where it may be called by an address or the host's name.
    """

    def __init__(self, app: App, token: str, cookie: str = "whorl", everywhere: bool = False) -> None:
        self.app, self.token, self.cookie, self.everywhere = app, token, cookie, everywhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        refusal = self._refusal(scope, headers)
        if refusal:
            await _refuse(send, refusal)
            return
        asked = self._same(_in_query(scope))

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                found = list(message.get("headers", ()))
                names = {name.lower() for name, _ in found}
                added = dict(HEADERS)
                if b"cache-control" not in names:
                    added["cache-control"] = "no-store"
                if asked:
                    added["set-cookie"] = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                found += [(name.encode(), value.encode()) for name, value in added.items()]
                message["headers"] = found
            await send(message)

        await self.app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Why a request is refused; empty: it is not."""
        host = headers.get("host", "")
        if not self._known_host(host):
            return "this address is not one of the server's own; open the one that whorl serve printed"
        # Behind a tunnel (ssh -L) the port is another one, so the origin is compared with the address asked for.
        if "origin" in headers and headers["origin"] != f"http://{host}":
            return "requests of other sites are refused"
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return "requests of other sites are refused"
        given = (_in_query(scope), self._in_cookie(headers), headers.get(HEADER, ""))
        if not any(self._same(token) for token in given):
            return "the token is missing or wrong; open the address that whorl serve printed"
        if scope["method"] not in ("GET", "HEAD"):
            if not self._same(headers.get(HEADER, "")):
                return f"a request that changes something needs the token in the header {HEADER}"
            if "origin" not in headers:
                return "a request that changes something must come from the page itself"
        return ""

    def _known_host(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in LOOPBACK:
            return True
        # A name that leads here can be anybody's, an address can't.
        return self.everywhere and (name == socket.gethostname().lower() or _is_address(name))

    def _in_cookie(self, headers: Mapping[str, str]) -> str:
        # By hand: other programs of this machine share cookies, and SimpleCookie stops at what it can't read.
        pairs = (part.partition("=") for part in headers.get("cookie", "").split(";"))
        return next((value.strip() for name, _, value in pairs if name.strip() == self.cookie), "")

    def _same(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


def new_token() -> str:
    """A token that can't be guessed."""
    return secrets.token_urlsafe(24)


def _in_query(scope: Scope) -> str:
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(send: Send, sentence: str) -> None:
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    await send(
        {
            "type": "http.response.start",
            "status": 403,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": f"whorl: {sentence}\n".encode()})
