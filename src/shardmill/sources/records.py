"""Records of a text table: where each one lies, and how a file is cut into slices of them.

The same function finds the records when a file is listed and when a slice of it is read, so the
two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import xxhash

from shardmill.errors import SampleError


@dataclass(slots=True)
class Record:
    """A record by its number in the file and its bytes; one without bytes has a problem."""

    number: int
    offset: int
    num_bytes: int
    raw: bytes = b""
    cells: list[str] | None = None
    problem: SampleError | None = None


@dataclass(slots=True)
class Slice:
    """Neighbouring records: the bytes from the first to the last, and their checksum."""

    number: int
    offset: int
    end: int = 0
    num_rows: int = 0
    checksum: Any = field(default_factory=xxhash.xxh3_64)

    def add(self, record: Record) -> None:
        """Let the slice end with this record."""
        self.end = record.offset + record.num_bytes
        self.num_rows += 1
        self.checksum.update(record.raw)


class ByteReader(Protocol):
    """What records are found in: a file, or a span of one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, empty at the end."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line or its first `size` bytes, empty at the end."""


def cut(records: Iterable[Record], per_slice: int) -> Iterator[Slice]:
    """Yield slices of `per_slice` records; the last one may be shorter."""
    current: Slice | None = None
    for record in records:
        if current is None:
            current = Slice(record.number, record.offset)
        current.add(record)
        if current.num_rows == per_slice:
            yield current
            current = None
    if current is not None:
        yield current


def too_long(record: Record, max_bytes: int) -> Record:
    """Return the record with the problem that it is longer than the limit."""
    detail = f"{place(record)}: {record.num_bytes} bytes, the limit is {max_bytes}"
    record.problem = SampleError("row too long", detail)
    return record


def place(record: Record) -> str:
    """Return where a record is, as messages say it."""
    return f"row {record.number + 1} at byte {record.offset}"
