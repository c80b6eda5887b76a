"""Token ids that lie in a store, read by ranges as if they were an array in memory.

Rows that are read one after the other come in blocks, with the next ones on their way; rows that
are read here and there come each by itself, or together if they were announced. At most a few
blocks are held.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.blob import RemoteBlob

BLOCK_BYTES = 8 << 20
BLOCKS_HELD = 3
BLOCKS_AHEAD = 2
# A row that begins so close behind a recent one is read on: other workers take what lies between.
NEAR_BYTES = 1 << 20
NUM_RECENT = 4


class RemoteIds:
    """The ids of one `.bin` object; slices are arrays. Safe to use from several threads."""

    def __init__(self, blob: RemoteBlob, dtype: np.dtype[Any]) -> None:
        self._blob, self.dtype = blob, dtype
        self._lock = Lock()
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    @property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return self._blob.num_bytes

    @property
    def size(self) -> int:
        """The number of ids."""
        return self.nbytes // self.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        first, last, step = wanted.indices(self.size)
        if step != 1:
            raise ValueError("ids in a store are read without a step")
        start, end = first * self.itemsize, max(first, last) * self.itemsize
        content = self._blob.take_announced(start, end - start)
        if content is None:
            content = self._read(start, end)
        return np.frombuffer(content, self.dtype)

    def prefetch(self, places: Sequence[tuple[int, int]]) -> None:
        """Say that these rows, as (first id, number of ids), will be read soon."""
        size = self.itemsize
        ranges = [(first * size, length * size) for first, length in places]
        self._blob.prefetch([r for r in ranges if not self._holds(*r)])

    def _read(self, start: int, end: int) -> memoryview:
        if end == start:
            return memoryview(b"")
        if not self._goes_on(start, end):
            return self._blob.view_all([(start, end - start)])[0]
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        if len(blocks) == 1:
            return blocks[0][start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        joined = memoryview(b"".join(blocks))
        return joined[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _goes_on(self, start: int, end: int) -> bool:
        with self._lock:
            found = any(0 <= start - recent <= NEAR_BYTES for recent in self._recent)
            self._recent.append(end)
            return found or start // BLOCK_BYTES in self._blocks

    def _holds(self, start: int, length: int) -> bool:
        with self._lock:
            return start // BLOCK_BYTES in self._blocks

    def _block(self, number: int) -> memoryview:
        with self._lock:
            if number not in self._blocks:
                (self._blocks[number],) = self._blob.view_all([self._place(number)])
                while len(self._blocks) > BLOCKS_HELD:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            for coming in range(number + 1, number + 1 + BLOCKS_AHEAD):
                if coming * BLOCK_BYTES < self.nbytes and coming not in self._blocks:
                    self._blob.prefetch([self._place(coming)])
            return self._blocks[number]

    def _place(self, number: int) -> tuple[int, int]:
        start = number * BLOCK_BYTES
        return start, min(BLOCK_BYTES, self.nbytes - start)
