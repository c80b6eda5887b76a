"""Which names are urls, and what their parts are.

A url never carries a credential: those come from the environment, so that no job file, log,
manifest or message can hold one.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from shardmill.errors import ConfigError

STORE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "oss", "tos")
WEB_SCHEMES = ("http", "https")
REMOTE_SCHEMES = (*STORE_SCHEMES, *WEB_SCHEMES)


class UrlParts(NamedTuple):
    """The root that a client is made for ("s3://bucket"), and the path of an object below it."""

    root: str
    path: str

    @property
    def scheme(self) -> str:
        """What stands before "://"."""
        return self.root.partition("://")[0]


def is_remote(url: str) -> bool:
    """Say whether a name is a url of an object store or a web server."""
    if url.startswith("pipe:"):
        raise ConfigError(f"{url!r} would run a command: give the file or url itself")
    scheme, colon, _ = url.partition("://")
    if not colon or scheme == "file":
        return False
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(REMOTE_SCHEMES)
        raise ConfigError(f"unknown scheme in {url!r}: use a path, file:// or one of {known}")
    return True


def split_url(url: str) -> UrlParts:
    """Return root and path of a url; one with a user or password in it is refused."""
    parts = urlsplit(url)
    if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss"):
        raise ConfigError(
            f"{plain_url(url)} was given with a user or password in it: put credentials into the "
            "environment"
        )
    if not parts.netloc:
        raise ConfigError(f"{url!r} names no bucket or host")
    if parts.scheme in WEB_SCHEMES:
        query = f"?{parts.query}" if parts.query else ""
        return UrlParts(f"{parts.scheme}://{parts.netloc}", unquote(parts.path).lstrip("/") + query)
    return UrlParts(f"{parts.scheme}://{parts.netloc}", url.partition("://")[2].partition("/")[2])


def plain_url(url: str) -> str:
    """Return a url as messages and logs may say it: without user, password and query."""
    parts = urlsplit(url)
    if parts.scheme not in REMOTE_SCHEMES:
        return url
    host = parts.netloc.rpartition("@")[2] if parts.scheme in WEB_SCHEMES else parts.netloc
    return f"{parts.scheme}://{host}{parts.path}"
