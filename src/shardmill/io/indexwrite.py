"""Collects the rows of an index while a tar is written or walked, and writes them at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.arrays import Arrays, write_arrays
from shardmill.io.index import FORMAT, MEMBER_COLUMNS, hash_keys
from shardmill.io.pieces import open_to_write
from shardmill.io.strings import pack_strings
from shardmill.io.tarbatch import TarBatch
from shardmill.io.weave import Column, texts
from shardmill.model.sample import MediaSize

MAX_TABLE = 1 << 16
LOW_HALF = (1 << 64) - 1
UNKNOWN = MediaSize(num_frames=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Samples in order, each with so many of the members."""

    keys: Column
    start: NDArray[np.int64]
    num_members: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    ext: NDArray[np.int64]


@dataclass(slots=True)
class IndexRows:
    """The rows of one tar's index; columns that nobody gave are not written."""

    keys: list[bytes] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0])
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    ext: list[int] = field(default_factory=list)
    exts: dict[str, int] = field(default_factory=dict)
    media: dict[int, MediaSize] = field(default_factory=dict)
    text_chars: list[int] = field(default_factory=list)
    content: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    _batches: list[_Rows] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys) + sum(len(batch.keys) for batch in self._batches)

    def add(
        self,
        key: str,
        start: int,
        exts: Iterable[str],
        offsets: Iterable[int],
        sizes: Iterable[int],
    ) -> None:
        """Append a sample whose first header is at `start`; its offsets count from there."""
        table = self.exts
        self.keys.append(key.encode("utf-8", "surrogateescape"))
        self.start.append(start)
        self.ext += [table.setdefault(ext, len(table)) for ext in exts]
        self.offset += [start + offset for offset in offsets]
        self.size += sizes
        self.first.append(len(self.offset))

    def extend(self, batch: TarBatch, start: int) -> None:
        """Append the samples of a batch whose first header is at `start`."""
        if not len(batch.keys):
            return
        numbers = [self.exts.setdefault(ext, len(self.exts)) for ext in batch.exts]
        self._set_aside()
        self._batches.append(
            _Rows(
                keys=batch.keys,
                start=start + batch.starts,
                num_members=np.full(len(batch.keys), len(numbers)),
                offset=(start + batch.offsets).reshape(-1),
                size=batch.sizes.reshape(-1),
                ext=np.tile(numbers, len(batch.keys)),
            )
        )

    def describe(
        self, sizes: Sequence[MediaSize | None], text_chars: int, content: int, source: str
    ) -> None:
        """Give the columns of the sample added last: one media size for each of its members."""
        first = self.first[-2]
        self.media.update((first + i, size) for i, size in enumerate(sizes) if size is not None)
        self.text_chars.append(text_chars)
        self.content.append(content)
        self.source.append(self.sources.setdefault(source, len(self.sources)))

    def write(self, path: Path, *, end: int, num_bytes: int, url: str | None = None) -> None:
        """Write the index; the last sample ends at `end`, the tar at `num_bytes`."""
        arrays = self.arrays(path, end=end, num_bytes=num_bytes, url=url)
        with open_to_write(path) as file:
            write_arrays(file, FORMAT, arrays.arrays, arrays.meta)

    def arrays(self, path: Path, *, end: int, num_bytes: int, url: str | None = None) -> Arrays:
        """Return what `write` writes; `path` is for messages."""
        if len(self.exts) > MAX_TABLE or len(self.sources) > MAX_TABLE:
            raise FormatError(
                f"has {len(self.exts)} different extensions and {len(self.sources)} sources, more "
                f"than {MAX_TABLE}: are there dots in the keys?",
                path=url or path,
            )
        meta = {"url": url, "num_bytes": num_bytes}
        return Arrays(path, FORMAT, meta, {**self._places(end), **self._columns()})

    def _set_aside(self) -> None:
        """Make a batch of the rows that were added one by one."""
        assert not self.text_chars, "samples that were described are not mixed with batches"
        if self.keys:
            self._batches.append(self._added())
            for rows in (self.keys, self.start, self.offset, self.size, self.ext):
                rows.clear()
            self.first[:] = [0]

    def _added(self) -> _Rows:
        return _Rows(
            keys=texts(self.keys),
            start=np.array(self.start, np.int64),
            num_members=np.diff(np.array(self.first, np.int64)),
            offset=np.array(self.offset, np.int64),
            size=np.array(self.size, np.int64),
            ext=np.array(self.ext, np.int64),
        )

    def _places(self, end: int) -> dict[str, NDArray[Any]]:
        batches = [*self._batches, self._added()]

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(batch, name) for batch in batches])

        keys = [key for batch in batches for key in batch.keys.contents()]
        hashes = hash_keys(keys)
        order = np.argsort(hashes, kind="stable")
        return {
            "start": np.append(joined("start"), end).astype(np.uint64),
            "first": np.concatenate([[0], np.cumsum(joined("num_members"))]).astype(np.uint64),
            "offset": joined("offset").astype(np.uint64),
            "size": joined("size").astype(np.uint64),
            "ext": joined("ext").astype(np.uint16),
            **pack_strings("ext", map(_encoded, self.exts)),
            **pack_strings("key", keys),
            **pack_strings("source", map(_encoded, self.sources or ("",))),
            "hash": hashes[order],
            "hash_order": order.astype(np.uint32),
        }

    def _columns(self) -> dict[str, NDArray[Any]]:
        rows = [self.media.get(m, UNKNOWN) for m in range(len(self.offset))] if self.media else []
        halves = [(value >> 64, value & LOW_HALF) for value in self.content]
        columns = {
            name: np.array([getattr(row, name) for row in rows], dtype)
            for name, dtype in MEMBER_COLUMNS.items()
        }
        columns["text_chars"] = np.array(self.text_chars, np.uint32)
        columns["source"] = np.array(self.source, np.uint16)
        columns["content"] = np.array(halves, np.uint64)
        return {name: column for name, column in columns.items() if column.any()}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
