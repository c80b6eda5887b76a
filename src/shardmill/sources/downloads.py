"""Downloads under way for the rows that come next: several at a time, few to one host.

A row's media are announced when the row is read, and taken when it is written, in the order of the
rows. How far to look ahead is for the caller to decide, by `num_bytes`: what has arrived and waits.

Hosts are spread over lanes, and a lane has as many threads as one host may have. So no host ever
gets more, and a slow one holds up only those few that share its lane.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from urllib.parse import urlsplit
from zlib import crc32

from shardmill.errors import ConfigError

NUM_LANES = 8
PER_HOST = 8
PER_HOST_VARIABLE = "SHARDMILL_PER_HOST"


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
