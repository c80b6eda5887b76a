"""Records of a text table: where each one lies, and how a file is cut into slices of them.

The same function finds the records when a file is listed and when a slice of it is read, so the
two cannot disagree.

One row a line: JSON objects (jsonl) or plain text; a last line without newline counts.

Rows are numbered like lines, from 0; blank lines have a number but are no rows. A line longer than
the limit is found and passed over in small pieces, never held in memory.

csv and tsv: a record may span lines inside quotes, so the csv module itself finds the ends.

Lines are decoded with `surrogateescape`: a byte that is not UTF-8 spoils its own row only. A
record that does not end within the limit (a quote that is never closed) stops the file, because
nothing after it can be trusted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
import xxhash

from shardmill.errors import FormatError, SampleError


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


BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE = 1 << 20


def line_records(file: ByteReader, number: int, offset: int, max_bytes: int) -> Iterator[Record]:
    """Yield a record for each line that is not blank; the file stands at line `number`."""
    while line := file.readline(max_bytes + 1):
        start, size = offset, len(line)
        whole = size <= max_bytes or line.endswith(b"\n")
        while not line.endswith(b"\n") and not whole and (line := file.readline(PIECE)):
            size += len(line)
        offset += size
        if not whole:
            yield too_long(Record(number, start, size), max_bytes)
        elif line.strip(BLANK):
            yield Record(number, start, size, line)
        number += 1


def json_fields(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record; NaN, which Python writes, becomes None."""
    value = _parse(record)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise SampleError("row is not an object", f"{place(record)} is a {kind}")
    return value


def text_fields(record: Record) -> dict[str, Any]:
    """Return a line of plain text as the field `text`."""
    return {"text": _decode(record).rstrip("\r\n")}


def _parse(record: Record) -> Any:
    raw = record.raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        text = _decode(record)
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise SampleError("not JSON", f"{place(record)}: {error}") from error
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise SampleError("not JSON", f"{place(record)}: {error}") from error


def _decode(record: Record) -> str:
    raw = record.raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        at = record.offset + len(record.raw) - len(raw) + error.start
        raise SampleError("not UTF-8", f"{place(record)}: byte {at}: {error.reason}") from error


class _Lines:
    """Feeds lines to the csv reader and remembers the bytes of the record being read."""

    def __init__(self, file: ByteReader, offset: int, max_bytes: int, path: Path) -> None:
        self._file, self._max_bytes, self._path = file, max_bytes, path
        self.offset, self.raw = offset, b""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._max_bytes + 1)
        if not line:
            raise StopIteration
        if len(self.raw) + len(line) > self._max_bytes:
            raise FormatError(
                f"has a row longer than {self._max_bytes} bytes: is a quote not closed?",
                path=self._path,
                offset=self.offset,
            )
        self.raw += line
        if self.offset == 0 and len(self.raw) == len(line):
            line = line.removeprefix(BYTE_ORDER_MARK)
        return line.decode("utf-8", "surrogateescape")

    def take(self) -> tuple[int, bytes]:
        """Return offset and bytes of the lines fed since the last call."""
        offset, raw = self.offset, self.raw
        self.offset, self.raw = offset + len(raw), b""
        return offset, raw


def delimited_records(
    file: ByteReader, number: int, offset: int, max_bytes: int, path: Path, delimiter: str
) -> Iterator[Record]:
    """Yield a record for each row that has cells; the file stands at row `number`."""
    # The csv module's own limit on a field (128 KB) is process-wide and would refuse long texts;
    # the limit on a row is checked by _Lines.
    csv.field_size_limit(max(max_bytes, csv.field_size_limit()))
    lines = _Lines(file, offset, max_bytes, path)
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        cells, problem = _next_row(reader)
        start, raw = lines.take()
        if cells is None and problem is None:
            return
        record = Record(number, start, len(raw), raw, cells)
        if problem is not None:
            record.problem = SampleError("not csv", f"{place(record)}: {problem}")
        elif not cells:
            continue
        yield record
        number += 1


def delimited_fields(record: Record, columns: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a record by the names of the columns."""
    cells = record.cells or []
    if len(cells) != len(columns):
        detail = f"{place(record)} has {len(cells)} cells, the table has {len(columns)} columns"
        raise SampleError("wrong number of cells", detail)
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise SampleError("not UTF-8", place(record)) from error
    return dict(zip(columns, cells))


def _next_row(reader: Iterator[list[str]]) -> tuple[list[str] | None, str | None]:
    try:
        return next(reader), None
    except StopIteration:
        return None, None
    except csv.Error as error:
        return None, str(error)
