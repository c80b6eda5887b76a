"""The index of one tar: any sample by number or by key, without opening the tar.

By hand because a sample read at random takes a third of the CPU time that `wids` takes with its
index in memory (benchmarks/random_access.py); all processes of a machine share the mapped file.

An array file (`shards.arrays`) of format "tar-index". For N samples with M members, in tar order:

    start            u64[N+1]  offset of a sample's first header; the last one ends the last sample
    first            u64[N+1]  number of a sample's first member
    offset, size     u64[M]    place of a member's content
    ext              u16[M]    number of its extension in the table ext_bytes, ext_bounds
    key_*            texts     the keys
    hash, hash_order u64, u32  xxh3-64 of the keys, rising, and the number of the sample of each
    source_*         texts     the names of the sources

Columns, 0 where unknown, not stored where 0 throughout: width, height, num_frames u32[M], fps,
duration_s f64[M] from media headers; text_chars u32[N]; source u16[N] in the table of sources;
content u64[N, 2], the xxh3-128 of a sample's content, high half first. `meta` holds "num_bytes"
of the tar; where one is that lies elsewhere, the units of the folder say.

`IndexRows` collects the rows while a tar is written (`IndexedTar`) or walked, and writes them at
the end.

`cut_tar` writes a tar without some of its samples. The others keep their bytes, header for header:
runs of neighbours are copied by the kernel, and nothing is parsed. The index loses the same rows,
and its offsets move up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.sample import MediaSize
from shardmill.model.tokenrow import spans_of
from shardmill.shards.arrays import (
    Arrays,
    Strings,
    check_bounds,
    encoded,
    find_keys,
    hash_columns,
    open_arrays,
    open_strings,
    pack_strings,
    write_arrays,
)
from shardmill.shards.tar.header import END_OF_TAR
from shardmill.shards.tar.read import Grouped
from shardmill.shards.tar.write import TarSample, TarWriter

try:
    from shardmill.shards.tar import _members  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _members = None

FORMAT = "tar-index"
MEMBER_COLUMNS: dict[str, np.dtype[Any]] = {
    "width": np.dtype("<u4"),
    "height": np.dtype("<u4"),
    "num_frames": np.dtype("<u4"),
    "fps": np.dtype("<f8"),
    "duration_s": np.dtype("<f8"),
}
SAMPLE_COLUMNS: dict[str, np.dtype[Any]] = {
    "text_chars": np.dtype("<u4"),
    "source": np.dtype("<u2"),
    "content": np.dtype("<u8"),
}
# Extensions and sources are numbered by u16.
MAX_TABLE = 1 << 16
# One `sendfile` copies at most 2 GiB.
COPY_BYTES = 1 << 30
LOW_HALF = (1 << 64) - 1
UNKNOWN = MediaSize(num_frames=0)


class Member(NamedTuple):
    """A member of a sample: its extension and where its content lies in the tar."""

    ext: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class TarIndex:
    """A mapped index; numbers count from 0 in the order of the tar."""

    arrays: Arrays
    exts: tuple[str, ...]
    sources: tuple[str, ...]
    keys: Strings
    num_bytes: int
    # Plain ints come out of a memoryview three times faster than out of an array.
    first: memoryview
    offset: memoryview
    size: memoryview
    ext: memoryview
    table: MemberTable

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def num_members(self) -> int:
        """Members of all samples."""
        return len(self.offset)

    def members(self, number: int) -> list[Member]:
        """Return the members of a sample in the order of the tar."""
        return [
            Member(self.exts[self.ext[m]], self.offset[m], self.size[m])
            for m in range(self.first[number], self.first[number + 1])
        ]

    def sizes(self, number: int) -> dict[str, MediaSize]:
        """Return what the headers of a sample's members said, by extension."""
        columns = {name: self.column(name) for name in MEMBER_COLUMNS}
        return {
            self.exts[self.ext[m]]: MediaSize(**{n: c[m].item() for n, c in columns.items()})
            for m in range(self.first[number], self.first[number + 1])
        }

    def span(self, number: int) -> tuple[int, int]:
        """Return where a sample's first content begins and its last one ends."""
        first, last = self.first[number], self.first[number + 1] - 1
        return self.offset[first], self.offset[last] + self.size[last]

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        number = int(self.find_all([key])[0])
        return None if number < 0 else number

    def find_all(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the samples with these keys, -1 for a key that is not here."""
        return find_keys(keys, self.arrays["hash"], self.arrays["hash_order"], self.keys.raw)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of members or samples; zeros if nothing is known."""
        stored = self.arrays.arrays.get(name)
        return np.zeros(*self.shape_of(name)) if stored is None else stored

    def shape_of(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and type of a column."""
        if name in MEMBER_COLUMNS:
            return (self.num_members,), MEMBER_COLUMNS[name]
        return (len(self), 2) if name == "content" else (len(self),), SAMPLE_COLUMNS[name]


def open_tar_index(path: Path) -> TarIndex:
    """Map an index; one whose numbers point outside its own tables or its tar is refused."""
    return index_of(open_arrays(path, FORMAT))


def index_of(arrays: Arrays) -> TarIndex:
    """Return the index in these arrays, checked."""
    keys, exts, sources = (open_strings(arrays, name) for name in ("key", "ext", "source"))
    num_bytes = arrays.meta.get("num_bytes")
    if not isinstance(num_bytes, int) or num_bytes < 0:
        raise FormatError("its meta lacks num_bytes", path=arrays.path)
    _check_samples(arrays, len(keys))
    _check_members(arrays, len(exts), num_bytes)
    first, offset, size, ext = (arrays[n].data for n in ("first", "offset", "size", "ext"))
    names = tuple(exts)
    made = PlainMemberTable if _members is None else _members.MemberTable
    table: MemberTable = made(first, offset, size, ext, names)
    index = TarIndex(
        arrays, names, tuple(sources), keys, num_bytes, first, offset, size, ext, table
    )
    _check_columns(index)
    return index


class MemberTable(Protocol):
    """Cuts the members of a sample out of their tar, as views or copied.

    A random read costs mostly Python, so this loop over members is compiled where there is a
    compiler; `PlainMemberTable` does the same elsewhere.
    """

    def views(self, number: int, chunk: memoryview, base: int, /) -> dict[str, memoryview]:
        """Return the members of a sample in a chunk that holds the tar's bytes from `base` on."""

    def copies(self, number: int, chunk: memoryview, base: int, /) -> dict[str, bytes]:
        """Return the same as bytes."""


class PlainMemberTable:
    """The table in Python; plain ints come out of a memoryview faster than out of an array."""

    def __init__(
        self,
        first: memoryview,
        offset: memoryview,
        size: memoryview,
        ext: memoryview,
        exts: Sequence[str],
    ) -> None:
        self._first, self._offset, self._size = first, offset, size
        self._ext, self._exts = ext, exts

    def views(self, number: int, chunk: memoryview, base: int) -> dict[str, memoryview]:
        """Return parts of the chunk."""
        if not 0 <= number < len(self._first) - 1:
            raise IndexError(f"sample {number} of {len(self._first) - 1}")
        exts, ext, offset, size = self._exts, self._ext, self._offset, self._size
        return {
            exts[ext[m]]: chunk[(start := offset[m] - base) : start + size[m]]
            for m in range(self._first[number], self._first[number + 1])
        }

    def copies(self, number: int, chunk: memoryview, base: int) -> dict[str, bytes]:
        """Return bytes."""
        return {ext: bytes(view) for ext, view in self.views(number, chunk, base).items()}


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

    @classmethod
    def of(cls, grouped: Grouped) -> IndexRows:
        """Return the rows of the good samples that a walk found."""
        rows, walk, first = cls(), grouped.members, grouped.first
        good = [number for number in range(len(grouped.keys)) if number not in grouped.problems]
        members = [n for number in good for n in range(first[number], first[number + 1])]
        rows.keys = [encoded(grouped.keys[number]) for number in good]
        rows.start = [walk.starts[first[number]] for number in good]
        rows.first += accumulate(first[number + 1] - first[number] for number in good)
        rows.offset = [walk.offsets[n] for n in members]
        rows.size = [walk.sizes[n] for n in members]
        rows.ext = [rows.exts.setdefault(grouped.exts[n], len(rows.exts)) for n in members]
        return rows

    def __len__(self) -> int:
        return len(self.keys)

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
        self.keys.append(encoded(key))
        self.start.append(start)
        self.ext += [table.setdefault(ext, len(table)) for ext in exts]
        self.offset += [start + offset for offset in offsets]
        self.size += sizes
        self.first.append(len(self.offset))

    def describe(
        self, sizes: Sequence[MediaSize | None], text_chars: int, content: int, source: str
    ) -> None:
        """Give the columns of the sample added last: one media size for each of its members."""
        first = self.first[-2]
        self.media.update((first + i, size) for i, size in enumerate(sizes) if size is not None)
        self.text_chars.append(text_chars)
        self.content.append(content)
        self.source.append(self.sources.setdefault(source, len(self.sources)))

    def write(self, path: Path, *, end: int, num_bytes: int) -> None:
        """Write the index; the last sample ends at `end`, the tar at `num_bytes`."""
        arrays = self.arrays(path, end=end, num_bytes=num_bytes)
        with path.open("wb") as file:
            write_arrays(file, FORMAT, arrays.arrays, arrays.meta)

    def arrays(self, path: Path, *, end: int, num_bytes: int) -> Arrays:
        """Return what `write` writes; `path` is for messages."""
        if len(self.exts) > MAX_TABLE or len(self.sources) > MAX_TABLE:
            raise FormatError(
                f"has {len(self.exts)} different extensions and {len(self.sources)} sources, more "
                f"than {MAX_TABLE}: are there dots in the keys?",
                path=path,
            )
        return Arrays(
            path, FORMAT, {"num_bytes": num_bytes}, {**self._places(end), **self._columns()}
        )

    def _places(self, end: int) -> dict[str, NDArray[Any]]:
        return {
            "start": np.array([*self.start, end], np.uint64),
            "first": np.array(self.first, np.uint64),
            "offset": np.array(self.offset, np.uint64),
            "size": np.array(self.size, np.uint64),
            "ext": np.array(self.ext, np.uint16),
            **pack_strings("ext", map(encoded, self.exts)),
            **pack_strings("key", self.keys),
            **pack_strings("source", map(encoded, self.sources or ("",))),
            **hash_columns(self.keys),
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


class IndexedTar(TarWriter):
    """Writes samples to a tar and, when it ends, the index beside it."""

    def __init__(self, path: Path, index_path: Path) -> None:
        super().__init__(path)
        self.rows, self._index_path = IndexRows(), index_path

    def append(self, sample: TarSample) -> int:
        start = super().append(sample)
        self.rows.add(sample.key, start, sample.exts, sample.offsets, sample.sizes)
        return start

    def close(self) -> None:
        end = self.num_bytes
        super().close()
        self.rows.write(self._index_path, end=end, num_bytes=self.num_bytes)


def cut_tar(
    tar_path: Path, index_path: Path, keep: NDArray[np.bool_], new_tar: Path, new_index: Path
) -> None:
    """Write the samples that are kept to a new tar and its index."""
    index = open_tar_index(index_path)
    if tar_path.stat().st_size != index.num_bytes:
        raise FormatError(f"does not have the {index.num_bytes} bytes of its index", path=tar_path)
    num_bytes = _copy_samples(tar_path, index, keep, new_tar)
    meta = {**index.arrays.meta, "num_bytes": num_bytes}
    with new_index.open("wb") as file:
        write_arrays(file, FORMAT, _cut_arrays(index, keep), meta)


def _copy_samples(tar_path: Path, index: TarIndex, keep: NDArray[np.bool_], new_tar: Path) -> int:
    start = index.arrays["start"].astype(np.int64)
    with tar_path.open("rb") as source, new_tar.open("wb", buffering=0) as target:
        for first, count in spans_of(keep).tolist():
            _copy(source.fileno(), int(start[first]), int(start[first + count]), target.fileno())
        target.write(END_OF_TAR)
        return target.tell()


def _copy(source: int, start: int, end: int, target: int) -> None:
    while start < end:
        copied = os.sendfile(target, source, start, min(end - start, COPY_BYTES))
        if copied == 0:
            raise OSError(f"the tar ends {end - start} bytes too early")
        start += copied


def _cut_arrays(index: TarIndex, keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    arrays = index.arrays
    first, start = (arrays[name].astype(np.int64) for name in ("first", "start"))
    counts, sizes = np.diff(first), np.diff(start)
    of_member = np.repeat(keep, counts)
    new_start = np.concatenate([[0], np.cumsum(sizes[keep])])
    # How far each kept sample moves up, for each of its members.
    moved = np.repeat(start[:-1][keep] - new_start[:-1], counts[keep])
    order = arrays["hash_order"].astype(np.int64)
    cut = {
        "start": new_start.astype(np.uint64),
        "first": np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.uint64),
        "offset": (arrays["offset"][of_member].astype(np.int64) - moved).astype(np.uint64),
        **pack_strings("key", [bytes(index.keys.raw(n)) for n in np.flatnonzero(keep).tolist()]),
        "hash": arrays["hash"][keep[order]],
        "hash_order": (np.cumsum(keep) - 1)[order[keep[order]]].astype(np.uint32),
    }
    return {name: cut[name] if name in cut else _cut_column(index, name, keep, of_member)
            for name in arrays}  # fmt: skip


def _cut_column(
    index: TarIndex, name: str, keep: NDArray[np.bool_], of_member: NDArray[np.bool_]
) -> NDArray[Any]:
    column = index.arrays[name]
    if name in ("size", "ext", *MEMBER_COLUMNS):
        return column[of_member]
    is_table = name.endswith(("_bytes", "_bounds"))
    return column if is_table else column[keep]


def _check_samples(arrays: Arrays, num_samples: int) -> None:
    first = check_bounds(arrays, "first", len(arrays["offset"]), num_samples)
    start = arrays.checked("start", np.uint64, num_samples + 1)
    arrays.checked("hash", np.uint64, num_samples)
    order = arrays.checked("hash_order", np.uint32, num_samples)
    if (first[1:] == first[:-1]).any():
        raise FormatError("a sample has no members", path=arrays.path)
    if (start[1:] < start[:-1]).any() or (order >= num_samples).any():
        raise FormatError("its samples are not in order", path=arrays.path)


def _check_members(arrays: Arrays, num_exts: int, num_bytes: int) -> None:
    offset = arrays.checked("offset", np.uint64, None)
    size = arrays.checked("size", np.uint64, len(offset))
    ext = arrays.checked("ext", np.uint16, len(offset))
    if (ext >= num_exts).any():
        raise FormatError("a member has an extension that is not in its table", path=arrays.path)
    # size <= num_bytes - offset, written so that nothing can wrap around.
    outside = (offset > num_bytes) | (size > num_bytes - np.minimum(offset, num_bytes))
    if outside.any() or (offset[1:] < offset[:-1] + size[:-1]).any():
        raise FormatError(
            f"a member lies outside the {num_bytes} bytes of the tar", path=arrays.path
        )


def _check_columns(index: TarIndex) -> None:
    for name in (*MEMBER_COLUMNS, *SAMPLE_COLUMNS):
        if name in index.arrays:
            shape, dtype = index.shape_of(name)
            index.arrays.checked(name, dtype, *shape)
    if len(index) and int(index.column("source").max()) >= len(index.sources):
        raise FormatError("a sample has a source that is not in its table", path=index.arrays.path)
