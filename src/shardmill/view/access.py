"""What the page may read, and who may ask for it.

A request never holds a path: it names a folder, a unit or a medium, and these are looked up. What
is left are links on disk and tars that an index names. A folder with a link that leads outside is
not opened at all, and a tar outside is not read, unless the user allowed its place.

The server answers this machine only. The Host header must be a name of the loopback, so a web site
that rebinds its own name to 127.0.0.1 fails, and each request must hold the token: as a cookie that
no other site can send, or in the link that opens the page. Responses allow no script but our own
files, no text that becomes markup (trusted types), no frame and no request to anywhere else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardmill.errors import ShardmillError
from shardmill.shards.ledger import FOLDERS
from shardmill.storage.path import UrlPath, is_remote

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


class Refused(ShardmillError):
    """Something lies outside of what the page may read."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The folders (resolved) and urls that may be read, with everything below them."""

    folders: tuple[Path, ...]
    urls: tuple[str, ...] = ()

    @classmethod
    def below(cls, root: Path, allowed: tuple[str, ...] = ()) -> AccessPolicy:
        """Return the policy for a root folder and the other places that the user allowed."""
        places = [str(root), *allowed]
        urls = tuple(place.rstrip("/") + "/" for place in places if is_remote(place))
        folders = tuple(Path(place).resolve() for place in places if not is_remote(place))
        return cls(folders, urls)

    def allows(self, path: Path) -> bool:
        """Whether a path may be read once all links are followed."""
        if isinstance(path, UrlPath):
            return self._allows_url(f"{path}/")
        resolved = path.resolve()
        return any(resolved.is_relative_to(folder) for folder in self.folders)

    def check_url(self, url: str) -> None:
        """Raise `Refused` unless a file or url that our data names may be read."""
        if is_remote(url):
            allowed, place = self._allows_url(url), url.rpartition("/")[0]
        else:
            path = Path(url.removeprefix("file://"))
            allowed, place = self.allows(path), str(path.parent)
        if not allowed:
            raise Refused(f"{url} is outside of the folder: start with --allow {place} to read it")

    def check_links(self, folder: Path) -> None:
        """Raise `Refused` if a stage folder holds a link that leads outside."""
        if isinstance(folder, UrlPath):  # a store has no links
            return
        for path in _links(folder):
            if not self.allows(path):
                raise Refused(
                    f"{path} is a link to {path.readlink()}, outside of the folder: start with "
                    f"--allow {path.resolve().parent} to follow it"
                )

    def _allows_url(self, url: str) -> bool:
        return ".." not in url and any(url.startswith(place) for place in self.urls)


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in a stage folder and in the folders of its ledger, one listing each."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        if place != folder and place.is_symlink():
            continue  # it was yielded with its parent
        try:
            with os.scandir(place) as entries:
                yield from (Path(entry.path) for entry in entries if entry.is_symlink())
        except OSError:
            continue


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
