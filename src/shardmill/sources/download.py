"""Media from the web: time-outs, retries, several at a time, and a reason for what goes wrong.

    reason               what happened
    http 404, http 403   the server says so; it is not asked again
    http 503, http 429   it still said so after several tries
    time-out             it did not answer, or was too slow
    no connection        no such host, a refused or broken connection, a bad certificate
    address not allowed  the host, or one that it redirects to, is not public (see `allowed`)
    too large            it says, or sends, more than the limit

Answers that may differ later (5xx, 429, time-outs, connections) are asked for again after a pause
that doubles and is jittered, or as long as the server asks for. `TRANSIENT` are the reasons that a
later run may well not meet.

`Downloads` fetches the media of the rows that come next. They are announced when a row is read, and
taken when it is written, in the order of the rows; how far to look ahead is for the caller to
decide, by `num_bytes`: what has arrived and waits. Hosts are spread over lanes, and a lane has as
many threads as one host may have. So no host ever gets more, and a slow one holds up only those few
that share its lane.
"""

from __future__ import annotations

import http.client
import io
import os
import random
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from zlib import crc32

from shardmill import __version__
from shardmill.errors import ConfigError, SampleError
from shardmill.sources.allowed import check_address, check_proxied
from shardmill.storage.path import plain_url

TRANSIENT = ("http 408", "http 425", "http 429", "http 5", "time-out", "no connection")
CHUNK_BYTES = 1 << 18
MAX_DETAIL = 300  # of what a server says
MAX_ADDRESSES = 4  # that are tried: a name may have thousands, of which none answers
NUM_LANES = 8  # so that threads are bounded, however many hosts there are
PER_HOST = 8
PER_HOST_VARIABLE = "SHARDMILL_PER_HOST"
# With "%", so that what is escaped already is not escaped again.
SAFE = "/%:=&?~#+!$,;'@()*[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a download waits: for any answer, for all of it, between tries, how many tries."""

    timeout_s: float = 20.0
    total_s: float = 300.0
    num_tries: int = 4
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Trouble(Exception):
    """Why a try failed, and how long the server asks to wait."""

    reason: str
    detail: str
    passes: bool
    pause_s: float = 0.0


def download(
    url: str,
    max_bytes: int,
    patience: Patience,
    hosts: frozenset[str] = frozenset(),
    sleep: Callable[[float], None] = time.sleep,
) -> bytes:
    """Return the content of a url, or raise a `SampleError` that names what went wrong.

    `hosts` ("name:port") may have addresses that are not public.
    """
    for number in range(1, patience.num_tries + 1):
        try:
            return _try(url, max_bytes, patience, hosts)
        except _Trouble as trouble:
            if not trouble.passes or number == patience.num_tries:
                detail = f"{plain_url(url)}: {trouble.detail}, after {number} tries"
                raise SampleError(trouble.reason, detail) from None
            # Jittered, so that workers which failed together do not come back together.
            pause_s = random.uniform(0.5, 1.0) * patience.first_pause_s * 2 ** (number - 1)
            sleep(min(max(pause_s, trouble.pause_s), patience.longest_pause_s))
    raise AssertionError("the last try returns or raises")


def is_transient(reason: str) -> bool:
    """Say whether a reject of this reason may be none when it is tried again."""
    return reason.startswith(TRANSIENT)


def _try(url: str, max_bytes: int, patience: Patience, hosts: frozenset[str]) -> bytes:
    deadline_s = time.monotonic() + patience.total_s
    request = urllib.request.Request(_quoted(url), headers=HEADERS)
    try:
        opener = _opener(hosts, deadline_s)
        with opener.open(request, timeout=patience.timeout_s) as answer:
            return _read(answer, max_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refusal(error) from None
    except TimeoutError as error:
        raise _Trouble("time-out", str(error) or "no answer in time", passes=True) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise _connection_trouble(error) from None


def _read(answer: Any, max_bytes: int) -> bytes:
    said = _digits(answer.headers.get("Content-Length"))
    if said and int(said) > max_bytes:
        raise _Trouble("too large", f"{said} bytes, the limit is {max_bytes}", passes=False)
    chunks, num_bytes = [], 0
    while chunk := answer.read1(CHUNK_BYTES):
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _Trouble("too large", f"more than the limit of {max_bytes}", passes=False)
    if said and num_bytes != int(said):
        raise http.client.IncompleteRead(b"", int(said) - num_bytes)
    return b"".join(chunks)


def _refusal(error: urllib.error.HTTPError) -> _Trouble:
    reason = f"http {error.code}"
    wait = _digits(error.headers.get("Retry-After") if error.headers else None)
    detail = f"{error.reason!s:.{MAX_DETAIL}}"
    return _Trouble(reason, detail, passes=is_transient(reason), pause_s=float(wait or 0))


def _digits(value: str | None) -> str:
    """Return the header of a number, "" for anything else; `isdigit` also means a superscript."""
    return value if value and value.isascii() and value.isdigit() else ""


def _connection_trouble(error: Exception) -> _Trouble:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return _Trouble("time-out", "no answer in time", passes=True)
    # A name that does not exist, or a certificate that is wrong, will be so in a second as well.
    unknown = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    lasting = unknown or isinstance(cause, ssl.SSLCertVerificationError | ValueError)
    detail = f"{type(cause).__name__}: {cause}"
    return _Trouble("no connection", f"{detail:.{MAX_DETAIL}}", passes=not lasting)


def _quoted(url: str) -> str:
    """Return the url as it may stand in a request: spaces and letters beyond ASCII escaped."""
    parts = urlsplit(url)
    host = parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
    path, query = (quote(part, safe=SAFE) for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, host, path, query, ""))


def _connect(hosts: frozenset[str], address: tuple[str, int], *options: Any) -> socket.socket:
    """Connect as `socket.create_connection` does, to an address that was judged.

    The name is looked up once: a second answer could be another.
    """
    host, port = address
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    numbers = [str(place[0]) for *_, place in found]
    check_address(host, port, numbers, hosts)
    *others, last = numbers[:MAX_ADDRESSES]
    for number in others:
        with suppress(OSError):
            return socket.create_connection((number, port), *options)
    return socket.create_connection((last, port), *options)


class _Until(io.RawIOBase):
    """What a connection sends until the time is over: heads, sizes of chunks and trailers, too.

    The time-out of a socket begins anew with each byte, so that a server which trickles, or which
    never stops to say that it will go on, could hold us for ever.
    """

    def __init__(self, raw: Any, deadline_s: float) -> None:
        self._raw, self._deadline_s = raw, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._deadline_s:
            raise TimeoutError("too slow: the time was over before all had arrived")
        return self._raw.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._raw.close()
        super().close()


def _answer(deadline_s: float, *options: Any, **more: Any) -> http.client.HTTPResponse:
    answer = http.client.HTTPResponse(*options, **more)
    answer.fp = io.BufferedReader(_Until(answer.fp.detach(), deadline_s))
    return answer


class _Judged(urllib.request.AbstractHTTPHandler):
    """Opens connections by `_connect`, those of redirects too; to a proxy, the user's choice, not.

    Certificates are those of the name: only where the connection leads is decided here.
    """

    def __init__(self, hosts: frozenset[str], deadline_s: float) -> None:
        super().__init__()
        self._hosts, self._deadline_s = hosts, deadline_s

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        is_proxied = req.has_proxy() or req._tunnel_host
        if is_proxied:
            check_proxied(req.full_url, self._hosts)

        def connection(*where: Any, **how: Any) -> Any:
            made = http_class(*where, **how)
            made.response_class = partial(_answer, self._deadline_s)
            if not is_proxied:
                made._create_connection = partial(_connect, self._hosts)
            return made

        return super().do_open(connection, req, **options)


class _Http(_Judged, urllib.request.HTTPHandler):
    pass


class _Https(_Judged, urllib.request.HTTPSHandler):
    pass


def _opener(hosts: frozenset[str], deadline_s: float) -> urllib.request.OpenerDirector:
    # Not `build_opener`: a redirect must not lead to ftp:// or file://.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(hosts, deadline_s),
        _Https(hosts, deadline_s),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


HEADERS = {"User-Agent": f"shardmill/{__version__}", "Accept": "*/*"}


def downloads_a_host() -> int:
    """Return how many downloads one host may get at a time from this process."""
    text = os.environ.get(PER_HOST_VARIABLE, str(PER_HOST))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{PER_HOST_VARIABLE} must be a number of at least 1, got {text!r}")
    return int(text)


class Downloads:
    """Fetches urls in threads; at most `per_host` at a time from one host."""

    def __init__(self, fetch: Callable[[str], bytes], per_host: int = PER_HOST) -> None:
        self._fetch, self._per_host = fetch, per_host
        self._lanes: dict[int, ThreadPoolExecutor] = {}
        self._coming: dict[str, Future[bytes]] = {}
        self._lock = Lock()
        self.num_bytes = 0

    def announce(self, url: str) -> None:
        """Begin to fetch a url, as soon as its host allows."""
        if url not in self._coming:
            self._coming[url] = self._lane(url).submit(self._arrive, url)

    def take(self, url: str) -> bytes:
        """Return the content of a url or raise what went wrong; if nobody announced it, get it."""
        coming = self._coming.pop(url, None)
        if coming is None:
            return self._fetch(url)
        content = coming.result()
        self._count(-len(content))
        return content

    def close(self) -> None:
        """Begin no more downloads, and wait for those that have begun."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes.values():
            lane.shutdown(wait=True)
        self._lanes.clear()
        self._coming.clear()

    def _arrive(self, url: str) -> bytes:
        content = self._fetch(url)
        self._count(len(content))
        return content

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes

    def _lane(self, url: str) -> ThreadPoolExecutor:
        number = crc32(urlsplit(url).netloc.encode()) % NUM_LANES
        if number not in self._lanes:
            self._lanes[number] = ThreadPoolExecutor(self._per_host, f"download-{number}")
        return self._lanes[number]
