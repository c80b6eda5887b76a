"""Raw samples by number, a batch at a time, with as little Python between as can be.

`RawReader` gives the members of samples as views of the mapped tars (the best for data that is in
memory), as bytes, or read straight from the files into one private buffer a batch, which is used
again when the batch is gone.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from shardmill.model.sample import MediaSize
from shardmill.shards.samples import SampleDataset, SampleShard, max_open_shards
from shardmill.shards.tar.index import MemberTable, TarIndex
from shardmill.storage.path import UrlPath

# Buffers that wait for their next batch: more than threads and batches ahead ever hold at once.
MAX_KEPT = 16
ROUND = 1 << 20
# Half of what glibc lets its threshold grow to.
LARGE = 16 << 20


class RawSample(NamedTuple):
    """A sample as it lies in its tar: key, and members by extension."""

    key: str
    members: dict[str, Any]


class _File:
    """A descriptor of our own, closed when the last user has gone."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # bound above: at the end of the interpreter `os` may be gone before us


class _Shard(NamedTuple):
    """What of a shard is needed for each sample; `whole` and `file` are None if it is remote."""

    key_bytes: memoryview
    key_bounds: memoryview
    shard_index: TarIndex
    table: MemberTable
    whole: memoryview | None
    file: _File | None
    opened: SampleShard

    def key(self, inside: int) -> str:
        bounds = self.key_bounds
        return str(self.key_bytes[bounds[inside] : bounds[inside + 1]], "utf-8", "surrogateescape")

    def views(self, inside: int) -> dict[str, Any]:
        """Return the members of a sample as views of the tar, or of what is fetched of it."""
        if self.whole is None:
            return self.opened.raw(inside)
        return self.table.views(inside, self.whole, 0)

    def copies(self, inside: int) -> dict[str, Any]:
        """Return them as bytes."""
        if self.whole is None:
            return self.opened.copies(inside)
        return self.table.copies(inside, self.whole, 0)


class RawReader:
    """Samples of a set by number: as views, as bytes, or in a buffer of the batch's own.

    What a sample needs of its shard (where keys, members and bytes lie) is kept for each shard,
    since looking it up costs as much as copying 20 KB. Threads may share a reader: a shard that is
    in use stays mapped and open, whatever the sample set closes meanwhile.
    """

    def __init__(self, samples: SampleDataset) -> None:
        self.samples, self.buffers = samples, Buffers()
        # Our own local shards have their tars beside them.
        self.is_remote = isinstance(samples.folder, UrlPath) or any(
            "tar" not in entry.files for entry in samples.entries
        )
        self._starts = list(accumulate((e.num_samples for e in samples.entries), initial=0))
        self._shards: dict[int, _Shard] = {}
        self._max_open, self._lock = max_open_shards(), threading.Lock()
        keep_freed_memory()  # or each batch of copies goes back to the system before the next

    def __reduce__(self) -> tuple[object, ...]:
        return RawReader, (self.samples,)

    def announce(self, numbers: Sequence[int]) -> None:
        """Have samples of remote tars fetched, those of one tar together."""
        if not self.is_remote:
            return
        remote: dict[int, tuple[SampleShard, list[int]]] = {}
        for shard, inside in map(self._locate, numbers):
            if shard.whole is None:
                # The opened shard is kept beside its id, which no other one can have meanwhile; a
                # `_Shard` may be dropped and its id used again before the loop ends.
                remote.setdefault(id(shard.opened), (shard.opened, []))[1].append(inside)
        for opened, insides in remote.values():
            opened.prefetch(insides)

    def sizes(self, number: int) -> dict[str, MediaSize]:
        """Return what the index knows of a sample's media."""
        shard, inside = self._locate(number)
        return shard.shard_index.sizes(inside)

    def views(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples as views of the mapped tars, or as fetched if a tar is remote."""
        return self._read(numbers, _Shard.views)

    def copies(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples whose members are bytes."""
        return self._read(numbers, _Shard.copies)

    def private(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples in one buffer of their own, read without holding the interpreter."""
        self._renew()
        places = [self._locate(number) for number in numbers]
        spans = [shard.shard_index.span(inside) for shard, inside in places]
        whole = self.buffers.take(sum(end - start for start, end in spans))
        batch, used = [], 0
        for (shard, inside), (start, end) in zip(places, spans):
            part = whole[used : used + end - start]
            used += end - start
            # A tar that is remote, or shorter than its index says, is left to the mapped way, which
            # fetches the one and says what is wrong with the other.
            if shard.file is None or os.preadv(shard.file.fd, [part], start) != len(part):
                return self.views(numbers)
            batch.append(RawSample(shard.key(inside), shard.table.views(inside, part, start)))
        return batch

    def _read(
        self, numbers: Sequence[int], members: Callable[[_Shard, int], dict[str, Any]]
    ) -> list[RawSample]:
        self._renew()
        self.announce(numbers)
        return [
            RawSample(shard.key(inside), members(shard, inside))
            for shard, inside in map(self._locate, numbers)
        ]

    def _renew(self) -> None:
        if self.samples.staged_dir is None:
            return
        with self._lock:
            if self.samples.renew():
                self._shards.clear()

    def _locate(self, number: int) -> tuple[_Shard, int]:
        at = bisect_right(self._starts, number) - 1
        shard = self._shards.get(at)
        return shard or self._opened(at), number - self._starts[at]

    def _opened(self, at: int) -> _Shard:
        with self._lock:
            # All at once, as an order over all shards has no favourites; what is in use lives on.
            if len(self._shards) >= self._max_open:
                self._shards.clear()
            shard = self.samples.shard(at)
            index, whole = shard.index, shard.blob.mapped()
            file = None if whole is None else _File(shard.blob.url)
            found = _Shard(
                index.keys.data, index.keys.bounds, index, index.table, whole, file, shard
            )
            self._shards[at] = found
        return found


class Buffers:
    """Memory for batches that is used again: fresh memory costs a page fault for every 4 KB.

    Anonymous maps are handed out as views and taken back when nobody looks at them any more.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=MAX_KEPT)

    def take(self, num_bytes: int) -> memoryview:
        """Return writable memory of this size; what it held before is undefined."""
        try:
            held = self._free.popleft()  # asking first would not do: threads share the buffers
        except IndexError:
            held = None
        if held is None or len(held) < num_bytes:
            # A quarter more than asked for, so that the next, slightly larger batch fits, too.
            held = mmap.mmap(-1, (num_bytes + num_bytes // 4) // ROUND * ROUND + ROUND)
        # Views of the array keep the array alive; when the last one goes, the map is free again.
        array = np.frombuffer(held, np.uint8)
        weakref.finalize(array, self._free.append, held).atexit = False
        return memoryview(array.data)[:num_bytes]

    def __reduce__(self) -> tuple[object, ...]:
        return Buffers, ()


def keep_freed_memory() -> None:
    """Let arrays of up to 16 MB be freed into the process, not back to the system.

    glibc maps blocks above a threshold (128 KB at first) anew each time, so that each pack would
    pay a page fault for every 4 KB of it: half the time of building one. Freeing a large block
    raises the threshold to its size; the block itself is never touched and costs nothing.
    """
    np.empty(LARGE, np.uint8)
