"""Memory for batches that is used again: fresh memory costs a page fault for every 4 KB."""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np

MAX_KEPT = 16
ROUND = 1 << 20
LARGE = 16 << 20


class Buffers:
    """Anonymous maps, handed out as views and taken back when nobody looks at them any more."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=MAX_KEPT)

    def take(self, num_bytes: int) -> memoryview:
        """Return writable memory of this size; what it held before is undefined."""
        held = self._held(num_bytes)
        # Views of the array keep the array alive; when the last one goes, the map is free again.
        array = np.frombuffer(held, np.uint8)
        weakref.finalize(array, self._free.append, held).atexit = False
        return memoryview(array.data)[:num_bytes]

    def __reduce__(self) -> tuple[object, ...]:
        return Buffers, ()

    def _held(self, num_bytes: int) -> mmap.mmap:
        try:
            held = self._free.popleft()
        except IndexError:
            return mmap.mmap(-1, _rounded(num_bytes))
        return held if len(held) >= num_bytes else mmap.mmap(-1, _rounded(num_bytes))


def keep_freed_memory() -> None:
    """Let arrays of up to 16 MB be freed into the process, not back to the system.

    glibc maps blocks above a threshold (128 KB at first) afresh each time, so that each pack would
    pay a page fault for every 4 KB of it: half the time of building one. Freeing a large block
    raises the threshold to its size; the block itself is never touched and costs nothing.
    """
    np.empty(LARGE, np.uint8)


def _rounded(num_bytes: int) -> int:
    # A quarter more than asked for, so that the next, slightly larger batch fits, too.
    return (num_bytes + num_bytes // 4) // ROUND * ROUND + ROUND
