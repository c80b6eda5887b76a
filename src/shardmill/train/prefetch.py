"""Work done ahead of time by threads, in order, with a bound on how far ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(
    tasks: Iterable[Task], work: Callable[[Task], Result], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Yield `work(task)` for each task in order; at most `ahead` results wait at any time.

    Without threads the work is done when the result is asked for. When the iterator is closed or a
    task fails, tasks that have not begun are dropped and the threads end.
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


def announced(
    tasks: Iterable[Task], announce: Callable[[Task], None], *, ahead: int
) -> Iterator[Task]:
    """Yield the tasks; each is announced, by a thread, when at most `ahead` come before it."""
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
    pool = ThreadPoolExecutor(count, thread_name_prefix="shardmill-ahead")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
