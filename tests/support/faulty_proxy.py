"""A proxy between a client and a real HTTP server that does harm in the ways networks do.

It forwards TCP connections to the server. Of every request it reads the head and asks `choose` what
to do with it:

    None           pass it on
    "503"          answer 503 Slow Down and close, without telling the server
    "429", ...     likewise; see ANSWERS, which hold what S3 answers in such a case
    "cut"          pass it on, send half of the answer's body and cut the connection
    "cut request"  take half of the request's body, then cut both connections
    "lost answer"  pass it on and let the server do it, then cut without an answer
    "delay"        wait a moment, then pass it on
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

DELAY_S = 0.15
CHUNK = 1 << 16
ANSWERS = {
    "503": ("503 Slow Down", "SlowDown"),
    "500": ("500 Internal Server Error", "InternalError"),
    "429": ("429 Too Many Requests", "TooManyRequests"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "expired": ("400 Bad Request", "ExpiredToken"),
    "region": ("301 Moved Permanently", "PermanentRedirect"),
    "clock": ("403 Forbidden", "RequestTimeTooSkewed"),
    "no bucket": ("404 Not Found", "NoSuchBucket"),
}
HARM = ("503", "cut", "cut request", "lost answer", "delay")

Choose = Callable[[str, str], str | None]


@dataclass
class Proxy:
    """The url to use in place of the server's, what was asked for, and what was done to it."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)


def harm_some(seed: int, rate: float, kinds: tuple[str, ...] = HARM) -> Choose:
    """Return a choice that harms this share of all requests."""
    rng = Random(seed)
    return lambda method, path: rng.choice(kinds) if rng.random() < rate else None


@contextmanager
def faulty_proxy(server_url: str, choose: Choose) -> Iterator[Proxy]:
    """Listen on loopback and forward to the server while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
    parts = urlsplit(server_url)
    target = (parts.hostname or "", parts.port or 80)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(
                target=_Connection(client, target, choose, proxy).run, daemon=True
            ).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.close()


class _Cut(Exception):
    """The connection is to end here."""


class _Connection:
    """One client's connection, and the one to the server that serves it."""

    def __init__(
        self, client: socket.socket, target: tuple[str, int], choose: Choose, proxy: Proxy
    ) -> None:
        self._client, self._choose, self._proxy = client, choose, proxy
        self._server = socket.create_connection(target)
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        with self._client, self._server, suppress(OSError, _Cut):
            while True:
                self._exchange()

    def _exchange(self) -> None:
        head, rest = _read_head(self._client)
        method, path = head.split(b" ", 2)[:2]
        self._proxy.requests.append((method.decode(), path.decode()))
        harm = self._choose(method.decode(), path.decode())
        if harm is not None:
            self._proxy.harm.append(harm)
        if harm in ANSWERS:
            self._refuse(*ANSWERS[str(harm)])
        if harm == "delay":
            time.sleep(DELAY_S)
        # SeaweedFS and S3 answer "100-continue" only when asked to, and our client never asks.
        self._send_request(head, rest, cut=harm == "cut request")
        if harm == "lost answer":
            _read_head(self._server)
            raise _Cut
        self._send_answer(method, cut=harm == "cut")

    def _refuse(self, status: str, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>made by the test</Message></Error>".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._client.sendall(head.encode() + body)
        # Without this the kernel may throw the answer away, as bytes of the request are unread.
        self._client.shutdown(socket.SHUT_WR)
        self._client.settimeout(1)
        while self._client.recv(CHUNK):
            pass
        raise _Cut

    def _send_request(self, head: bytes, rest: bytes, *, cut: bool) -> None:
        length = _content_length(head)
        if cut:
            self._server.sendall(head + rest[: length // 2])
            raise _Cut
        self._server.sendall(head)
        _copy(self._client, self._server, rest, length)

    def _send_answer(self, method: bytes, *, cut: bool) -> None:
        head, rest = _read_head(self._server)
        length = 0 if method == b"HEAD" else _content_length(head)
        if cut:
            self._client.sendall(head)
            _copy(self._server, self._client, rest[: length // 2], length // 2)
            raise _Cut
        if length < 0:
            self._client.sendall(head + rest)
            while chunk := self._server.recv(CHUNK):
                self._client.sendall(chunk)
                if chunk.endswith(b"0\r\n\r\n"):
                    return
            raise _Cut
        self._client.sendall(head)
        _copy(self._server, self._client, rest, length)


def _read_head(source: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a message, and the bytes of its body that came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = source.recv(CHUNK)
        if not chunk:
            raise _Cut
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _content_length(head: bytes) -> int:
    """Return the length of the body; -1 for one that comes in chunks."""
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return -1
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


def _copy(source: socket.socket, target: socket.socket, begun: bytes, length: int) -> None:
    target.sendall(begun)
    left = length - len(begun)
    while left > 0:
        chunk = source.recv(min(CHUNK, left))
        if not chunk:
            raise _Cut
        target.sendall(chunk)
        left -= len(chunk)
