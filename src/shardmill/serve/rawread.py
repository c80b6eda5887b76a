"""Reads the members of samples, a batch at a time, with as little Python between as can be.

What a sample needs of its shard (where keys, members and bytes lie) is kept at hand for each shard,
since looking it up costs as much as copying 20 KB. Threads may share a reader: a shard that is in
use stays mapped and open, whatever the sample set closes meanwhile.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from shardmill.io.index import ShardIndex
from shardmill.io.members import MemberTable
from shardmill.io.sampleset import SampleSet, most_open_shards
from shardmill.io.sampleshard import SampleShard
from shardmill.model.sample import MediaSize
from shardmill.remote.path import UrlPath
from shardmill.serve.buffers import Buffers, keep_freed_memory


class RawSample(NamedTuple):
    """A sample as it lies in its tar: key, and members by extension."""

    key: str
    members: dict[str, Any]


class _File:
    """A descriptor of our own, closed when the last user has gone."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)


class _Shard(NamedTuple):
    """What of a shard is needed for each sample; `whole` and `file` are None if it is remote."""

    key_bytes: memoryview
    key_bounds: memoryview
    shard_index: ShardIndex
    table: MemberTable
    whole: memoryview | None
    file: _File | None
    opened: SampleShard

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
    """Samples of a set by number: as views, as bytes, or in a buffer of the batch's own."""

    def __init__(self, samples: SampleSet) -> None:
        self.samples, self.buffers = samples, Buffers()
        # Our own local shards have their tars beside them.
        self.is_remote = isinstance(samples.folder, UrlPath) or any(
            "tar" not in entry.files for entry in samples.entries
        )
        self._starts = list(accumulate((e.num_samples for e in samples.entries), initial=0))
        self._shards: dict[int, _Shard] = {}
        self._max_open, self._lock = most_open_shards(), threading.Lock()
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
                remote.setdefault(id(shard), (shard.opened, []))[1].append(inside)
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
            if shard.file is None or os.preadv(shard.file.fd, [part], start) != len(part):
                return self.views(numbers)
            batch.append(RawSample(_key(shard, inside), shard.table.views(inside, part, start)))
        return batch

    def _read(
        self, numbers: Sequence[int], members: Callable[[_Shard, int], dict[str, Any]]
    ) -> list[RawSample]:
        self._renew()
        self.announce(numbers)
        return [
            RawSample(_key(shard, inside), members(shard, inside))
            for shard, inside in map(self._locate, numbers)
        ]

    def _renew(self) -> None:
        if self.samples.near is None:
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


def _key(shard: _Shard, inside: int) -> str:
    bounds = shard.key_bounds
    return str(shard.key_bytes[bounds[inside] : bounds[inside + 1]], "utf-8", "surrogateescape")
