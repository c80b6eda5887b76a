"""The server: the static page, answers as JSON, and media by ranges. It only reads.

It answers this machine only. The Host header must be a name of the loopback, so a web site that
rebinds its own name to 127.0.0.1 fails, and each request must hold the token: as a cookie that no
other site can send, or in the link that opens the page. Responses allow no script but our own
files, no text that becomes markup (trusted types), no frame and no request to anywhere else.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardmill.errors import ConfigError, NotFound, ShardmillError
from shardmill.storage.text import dump_line
from shardmill.view.answers import STATIC_TYPES, answer, content, static_files
from shardmill.view.context import Context, Refused

if TYPE_CHECKING:  # loaded with the first medium
    from shardmill.view.media import MediumBytes

# A medium that is opened by itself, not as part of the page, may run nothing at all.
MEDIA_POLICY = "default-src 'none'; sandbox"
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
CHUNK = 1 << 20
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
METHODS = frozenset({"GET", "HEAD"})
CONTENT_POLICY = "; ".join(
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
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def make_app(context: Context, token: str, port: int) -> Starlette:
    """Return the application that shows a context; only requests with the token are answered."""
    pages = static_files()

    def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in pages:
            raise NotFound(f"there is no {name!r}")
        kind = STATIC_TYPES["." + name.rpartition(".")[2]]
        return Response(pages[name], media_type=kind, headers={"cache-control": "no-cache"})

    def ask(request: Request) -> Response:
        return _json(answer(context, request.path_params["name"], dict(request.query_params)))

    def share(request: Request) -> Response:
        return _json({"address": f"{request.base_url}?token={token}"})

    def media(request: Request) -> Response:
        found = content(context, "media", dict(request.query_params))
        if isinstance(found, bytes):
            return Response(found, media_type="image/jpeg", headers=_max_age(600))
        return _ranged(found, request.headers.get("range", ""))

    def decoded(request: Request) -> Response:
        found = content(context, "decoded", dict(request.query_params))
        return Response(found, media_type="image/png", headers=_max_age(60))

    routes: dict[str, Callable[[Request], Response]] = {
        "/": page,
        "/static/{name}": page,
        "/api/share": share,
        "/api/{name}": ask,
        "/media": media,
        "/decoded": decoded,
    }
    app = Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()],
        middleware=[Middleware(RequestGuard, token=token, cookie=f"shardmill-{port}")],
        exception_handlers={ShardmillError: _refuse, OSError: _refuse, HTTPException: _no_page},
    )
    # A path with another slash is not found: a redirect would repeat bytes of the request.
    app.router.redirect_slashes = False
    return app


def bind(port: int | None, default: int) -> socket.socket:
    """Return a socket on the loopback: at `port`, else at `default` if it is free, else at any.

    Raises `ConfigError` if the port that was asked for is in use.
    """
    tried = [port] if port is not None else [default, 0]
    for number in tried:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A port whose last server has just ended would be refused for a minute.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", number))
            bound.listen()  # whoever reads the address may connect before the server is ready
            return bound
        except OSError:
            bound.close()
    raise ConfigError(f"port {port} is in use: choose another --port, or none")


def serve(app: Starlette, bound: socket.socket) -> None:
    """Answer requests until a signal."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=2,  # a video that is playing must not keep Ctrl-C waiting
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is how a page ends
        uvicorn.Server(config).run(sockets=[bound])


def _ranged(place: MediumBytes, wanted: str) -> Response:
    kind = place.media_type
    headers = {**_max_age(60), "accept-ranges": "bytes", "content-security-policy": MEDIA_POLICY}
    if not kind.startswith(("image/", "video/", "audio/")):
        headers["content-disposition"] = "attachment"
    span = _span(wanted, place.size)
    if span is None:
        return Response(None, 416, {**headers, "content-range": f"bytes */{place.size}"})
    start, end = span
    headers["content-length"] = str(end - start)
    status = 200
    if wanted:
        status, headers["content-range"] = 206, f"bytes {start}-{end - 1}/{place.size}"
    return StreamingResponse(_chunks(place, start, end), status, headers, media_type=kind)


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return (start, end) of a Range header, all bytes without one; None if it cannot be met."""
    if not wanted:
        return 0, size
    found = RANGE.fullmatch(wanted.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start, last = int(found[1]), int(found[2] or size - 1)
    return (start, min(last + 1, size)) if start <= last and start < size else None


def _chunks(place: MediumBytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, CHUNK):
        yield place.read(at, min(CHUNK, end - at))


def _json(value: object, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(dump_line(value), status, headers, media_type="application/json")


def _max_age(seconds: int) -> dict[str, str]:
    return {"cache-control": f"private, max-age={seconds}"}


def _refuse(request: Request, error: Exception) -> Response:
    codes = {NotFound: 404, Refused: 403, ConfigError: 400, ShardmillError: 422}
    status = next((code for kind, code in codes.items() if isinstance(error, kind)), 500)
    return _json({"error": str(error)}, status)


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


class RequestGuard:
    """ASGI middleware: passes reads from the loopback that hold the token, refuses the rest."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a refusal, or pass the request on; either way add the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        in_link = self._matches(parse_qs(scope["query_string"].decode("latin-1")).get("token", []))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if in_link:
                    cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append("set-cookie", cookie)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope), in_link)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers, in_link: bool) -> Response | None:
        if method not in METHODS:
            return PlainTextResponse("this page only reads\n", 405)
        host = headers.get("host", "")
        name, _, port = host.rpartition(":")
        if (name if port.isdigit() else host).lower() not in LOOPBACK:
            return PlainTextResponse("ask for 127.0.0.1 or localhost\n", 421)
        if in_link or self._matches(_cookies(headers, self._cookie)):
            return None
        return PlainTextResponse(
            "this page needs its token: open the address that `shardmill view` printed\n", 403
        )

    def _matches(self, given: Iterable[str]) -> bool:
        # Compared in constant time, so that timing does not tell how much of a guess was right.
        token = self._token.encode()
        return any(secrets.compare_digest(text.encode(), token) for text in given)


def _cookies(headers: Headers, name: str) -> list[str]:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return []
    return [] if found is None else [found.value]
