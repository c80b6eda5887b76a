"""Work done ahead of time by threads, in order, with a bound on how far ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    todo = iter(tasks)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="shardmill-ahead")
    try:
        waiting: deque[Future[Result]] = deque(
            pool.submit(work, task) for task in islice(todo, max(1, ahead))
        )
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, task) for task in islice(todo, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
