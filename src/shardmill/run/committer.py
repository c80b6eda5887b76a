"""Commits finished units beside the work, in groups that form by themselves.

While one group is being committed, the units that finish meanwhile wait and become the next group:
a slow disk gives larger groups and fewer fsyncs a unit, and no finished unit waits for a timer. Few
wait: what waits is lost when the process is killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from shardmill.model.stage import Draft, Tally, Unit

MAX_WAITING = 64
MAX_WAITING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit whose work is over and whose books balance; its files lie in its draft.

    It took `seconds`, of which the process computed for `cpu_seconds`.
    """

    unit: Unit
    draft: Draft
    tally: Tally
    num_bytes: int
    seconds: float
    cpu_seconds: float


class Committer:
    """A thread that calls `commit_group` with what `add` was given; leaving waits for the last."""

    def __init__(self, commit_group: Callable[[Sequence[Finished]], None]) -> None:
        self._commit_group = commit_group
        self._waiting: deque[Finished] = deque()
        self._futures: deque[tuple[Future[None], int]] = deque()
        self._num_bytes = 0
        self._pool = ThreadPoolExecutor(1, "commit")

    def __enter__(self) -> Committer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            for future, _num_bytes in self._futures:
                future.result()

    def add(self, finished: Finished) -> None:
        """Queue a finished unit; waits while too many wait already."""
        self._waiting.append(finished)
        self._futures.append((self._pool.submit(self._commit_waiting), finished.num_bytes))
        self._num_bytes += finished.num_bytes
        while self._futures and (self._is_full() or self._futures[0][0].done()):
            future, num_bytes = self._futures.popleft()
            future.result()
            self._num_bytes -= num_bytes

    def _is_full(self) -> bool:
        return len(self._futures) > MAX_WAITING or self._num_bytes > MAX_WAITING_BYTES

    def _commit_waiting(self) -> None:
        # One call takes all that wait; the calls submitted for the others then find nothing.
        group = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if group:
            self._commit_group(group)
