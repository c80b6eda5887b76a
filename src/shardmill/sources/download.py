"""Media from the web: time-outs, retries, and an answer for everything that can go wrong.

    reason               what happened
    http 404, http 403   the server says so; it is not asked again
    http 503, http 429   it still said so after several tries
    time-out             it did not answer, or was too slow
    no connection        no such host, a refused or broken connection, a bad certificate
    too large            it says, or sends, more than the limit

Answers that may differ later (5xx, 429, time-outs, connections) are asked for again after a pause
that doubles and is jittered, or as long as the server asks for. `TRANSIENT` are the reasons that a
later run may well not meet.
"""

from __future__ import annotations

import http.client
import ipaddress
import random
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from shardmill import __version__
from shardmill.errors import SampleError
from shardmill.remote.url import plain_url

TRANSIENT = ("http 408", "http 425", "http 429", "http 5", "time-out", "no connection")
CHUNK_BYTES = 1 << 18
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
    sleep: Callable[[float], None] = time.sleep,
) -> bytes:
    """Return the content of a url, or raise a `SampleError` that names what went wrong."""
    _check_host(url)
    for number in range(1, patience.num_tries + 1):
        try:
            return _try(url, max_bytes, patience)
        except _Trouble as trouble:
            if not trouble.passes or number == patience.num_tries:
                detail = f"{plain_url(url)}: {trouble.detail}, after {number} tries"
                raise SampleError(trouble.reason, detail) from None
            pause_s = random.uniform(0.5, 1.0) * patience.first_pause_s * 2 ** (number - 1)
            sleep(min(max(pause_s, trouble.pause_s), patience.longest_pause_s))
    raise AssertionError("the last try returns or raises")


def is_transient(reason: str) -> bool:
    """Say whether a reject of this reason may be none when it is tried again."""
    return reason.startswith(TRANSIENT)


def _try(url: str, max_bytes: int, patience: Patience) -> bytes:
    deadline_s = time.monotonic() + patience.total_s
    request = urllib.request.Request(_quoted(url), headers=HEADERS)
    try:
        with _OPENER.open(request, timeout=patience.timeout_s) as answer:
            return _read(answer, max_bytes, deadline_s)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error) from None
    except TimeoutError as error:
        raise _Trouble("time-out", str(error) or "no answer in time", passes=True) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise _connection_trouble(error) from None


def _read(answer: Any, max_bytes: int, deadline_s: float) -> bytes:
    said = answer.headers.get("Content-Length", "")
    if said.isdigit() and int(said) > max_bytes:
        raise _Trouble("too large", f"{said} bytes, the limit is {max_bytes}", passes=False)
    chunks, num_bytes = [], 0
    # read1 returns what is there, so that a server which trickles cannot hold us for ever.
    while chunk := answer.read1(CHUNK_BYTES):
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _Trouble("too large", f"more than the limit of {max_bytes}", passes=False)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"too slow: {num_bytes} bytes when the time was over")
    if said.isdigit() and num_bytes != int(said):
        raise http.client.IncompleteRead(b"", int(said) - num_bytes)
    return b"".join(chunks)


def _refusal(error: urllib.error.HTTPError) -> _Trouble:
    reason = f"http {error.code}"
    wait = error.headers.get("Retry-After", "") if error.headers else ""
    pause_s = float(wait) if wait.isdigit() else 0.0
    return _Trouble(reason, str(error.reason), passes=is_transient(reason), pause_s=pause_s)


def _connection_trouble(error: Exception) -> _Trouble:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return _Trouble("time-out", "no answer in time", passes=True)
    # A name that does not exist, or a certificate that is wrong, will be so in a second as well.
    unknown = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    lasting = unknown or isinstance(cause, ssl.SSLCertVerificationError | ValueError)
    return _Trouble("no connection", f"{type(cause).__name__}: {cause}", passes=not lasting)


def _check_host(url: str) -> None:
    """Refuse addresses at which machines in a cloud find their own credentials."""
    host = urlsplit(url).hostname or ""
    try:
        local = ipaddress.ip_address(host).is_link_local
    except ValueError:
        local = host == "metadata.google.internal"
    if local or not host:
        raise SampleError("forbidden address", plain_url(url))


def _quoted(url: str) -> str:
    """Return the url as it may stand in a request: spaces and letters beyond ASCII escaped."""
    parts = urlsplit(url)
    host = parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
    path, query = (quote(part, safe=SAFE) for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, host, path, query, ""))


def _opener() -> urllib.request.OpenerDirector:
    # Not `build_opener`: a redirect must not lead to ftp:// or file://.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


HEADERS = {"User-Agent": f"shardmill/{__version__}", "Accept": "*/*"}
_OPENER = _opener()
