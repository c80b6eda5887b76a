"""Reads one tar through its index: any sample by number or key, or all of them in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.model.sample import INGEST_FIRST, Sample, sample_from_plain
from shardmill.shards.tar.grouping import Grouped, group_members
from shardmill.shards.tar.index import ShardIndex, index_of, open_index
from shardmill.shards.tar.members import Copies, Views
from shardmill.shards.tar.read import walk_tar
from shardmill.storage.blob import Blob, open_blob
from shardmill.storage.path import as_path

Raw: TypeAlias = Views
CHUNK_BYTES = 4 << 20


class _Piece(NamedTuple):
    """Neighbouring samples that are read together, and the (offset, length) of all of them."""

    numbers: range
    place: tuple[int, int]


class SampleShard:
    """The samples of one tar; numbers count from 0. Views hold on to the memory they show."""

    def __init__(self, blob: Blob, index: ShardIndex) -> None:
        self.blob, self.index = blob, index
        self._num_samples, self._whole = len(index), blob.mapped()
        # At hand, since looking them up costs as much as the rest of a random read.
        self._views, self._copies = index.table.views, index.table.copies
        if blob.num_bytes != index.num_bytes:
            raise FormatError(
                f"has {blob.num_bytes} bytes, its index {index.arrays.path} says "
                f"{index.num_bytes}: make the index again",
                path=blob.url,
            )

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> Sample:
        return parse_sample(self.index.keys[number], self.raw(number))

    def __iter__(self) -> Iterator[Sample]:
        return (parse_sample(key, raw) for key, raw in self.iter_raw())

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        return self.index.find(key)

    def raw(self, number: int) -> Raw:
        """Return the members of a sample by extension, as they lie in the tar."""
        if self._whole is None:
            return self.raw_all([number])[0]
        if not 0 <= number < self._num_samples:
            raise self._absent(number)
        return self._views(number, self._whole, 0)

    def copies(self, number: int) -> Copies:
        """Return the same as bytes, which hold on to nothing."""
        if self._whole is None:
            return {ext: bytes(view) for ext, view in self.raw_all([number])[0].items()}
        if not 0 <= number < self._num_samples:
            raise self._absent(number)
        return self._copies(number, self._whole, 0)

    def raw_all(self, numbers: Sequence[int]) -> list[Raw]:
        """Return the members of several samples; a remote tar is asked for all of them at once."""
        spans = [self._span(number) for number in numbers]
        views = self.blob.view_all([(start, end - start) for start, end in spans])
        return [
            self._views(number, view, start)
            for number, view, (start, _) in zip(numbers, views, spans)
        ]

    def iter_raw(self, first: int = 0, last: int | None = None) -> Iterator[tuple[str, Raw]]:
        """Yield key and members of the samples first .. last in order, read in large pieces."""
        pieces = self._pieces(first, len(self) if last is None else last)
        for piece, following in pairwise(chain(pieces, [None])):
            assert piece is not None
            if following is not None:
                self.blob.prefetch([following.place])
            chunk = memoryview(self.blob.read(*piece.place))
            for inside in piece.numbers:
                yield self.index.keys[inside], self._views(inside, chunk, piece.place[0])

    def in_order(self, last: int | None = None) -> Iterator[tuple[str, Raw]]:
        """Yield key and members of the samples; of a mapped tar only what is looked at is read."""
        if self._whole is None:
            return self.iter_raw(0, last)
        numbers = range(len(self) if last is None else last)
        return ((self.index.keys[number], self.raw(number)) for number in numbers)

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Say that these samples will be read soon."""
        spans = map(self._span, numbers)
        self.blob.prefetch([(start, end - start) for start, end in spans])

    def close(self) -> None:
        """Release the file; views that are in use stay valid."""
        self._whole = None
        self.blob.close()

    def _pieces(self, first: int, last: int) -> Iterator[_Piece]:
        number = first
        while number < last:
            start, end = self.index.span(number)
            stop = number + 1
            while stop < last and self.index.span(stop)[1] - start <= CHUNK_BYTES:
                end = self.index.span(stop)[1]
                stop += 1
            yield _Piece(range(number, stop), (start, end - start))
            number = stop

    def _span(self, number: int) -> tuple[int, int]:
        if not 0 <= number < self._num_samples:
            raise self._absent(number)
        return self.index.span(number)

    def _absent(self, number: int) -> IndexError:
        return IndexError(f"sample {number} of {len(self)} in {self.blob.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_shard(url: str, index_path: Path) -> SampleShard:
    """Open a tar by its index."""
    return SampleShard(open_blob(url), open_index(index_path))


def open_foreign(url: str, *, interleaved: bool = True) -> tuple[SampleShard, Grouped]:
    """Open a tar without an index by walking its headers; also return what the walk found."""
    blob = open_blob(url)
    try:
        walk = walk_tar(blob)
        grouped = group_members(walk, interleaved=interleaved)
        arrays = grouped.rows.arrays(as_path(url), end=walk.end, num_bytes=blob.num_bytes, url=url)
        return SampleShard(blob, index_of(arrays)), grouped
    except FormatError:
        blob.close()
        raise


def parse_sample(key: str, raw: Raw) -> Sample:
    """Return the sample in the members that `SampleWriter` wrote; otherwise a `SampleError`."""
    if "json" not in raw:
        raise SampleError("not a document", f"{key!r} has no json: {INGEST_FIRST}")
    try:
        plain = orjson.loads(raw["json"])
    except orjson.JSONDecodeError as error:
        raise SampleError("not a document", f"the json of {key!r}: {error}") from error
    media = {ext: content for ext, content in raw.items() if ext not in ("json", "txt")}
    return sample_from_plain(key, plain, media)
