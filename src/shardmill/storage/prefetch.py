"""Reading ahead by threads: in order, within a bound, with errors where they belong.

`map_ahead` and `announce_ahead` walk a list of tasks whose order is known. `RangePrefetch` holds
byte ranges of a remote object that a reader has announced, until it asks for them.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import TypeAlias, TypeVar

NUM_RANGE_THREADS = 16
# In each process, and a training node has dozens of them.
MAX_BYTES = 256 << 20
# Of one object: ranges that were announced and never asked for must not pile up.
MAX_RANGES = 4096

Task = TypeVar("Task")
Result = TypeVar("Result")
Range: TypeAlias = tuple[int, int]
Fetch: TypeAlias = Callable[[Sequence[Range]], Sequence[memoryview]]


def map_ahead(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Yield `work(task)` for each task in order; at most `ahead` results wait at any time.

    Without threads the work is done when its result is asked for. An error of `work` is raised in
    the place of its result. When the iterator is closed or a task fails, tasks that have not begun
    are dropped and the threads end.
    """
    if threads == 0:
        yield from map(work, tasks)
        return
    with _threads(threads) as pool:
        todo = iter(tasks)
        waiting: deque[Future[Result]] = deque(
            pool.submit(work, task) for task in islice(todo, max(1, ahead))
        )
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, task) for task in islice(todo, 1))
            yield result


def announce_ahead(
    announce: Callable[[Task], None], tasks: Iterable[Task], *, ahead: int
) -> Iterator[Task]:
    """Yield the tasks; a thread announces each when at most `ahead` others come before it.

    An announcement that fails is ignored: whoever does the task meets the same error.
    """
    with ExitStack() as stack:
        todo, waiting, pool = iter(tasks), deque[Task](), None
        while True:
            for task in islice(todo, ahead + 1 - len(waiting)):
                pool = pool or stack.enter_context(_threads(1))
                pool.submit(announce, task)
                waiting.append(task)
            if not waiting:
                return
            yield waiting.popleft()


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(count, thread_name_prefix="prefetch")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Budget:
    """How many bytes are announced and not yet read, in all objects of this process together."""

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


class RangePrefetch:
    """The announced ranges of one object; safe to use from several threads.

    `fetch` gets all ranges of one announcement, so that a store is asked once. When the process
    has too many bytes under way an announcement is ignored: those bytes are then read when they are
    asked for. Ranges that nobody reads are dropped when newer ones come, or with the object.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = Lock()
        # Each range, with the request that brings it and its number among the answers.
        self._coming: OrderedDict[Range, tuple[Future[Sequence[memoryview]], int]] = OrderedDict()

    def __del__(self) -> None:
        self.clear()

    def announce(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch (offset, length) ranges, unless they are coming or there is no room."""
        with self._lock:
            new = [r for r in dict.fromkeys(ranges) if r[1] and r not in self._coming]
            if not new or not BUDGET.take(sum(length for _, length in new)):
                return
            future = _range_pool(os.getpid()).submit(self._fetch, new)
            self._coming.update((r, (future, number)) for number, r in enumerate(new))
            while len(self._coming) > MAX_RANGES:
                self._drop(next(iter(self._coming)))

    def take(self, wanted: Range) -> memoryview | None:
        """Return the bytes of an announced range, once; None if it was not announced."""
        with self._lock:
            if wanted not in self._coming:
                return None
            future, number = self._drop(wanted)
        return future.result()[number]

    def clear(self) -> None:
        """Drop all ranges that are coming."""
        with self._lock:
            for wanted in list(self._coming):
                self._drop(wanted)

    def _drop(self, wanted: Range) -> tuple[Future[Sequence[memoryview]], int]:
        BUDGET.give_back(wanted[1])
        return self._coming.pop(wanted)


@lru_cache(maxsize=1)
def _range_pool(pid: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork.
    return ThreadPoolExecutor(NUM_RANGE_THREADS, "ranges")
