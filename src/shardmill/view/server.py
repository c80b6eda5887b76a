"""The server: the static page, answers as JSON, and media by ranges. It only reads."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shardmill.errors import ConfigError, ShardmillError
from shardmill.storage.text import dump_line
from shardmill.view.access import Refused, RequestGuard
from shardmill.view.answers import answer
from shardmill.view.codes import decode_codes
from shardmill.view.context import Context
from shardmill.view.items import NotHere
from shardmill.view.media import (
    HEAD_BYTES,
    UNKNOWN,
    MediumBytes,
    find_medium,
    frame,
    known_width,
    media_type,
    thumbnail,
)
from shardmill.view.query import Query

STATIC_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A medium that is opened by itself, not as part of the page, may run nothing at all.
MEDIA_POLICY = "default-src 'none'; sandbox"
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
CHUNK = 1 << 20


def make_app(context: Context, token: str, port: int) -> Starlette:
    """Return the application that shows a context; only requests with the token are answered."""
    pages = static_files()

    def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in pages:
            raise NotHere(f"there is no {name!r}")
        kind = STATIC_TYPES["." + name.rpartition(".")[2]]
        return Response(pages[name], media_type=kind, headers={"cache-control": "no-cache"})

    def ask(request: Request) -> Response:
        return _json(answer(context, request.path_params["name"], dict(request.query_params)))

    def share(request: Request) -> Response:
        return _json({"address": f"{request.base_url}?token={token}"})

    def media(request: Request) -> Response:
        return _media(context, request)

    def decoded(request: Request) -> Response:
        query = Query(dict(request.query_params))
        folder = context.folder(query.text("id"), "codes")
        content = decode_codes(context, folder, query.text("key"), query.text("medium"))
        return Response(content, media_type="image/png", headers=_max_age(60))

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
        middleware=[Middleware(RequestGuard, token=token, cookie=f"shardmill-{port}")],
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
    """Return a socket on the loopback: at `port`, else at `default` if it is free, else at any.

    Raises `ConfigError` if the port that was asked for is in use.
    """
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


def _media(context: Context, request: Request) -> Response:
    query = Query(dict(request.query_params))
    folder = context.folder(query.text("id"), "samples", "packs")
    place = find_medium(folder, query.number("n"), query.text("name"))
    width = query.number("w", 0, most=4096)
    if "ms" in query.values:
        shot = frame(place, query.number("ms") / 1000, known_width(width or 320))
        if shot is None:
            raise NotHere("this frame cannot be shown: is shardmill[video] installed?")
        return Response(shot, media_type="image/jpeg", headers=_max_age(600))
    if width:
        small = thumbnail(place, known_width(width))
        if small is not None:
            return Response(small, media_type="image/jpeg", headers=_max_age(600))
    return _ranged(place, request.headers.get("range", ""))


def _ranged(place: MediumBytes, wanted: str) -> Response:
    kind = media_type(place.read(0, min(HEAD_BYTES, place.size)))
    headers = {**_max_age(60), "accept-ranges": "bytes", "content-security-policy": MEDIA_POLICY}
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
    codes = {NotHere: 404, Refused: 403, ConfigError: 400, ShardmillError: 422}
    status = next((code for kind, code in codes.items() if isinstance(error, kind)), 500)
    return _json({"error": str(error)}, status)


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)
