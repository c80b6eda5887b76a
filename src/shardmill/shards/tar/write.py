"""Writes deterministic WebDataset tars: the same samples give the same bytes.

By hand because it takes less than a third of the CPU time of `tarfile` and a sixth of
`webdataset.TarWriter` (benchmarks/write_tars.py): headers, contents and padding are handed to the
kernel as they are, in one `writev` for about a thousand pieces or 1 MiB, so that no content is
copied in Python. Two zero blocks end the tar.

`cut_tar` writes a tar without some of its samples. The others keep their bytes, header for header:
runs of neighbours are copied by the kernel, and nothing is parsed. The index loses the same rows,
and its offsets move up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError, SampleError
from shardmill.model.tokenrow import spans_of
from shardmill.shards.arrays import write_arrays
from shardmill.shards.columns import pack_strings
from shardmill.shards.tar.header import END_OF_TAR, member_header, padded, padding
from shardmill.shards.tar.index import FORMAT, MEMBER_COLUMNS, TarIndex, open_tar_index
from shardmill.shards.tar.names import Layout, check_ext, check_key, member_name

Content: TypeAlias = bytes | memoryview
MAX_PIECES = 1020
MAX_BATCH_BYTES = 1 << 20
COPY_BYTES = 1 << 30


class TarSample(NamedTuple):
    """A sample that is checked and laid out; offsets count from its own first header."""

    key: str
    names: tuple[str, ...]
    exts: tuple[str, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    pieces: tuple[Content, ...]
    num_bytes: int


def lay_out_sample(
    key: str, members: Iterable[tuple[str, Content]], layout: Layout = "dotted"
) -> TarSample:
    """Lay out a sample: (extension, content) pairs in order; a bad name is a `SampleError`."""
    check_key(key)
    exts, names, offsets, sizes = [], [], [], []
    pieces: list[Content] = []
    position = 0
    for ext, given in members:
        check_ext(ext)
        content = _frozen(given)
        name, size = member_name(key, ext, layout), len(content)
        header = member_header(name.encode(), size)
        pieces += (header, content, padding(size))
        position += len(header)
        exts.append(ext)
        names.append(name)
        offsets.append(position)
        sizes.append(size)
        position += padded(size)
    if len(set(exts)) != len(exts) or not exts:
        raise SampleError("duplicate member" if exts else "empty sample", f"{key!r} has {exts}")
    return TarSample(
        key, tuple(names), tuple(exts), tuple(offsets), tuple(sizes), tuple(pieces), position
    )


class TarWriter:
    """Writes samples to one tar; use as a context manager, which ends the tar on success."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        # Keys have no dot and member names have one, so one set holds both.
        self._taken: set[str] = set()
        self._pieces: list[Content] = []
        self._pending_bytes = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def add(
        self, key: str, members: Iterable[tuple[str, Content]], layout: Layout = "dotted"
    ) -> tuple[int, TarSample]:
        """Append a sample; return the offset of its first header and its layout from there on."""
        planned = lay_out_sample(key, members, layout)
        return self.append(planned), planned

    def append(self, sample: TarSample) -> int:
        """Append a planned sample and return its offset; a key twice is a `SampleError`."""
        self._take_names(sample)
        start = self.num_bytes
        self._pieces += sample.pieces
        self._pending_bytes += sample.num_bytes
        self.num_bytes += sample.num_bytes
        if len(self._pieces) >= MAX_PIECES or self._pending_bytes >= MAX_BATCH_BYTES:
            self._flush()
        return start

    def close(self) -> None:
        """Write what is pending and the end of the tar."""
        if self._fd < 0:
            return
        try:
            self._pieces.append(END_OF_TAR)
            self.num_bytes += len(END_OF_TAR)
            self._flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is, without an end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _take_names(self, sample: TarSample) -> None:
        if sample.key in self._taken:
            raise SampleError("duplicate key", f"{sample.key!r} is in {self.path.name} already")
        for name in sample.names:
            # In the dashed layout `a-0.jpg` may belong to the keys `a` and `a-0`.
            if name in self._taken:
                raise SampleError("duplicate member", f"{name!r} is in {self.path.name} already")
        self._taken.add(sample.key)
        self._taken.update(sample.names)

    def _flush(self) -> None:
        pieces, num_bytes = self._pieces, self._pending_bytes
        self._pieces, self._pending_bytes = [], 0
        # Samples of ordinary size end a batch soon after its limit: one call writes them all.
        fits = num_bytes < 2 * MAX_BATCH_BYTES and len(pieces) <= MAX_PIECES
        try:
            for batch in [pieces] if fits else _batches(pieces):
                _write_all(self._fd, batch)
        except OSError as error:
            error.filename = str(self.path)
            raise


def _batches(pieces: Iterable[Content]) -> Iterator[list[Content]]:
    batch: list[Content] = []
    room = MAX_BATCH_BYTES
    for piece in pieces:
        rest = piece
        while len(rest) > room or len(batch) == MAX_PIECES:
            view = memoryview(rest)
            yield [*batch, view[:room]]
            batch, rest, room = [], view[room:], MAX_BATCH_BYTES
        batch.append(rest)
        room -= len(rest)
    if batch:
        yield batch


def _write_all(fd: int, pieces: list[Content]) -> None:
    total = sum(map(len, pieces))
    written = os.writev(fd, pieces)
    while written < total:  # a signal, or a disk with little room left
        rest = b"".join(pieces)[written:]
        pieces, total = [rest], len(rest)
        written = os.writev(fd, pieces)


def _frozen(content: Content) -> Content:
    # A buffer that its owner may fill again before the flush must be copied now.
    if isinstance(content, bytes):
        return content
    view = memoryview(content)
    return view.cast("B") if view.readonly and view.contiguous else view.tobytes()


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
