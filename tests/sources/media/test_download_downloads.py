"""Downloads at the same time: in order, few to a host, none lost, errors where they are taken."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.sources.media.download import PER_HOST_VARIABLE, Downloads, downloads_a_host


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
