"""The server: a page of static files, answers as JSON, and media by ranges. It only reads.

Images decoded from their codes beside the originals, for who started the page with weights.

What every request must pass, and what every response carries.

The page is for this machine only: the name it is asked by must be a name of the loopback (a web
site that rebinds its own name to 127.0.0.1 fails here), and each request must hold the token, as a
cookie that no other site can send, or in the link that opens the page. Nothing can be written.

Responses forbid everything that is not ours: no script but our files, no text that becomes markup
(trusted types), no frame, no request to anywhere else.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
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

from shardmill.errors import ConfigError, ShardmillError
from shardmill.stages.codereport import reconstruct
from shardmill.storage.text import dump_line
from shardmill.view.access import Refused
from shardmill.view.context import Desk
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.media import (
    HEAD_BYTES,
    UNKNOWN,
    Place,
    as_png,
    find_medium,
    frame,
    known_width,
    media_type,
    small_image,
)
from shardmill.view.queries import answer
from shardmill.view.query import Query


def decode_codes(desk: Desk, folder: Folder, key: str, medium: str) -> bytes:
    """Return a PNG: the image as it was encoded on the left, as its codes decode to it right."""
    if not desk.decodes:
        raise ConfigError("start with --reconstruct to load the weights and decode codes")

    def make() -> bytes:
        for image in reconstruct(folder.path, [key]):
            if image.medium == medium:
                return as_png(image.side_by_side())
        raise NotHere(f"sample {key!r} has no codes of {medium!r}")

    return desk.keep(("decoded", str(folder.path), key, medium), make)


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


STATIC_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A file that is opened by itself, not as part of the page, may do nothing at all.
MEDIA_POLICY = "default-src 'none'; sandbox"
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
CHUNK = 1 << 20


def make_app(desk: Desk, token: str, port: int) -> Starlette:
    """Return the application over a desk."""
    pages = static_files()

    def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in pages:
            raise NotHere(f"there is no {name!r}")
        kind = STATIC_TYPES["." + name.rpartition(".")[2]]
        return Response(pages[name], media_type=kind, headers={"cache-control": "no-cache"})

    def ask(request: Request) -> Response:
        return _json(answer(desk, request.path_params["name"], dict(request.query_params)))

    def share(request: Request) -> Response:
        return _json({"address": f"{request.base_url}?token={token}"})

    def media(request: Request) -> Response:
        return _media(desk, request)

    def decoded(request: Request) -> Response:
        query = Query(dict(request.query_params))
        folder = desk.library.folder(query.text("id"), "codes")
        content = decode_codes(desk, folder, query.text("key"), query.text("medium"))
        return Response(content, media_type="image/png", headers=_kept(60))

    routes: dict[str, Callable[[Request], Response]] = {
        "/": page,
        "/static/{name}": page,
        "/api/share": share,
        "/api/{name}": ask,
        "/media": media,
        "/decoded": decoded,
    }
    return Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()],
        middleware=[Middleware(Locks, token=token, cookie=f"shardmill-{port}")],
        exception_handlers={ShardmillError: _refuse, OSError: _refuse, HTTPException: _no_page},
    )


def static_files() -> dict[str, bytes]:
    """Return the files of the page by name."""
    folder = files("shardmill.view") / "static"
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if "." + entry.name.rpartition(".")[2] in STATIC_TYPES
    }


def bind(port: int | None, default: int) -> socket.socket:
    """Return a socket on the loopback: at a port, or at the default if it is free, or anywhere."""
    tried = [port] if port is not None else [default, 0]
    for number in tried:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
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
        timeout_graceful_shutdown=2,
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is how a page ends
        uvicorn.Server(config).run(sockets=[bound])


def _media(desk: Desk, request: Request) -> Response:
    query = Query(dict(request.query_params))
    folder = desk.library.folder(query.text("id"), "samples", "packs")
    place = find_medium(folder, query.number("n"), query.text("name"))
    width = query.number("w", 0, most=4096)
    if "ms" in query.values:
        shot = frame(place, query.number("ms") / 1000, known_width(width or 320))
        if shot is None:
            raise NotHere("this frame cannot be shown: is shardmill[video] installed?")
        return Response(shot, media_type="image/jpeg", headers=_kept(600))
    if width:
        small = small_image(place, known_width(width))
        if small is not None:
            return Response(small, media_type="image/jpeg", headers=_kept(600))
    return _ranged(place, request.headers.get("range", ""))


def _ranged(place: Place, wanted: str) -> Response:
    kind = media_type(place.read(0, min(HEAD_BYTES, place.size)))
    headers = {**_kept(60), "accept-ranges": "bytes", "content-security-policy": MEDIA_POLICY}
    if kind == UNKNOWN:
        headers["content-disposition"] = "attachment"
    span = _span(wanted, place.size)
    if span is None:
        return Response(None, 416, {**headers, "content-range": f"bytes */{place.size}"})
    start, end = span
    headers["content-length"] = str(end - start)
    status = 200
    if wanted:
        status, headers["content-range"] = 206, f"bytes {start}-{end - 1}/{place.size}"
    return StreamingResponse(_pieces(place, start, end), status, headers, media_type=kind)


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return the bytes of a range header, all without one; None if there are none of them."""
    if not wanted:
        return 0, size
    found = RANGE.fullmatch(wanted.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start, last = int(found[1]), int(found[2] or size - 1)
    return (start, min(last + 1, size)) if start <= last and start < size else None


def _pieces(place: Place, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, CHUNK):
        yield place.read(at, min(CHUNK, end - at))


def _json(value: object, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(dump_line(value), status, headers, media_type="application/json")


def _kept(seconds: int) -> dict[str, str]:
    return {"cache-control": f"private, max-age={seconds}"}


def _refuse(request: Request, error: Exception) -> Response:
    codes = {NotHere: 404, Refused: 403, ConfigError: 400, ShardmillError: 422}
    status = next((code for kind, code in codes.items() if isinstance(error, kind)), 500)
    return _json({"error": str(error)}, status)


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)
