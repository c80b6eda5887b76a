"""What every request must pass, and what every response carries.

The page is for this machine only: the name it is asked by must be a name of the loopback (a web
site that rebinds its own name to 127.0.0.1 fails here), and each request must hold the token, as a
cookie that no other site can send, or in the link that opens the page. Nothing can be written.

Responses forbid everything that is not ours: no script but our files, no text that becomes markup
(trusted types), no frame, no request to anywhere else.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
METHODS = frozenset({"GET", "HEAD"})
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "media-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Locks:
    """Lets pass what reads, asks by a name of the loopback, and holds the token."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a refusal, or pass on and add the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        linked = self._fits(parse_qs(scope["query_string"].decode("latin-1")).get("token", []))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    added.setdefault(name, value)
                if linked:
                    added.append("set-cookie", self._set_cookie())
            await send(message)

        refusal = self._refusal(scope, headers, linked)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers, linked: bool) -> Response | None:
        if scope["method"] not in METHODS:
            return PlainTextResponse("this page only reads\n", 405)
        host = headers.get("host", "").rpartition(":")
        name = host[0] if host[2].isdigit() else headers.get("host", "")
        if name.lower() not in LOOPBACK:
            return PlainTextResponse("ask for 127.0.0.1 or localhost\n", 421)
        if linked or self._fits(_cookies(headers, self._cookie)):
            return None
        return PlainTextResponse(
            "this page needs its token: open the address that `shardmill view` printed\n", 403
        )

    def _fits(self, given: Iterable[str]) -> bool:
        wanted = self._token.encode()
        return any(secrets.compare_digest(text.encode(), wanted) for text in given)

    def _set_cookie(self) -> str:
        return f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"


def _cookies(headers: Headers, name: str) -> list[str]:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return []
    return [] if found is None else [found.value]
