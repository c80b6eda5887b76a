"""Writes deterministic WebDataset tars: the same samples give the same bytes.

By hand because it takes less than a third of the CPU time of `tarfile` and a sixth of
`webdataset.TarWriter` (benchmarks/write_tars.py): headers, contents and padding are handed to the
kernel as they are, in one `writev` for about a thousand pieces or 1 MiB, so that no content is
copied in Python. Two zero blocks end the tar.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from shardmill.errors import SampleError
from shardmill.shards.tar.header import (
    END_OF_TAR,
    Layout,
    check_ext,
    check_key,
    member_header,
    member_name,
    padded,
    padding,
)

Content: TypeAlias = bytes | memoryview
# Linux takes at most 1024 pieces by one `writev`; a sample adds three for each member.
MAX_PIECES = 1020
MAX_BATCH_BYTES = 1 << 20


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
    ) -> None:
        """Append a sample: (extension, content) pairs in order."""
        self.append(lay_out_sample(key, members, layout))

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

    def __exit__(self, kind: object, *_: object) -> None:
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
