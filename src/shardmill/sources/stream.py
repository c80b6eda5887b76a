"""The bytes of a table file: decompressed by suffix, cut into records, and open between parts.

A compressed file (.gz, .zst) has no random access: `Streams` remembers where it stands and skips
forward, so that a worker that takes parts in order decompresses a file once, not once a part.
A `TableRecord` is where one row lies. The same function finds the records when a file is listed and
when a slice of it is read, so the two cannot disagree.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from shardmill.errors import FormatError, SampleError, need

COMPRESSIONS = (".gz", ".zst")
# A slice this small inflates to at most 64 MB, even if it was made to be a bomb (zstd can say
# "128 KB of zeros" in four bytes).
SLICE = 2048
SKIP = 1 << 20  # read and dropped at a time on the way to an offset
BUFFER = 1 << 18


class Inflated(io.RawIOBase):
    """The content of a compressed file, frame after frame; a file that ends early is an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._make, self._error = _codec(path)
        self._engine: Any = None
        self._is_between = False
        self._pending = memoryview(b"")
        self._compressed = b""
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            if not self._advance():
                return 0
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        self._position += count
        return count

    def _advance(self) -> bool:
        """Inflate one slice into `_pending`; False at the end of the file."""
        while not self._compressed and (read := self._file.read(SLICE)):
            # gzip files may be padded with zeros after their last member.
            self._compressed = read.lstrip(b"\0") if self._is_between else read
        if not self._compressed:
            if self._engine is not None:
                raise self._broken("ends in the middle of its compressed data")
            return False
        if self._engine is None:
            self._engine, self._is_between = self._make(), False
        try:
            self._pending = memoryview(self._engine.decompress(self._compressed))
        except self._error as error:
            kind = "zstd" if self._path.suffix.lower() == ".zst" else "gzip"
            raise self._broken(f"cannot be decompressed as {kind}: {error}") from error
        self._compressed = b""
        if self._engine.eof:
            self._compressed = self._engine.unused_data.lstrip(b"\0")
            self._engine, self._is_between = None, True
        return True

    def _broken(self, problem: str) -> FormatError:
        return FormatError(problem, path=self._path, offset=self._file.tell())


def open_stream(path: Path) -> BinaryIO:
    """Open a file for reading what it holds, decompressed by its suffix."""
    try:
        if path.suffix.lower() in COMPRESSIONS:
            return io.BufferedReader(Inflated(path), BUFFER)
        return path.open("rb", buffering=BUFFER)
    except OSError as error:
        raise FormatError(f"cannot be opened: {error.strerror}", path=path) from error


@dataclass(slots=True)
class Streams:
    """One open file that moves to any offset: back only if it must, forward cheaply."""

    path: Path | None = None
    file: BinaryIO | None = None

    def at(self, path: Path, offset: int) -> BinaryIO:
        """Return the stream of `path`, standing at `offset` of its decompressed content."""
        # A compressed file can only go on; to go back means to inflate it from the beginning.
        seekable = path.suffix.lower() not in COMPRESSIONS
        if self.file is None or path != self.path or (self.file.tell() > offset and not seekable):
            self.close()
            self.path, self.file = path, open_stream(path)
        if seekable:
            self.file.seek(offset)
        else:
            _skip(self.file, offset - self.file.tell(), path)
        return self.file

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self.file is not None:
            self.file.close()
        self.path = self.file = None


class Span:
    """The next `num_bytes` of a stream, so that reading a part never takes from the next one."""

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._file, self._left = file, num_bytes

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, empty at the end of the span."""
        return self._took(self._file.read(min(size, self._left)))

    def readline(self, size: int) -> bytes:
        """Return the next line or its first `size` bytes, empty at the end of the span."""
        return self._took(self._file.readline(min(size, self._left)))

    def _took(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data


class ByteReader(Protocol):
    """What records are found in: a file, or a span of one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, empty at the end."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line or its first `size` bytes, empty at the end."""


@dataclass(slots=True)
class TableRecord:
    """A record by its number in the file and its bytes; one without bytes has a problem."""

    number: int
    offset: int
    num_bytes: int
    raw: bytes = b""
    cells: list[str] | None = None
    problem: SampleError | None = None

    @property
    def place(self) -> str:
        """Where the record is, as messages say it."""
        return f"row {self.number + 1} at byte {self.offset}"


@dataclass(slots=True)
class TableSlice:
    """Neighbouring records: the bytes from the first to the last, and their checksum."""

    number: int
    offset: int
    end: int = 0
    num_rows: int = 0
    checksum: Any = field(default_factory=xxhash.xxh3_64)

    def add(self, record: TableRecord) -> None:
        """Let the slice end with this record."""
        self.end = record.offset + record.num_bytes
        self.num_rows += 1
        self.checksum.update(record.raw)


def cut(records: Iterable[TableRecord], per_slice: int) -> Iterator[TableSlice]:
    """Yield slices of `per_slice` records; the last one may be shorter."""
    current: TableSlice | None = None
    for record in records:
        if current is None:
            current = TableSlice(record.number, record.offset)
        current.add(record)
        if current.num_rows == per_slice:
            yield current
            current = None
    if current is not None:
        yield current


def too_long(record: TableRecord, max_bytes: int) -> TableRecord:
    """Return the record with the problem that it is longer than the limit."""
    detail = f"{record.place}: {record.num_bytes} bytes, the limit is {max_bytes}"
    record.problem = SampleError("row too long", detail)
    return record


def _skip(file: BinaryIO, num_bytes: int, path: Path) -> None:
    while num_bytes > 0:
        skipped = len(file.read(min(SKIP, num_bytes)))
        if not skipped:
            raise FormatError("is shorter than when it was listed", path=path, offset=file.tell())
        num_bytes -= skipped


def _codec(path: Path) -> tuple[Callable[[], Any], type[Exception]]:
    """Return what makes a decompressor of one frame, and the error of broken data."""
    if path.suffix.lower() != ".zst":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    zstandard = need("zstandard", extra="tables")
    return (
        lambda: zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(),
        zstandard.ZstdError,
    )
