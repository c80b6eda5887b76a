"""Downloads: every failure has its reason; what may pass is tried again, the rest is not."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.sources.allowed import Allowed
from shardmill.sources.download import (
    PER_HOST_VARIABLE,
    Downloads,
    Patience,
    download,
    downloads_a_host,
    is_transient,
)

QUICK = Patience(timeout_s=0.5, total_s=1.0, num_tries=3, first_pause_s=0.01)


Answer = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Run a web server that answers its n-th request by `answer(handler, n)`; yield its url."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            paths.append(self.path)
            answer(self, len(paths))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", paths
    finally:
        server.shutdown()
        server.server_close()


def send(
    handler: BaseHTTPRequestHandler,
    status: int = 200,
    body: bytes = b"",
    length: int | None = None,
    **headers: str,
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def hosts_of(url: str) -> frozenset[str]:
    """Return the hosts that somebody allows who names this url."""
    return Allowed.below(url).hosts


def reason_of(url: str, max_bytes: int = 1000) -> SampleError:
    with pytest.raises(SampleError) as caught:
        download(url, max_bytes, QUICK, hosts_of(url), sleep=lambda s: None)
    return caught.value


@pytest.mark.parametrize(
    ("status", "num_tries"), [(404, 1), (403, 1), (410, 1), (429, 3), (500, 3), (503, 3)]
)
def test_a_status_is_the_reason_and_only_what_may_pass_is_tried_again(
    status: int, num_tries: int
) -> None:
    with answering(lambda handler, n: send(handler, status)) as (url, paths):
        error = reason_of(f"{url}/a.jpg?sig=secret")
    assert error.reason == f"http {status}" and len(paths) == num_tries
    assert is_transient(error.reason) == (num_tries > 1)
    assert "secret" not in str(error) and "a.jpg" in error.detail


def test_a_fault_that_passes_is_not_seen() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            send(handler, 503)
        elif number == 2:
            send(handler, body=b"half", length=8)  # the connection breaks in the middle
        else:
            send(handler, body=b"whole")

    with answering(answer) as (url, paths):
        assert download(f"{url}/x", 1000, QUICK, hosts_of(url), sleep=lambda s: None) == b"whole"
    assert len(paths) == 3


def test_a_server_says_how_long_to_wait() -> None:
    pauses: list[float] = []

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        send(handler, 429, Retry_After="7") if number == 1 else send(handler, body=b"x")

    with answering(answer) as (url, _):
        download(f"{url}/x", 1000, QUICK, hosts_of(url), sleep=pauses.append)
    assert pauses == [7.0]


def test_odd_numbers_of_a_server_cost_one_sample() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        # A superscript is a digit to `isdigit`, and no number.
        headers = {"Retry_After": "\xb2"} if handler.path == "/wait" else {"Location": "ftp://h/x"}
        send(handler, 503 if handler.path == "/wait" else 302, **headers)

    with answering(answer) as (url, _):
        assert reason_of(f"{url}/wait").reason == "http 503"
        assert reason_of(f"{url}/moved").reason == "http 302"


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["head", "continue", "chunk", "trailers"],
)
def test_no_part_of_an_answer_may_go_on_for_ever(parts: tuple[bytes, bytes]) -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        with suppress(OSError):
            handler.wfile.write(parts[0])
            while True:
                handler.wfile.write(parts[1])
                time.sleep(0.01)

    with answering(answer) as (url, _):
        slow = Patience(timeout_s=5, total_s=0.2, num_tries=1)
        with pytest.raises(SampleError, match="time-out"):
            download(f"{url}/x", 1000, slow, hosts_of(url))


def test_silence_and_slowness_are_time_outs() -> None:
    over = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not over.wait(0.05):
            try:
                handler.wfile.write(b"x" * 100)  # never silent, but never done
            except OSError:
                return

    with answering(answer) as (url, _):
        slow = Patience(timeout_s=5, total_s=0.3, num_tries=1)
        with pytest.raises(SampleError, match="time-out"):
            download(f"{url}/x", 10**9, slow, hosts_of(url))
        over.set()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert reason_of(f"http://127.0.0.1:{silent.getsockname()[1]}/x").reason == "time-out"


def test_who_is_not_there_has_no_connection() -> None:
    assert reason_of("http://127.0.0.1:9/x").reason == "no connection"
    assert reason_of("http://no.such.host.invalid/x").reason == "no connection"


def test_what_is_too_large_is_not_read() -> None:
    with answering(lambda handler, n: send(handler, body=b"x", length=10**12)) as (url, paths):
        assert reason_of(f"{url}/x").reason == "too large"
    assert len(paths) == 1

    def chunked(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(bytes(600_000))
        handler.close_connection = True

    with answering(chunked) as (url, _):
        assert reason_of(f"{url}/x", max_bytes=500_000).reason == "too large"


def test_redirects_are_followed_to_the_web_only() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        targets = {"/a": "/b", "/f": "file:///etc/passwd", "/loop": "/loop"}
        target = targets.get(handler.path)
        send(handler, 302, Location=target) if target else send(handler, body=b"found")

    with answering(answer) as (url, _):
        assert download(f"{url}/a", 1000, QUICK, hosts_of(url)) == b"found"
        assert reason_of(f"{url}/f").reason in ("http 302", "no connection")
        assert reason_of(f"{url}/loop").reason == "http 302"


def test_a_redirect_is_judged_like_a_url() -> None:
    with answering(lambda handler, n: send(handler, body=b"secret")) as (inner, inner_paths):
        send_there = f"{inner}/secret"
        with answering(lambda h, n: send(h, 302, Location=send_there)) as (url, paths):
            error = reason_of(f"{url}/a")
            assert error.reason == "address not allowed"
            assert f"--allow {inner}" in error.detail
            assert (paths, inner_paths) == (["/a"], [])


def test_names_with_spaces_and_letters_of_all_kinds_are_asked_for() -> None:
    with answering(lambda handler, n: send(handler, body=b"x")) as (url, paths):
        assert download(f"{url}/ein Bild/größe.jpg?w=1 2", 1000, QUICK, hosts_of(url)) == b"x"
    assert paths == ["/ein%20Bild/gr%C3%B6%C3%9Fe.jpg?w=1%202"]


def test_no_host_gets_more_than_its_share_and_all_arrive() -> None:
    active: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def fetch(url: str) -> bytes:
        host = url.split("/")[2]
        with lock:
            active[host] += 1
            most[host] = max(most[host], active[host])
        time.sleep(0.002)
        with lock:
            active[host] -= 1
        return url.encode()

    urls = [f"http://host{n % 3}/{n}" for n in range(120)]
    downloads = Downloads(fetch, per_host=3)
    for url in urls:
        downloads.announce(url)
    assert [downloads.take(url) for url in urls] == [url.encode() for url in urls]
    assert downloads.num_bytes == 0
    downloads.close()
    assert max(most.values()) <= 3 and max(most.values()) > 1


def test_an_error_is_met_by_whoever_takes_it() -> None:
    def fetch(url: str) -> bytes:
        raise SampleError("http 404", url)

    downloads = Downloads(fetch)
    downloads.announce("http://a/1")
    with pytest.raises(SampleError, match="http 404"):
        downloads.take("http://a/1")
    downloads.close()


def test_what_nobody_announced_is_fetched_when_it_is_taken() -> None:
    downloads = Downloads(str.encode)
    assert downloads.take("http://a/1") == b"http://a/1"
    downloads.announce("http://a/1")
    assert downloads.take("http://a/1") == downloads.take("http://a/1")
    downloads.close()


def test_closing_does_not_wait_for_what_has_not_begun() -> None:
    begun: list[str] = []

    def fetch(url: str) -> bytes:
        begun.append(url)
        time.sleep(0.05)
        return b""

    downloads = Downloads(fetch, per_host=1)
    for number in range(50):
        downloads.announce(f"http://a/{number}")
    downloads.close()
    assert len(begun) < 10


def test_the_share_of_a_host_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PER_HOST_VARIABLE, "3")
    assert downloads_a_host() == 3
    monkeypatch.setenv(PER_HOST_VARIABLE, "none")
    with pytest.raises(ConfigError, match="at least 1"):
        downloads_a_host()
