"""Writes in a thread of its own, so that the next batch is made while the last one is written.

At most one call runs. What it reads must be left alone until the next call has been given, so what
batches lie in is taken `in_turns`: one is filled while the other is written.

Memory for one array after the other, so that a batch is written where the last one was.

The kernel clears every page before it hands it out, which takes about as long as filling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Scribe:
    """Runs calls that write, in order; leaving it waits for the last one."""

    def __init__(self) -> None:
        self._running: Future[Any] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def write(self, call: Callable[..., Any], *given: Any) -> None:
        """Begin a call once the one before has ended; what that one raised is raised here."""
        self.wait()
        # Most writers never need a thread.
        self._pool = self._pool or ThreadPoolExecutor(1, "write")
        self._running = self._pool.submit(call, *given)

    def wait(self) -> None:
        """Return when nothing runs; what the last call raised is raised here."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Let the thread end, whatever became of its last call."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self.close()


def in_turns(make: Callable[[], T]) -> Iterator[T]:
    """Yield one of two that are made here, then the other, and so on."""
    return cycle((make(), make()))


@dataclass(slots=True)
class Room:
    """Bytes that are used again: what `take` returned is overwritten after the next call."""

    _memory: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return so many bytes, with anything in them."""
        if len(self._memory) < num_bytes:
            # Batches differ a little in size; the next one shall still have room.
            self._memory = np.empty(num_bytes + num_bytes // 4, np.uint8)
        return self._memory[:num_bytes]
