"""Who may read the pages, and what a browser may do with them.

A page of another origin must learn nothing, even if its name leads to this machine (DNS rebinding), and a record must
never become a script: nothing inline is run, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN: Final = "token"
"""The parameter of the first address, which a cookie replaces."""

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_READS: Final = ("GET", "HEAD")
_BEARER: Final = "Bearer "
_TOKEN_BYTES: Final = 24


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Guard:
    """A layer around the pages that answers itself what must not reach them.

    app    the pages
    host   the address that was asked for
    port   the port: cookies know no ports, so that each has a cookie of its own
    token  what a reader has to show; None where everybody who reaches the port may read
    """

    app: ASGIApp
    host: str
    port: int
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(scope) or self.app
        await answer(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that must not reach the pages."""
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            return PlainTextResponse("This server does not have that name: use its address.\n", 421)
        if scope["method"] not in _READS:
            return PlainTextResponse(
                "These pages only show. Nothing is changed here.\n", 405, {"allow": "GET, HEAD"}
            )
        return None if self.token is None else self._token_answer(scope, headers, self.token)

    def _is_ours(self, host: str) -> bool:
        """Tell whether a request was sent to this server on purpose. A name that somebody else has made lead here is
        none of ours, while an address is what it is."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        if name in {"localhost", self.host.lower(), socket.gethostname().lower()}:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _token_answer(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        cookie = f"topicfs-{self.port}"
        shown = headers.get("authorization", "")
        if shown.startswith(_BEARER) and _is_same(shown.removeprefix(_BEARER), token):
            return None
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(cookie)
        except CookieError:
            kept = None
        given = parse_qsl(scope["query_string"].decode("latin-1"))
        if any(name == TOKEN and _is_same(value, token) for name, value in given):
            # The address is seen by others, and kept by the browser: the token goes out of it at once.
            rest = urlencode([(name, value) for name, value in given if name != TOKEN])
            path = "/" + scope["path"].lstrip("/")
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(cookie, token, httponly=True, samesite="strict")
            return answer
        if kept is not None and _is_same(kept.value, token):
            return None
        words = "A token is needed: open the address that `topicfs ui` has printed.\n"
        return PlainTextResponse(words, 401, {"www-authenticate": "Bearer"})


def _is_same(given: str, token: str) -> bool:
    """Compare in a time that tells nothing of the token."""
    return hmac.compare_digest(given.encode(), token.encode())
