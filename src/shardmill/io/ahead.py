"""Bytes of a remote object that are on their way before anybody asks for them, within a bound.

A reader that knows what it will read next announces it; one request fetches all of it in the
background, and reading takes it from here. What was announced and is never read is dropped when
newer announcements come, or with the object. When too much is under way, in all objects of the
process together, an announcement is ignored: then the bytes are read when they are asked for.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import TypeAlias

NUM_THREADS = 16
MAX_BYTES = 256 << 20
MAX_ANNOUNCED = 4096

Range: TypeAlias = tuple[int, int]
Fetch: TypeAlias = Callable[[Sequence[Range]], Sequence[memoryview]]


class _Budget:
    """How many bytes are announced and not yet read, in this process."""

    def __init__(self) -> None:
        self._lock, self.num_bytes = Lock(), 0

    def take(self, num_bytes: int) -> bool:
        with self._lock:
            if self.num_bytes + num_bytes > MAX_BYTES:
                return False
            self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes -= num_bytes


BUDGET = _Budget()


class Announced:
    """The ranges of one object that are on their way; safe to use from several threads."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = Lock()
        self._coming: OrderedDict[Range, tuple[Future[Sequence[memoryview]], int]] = OrderedDict()

    def __del__(self) -> None:
        self.forget()

    def announce(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch these ranges, unless they are coming already or there is no room."""
        with self._lock:
            new = [r for r in dict.fromkeys(ranges) if r[1] and r not in self._coming]
            if not new or not BUDGET.take(sum(length for _, length in new)):
                return
            future = _pool(os.getpid()).submit(self._fetch, new)
            self._coming.update((r, (future, number)) for number, r in enumerate(new))
            while len(self._coming) > MAX_ANNOUNCED:
                self._drop(next(iter(self._coming)))

    def take(self, wanted: Range) -> memoryview | None:
        """Return the bytes of a range that was announced, once; None if it was not."""
        with self._lock:
            if wanted not in self._coming:
                return None
            future, number = self._drop(wanted)
        return future.result()[number]

    def forget(self) -> None:
        """Drop whatever is coming."""
        with self._lock:
            for wanted in list(self._coming):
                self._drop(wanted)

    def _drop(self, wanted: Range) -> tuple[Future[Sequence[memoryview]], int]:
        BUDGET.give_back(wanted[1])
        return self._coming.pop(wanted)


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork.
    return ThreadPoolExecutor(NUM_THREADS, "read-ahead")
