"""Text tables: one row a line (jsonl, plain text), JSON arrays, csv and tsv.

Rows of lines are numbered like lines, from 0; blank lines have a number but are no rows, and a
last line without newline counts. A line longer than the limit is found and passed over in small
pieces, never held in memory.

A csv row may span lines inside quotes, so the csv module itself finds the ends. Lines are decoded
with `surrogateescape`: a byte that is not UTF-8 spoils its own row only. A row that does not end
within the limit (a quote that is never closed) stops the file, because nothing after it can be
trusted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.sources.tables.jsonscan import Elements
from shardmill.sources.tables.stream import (
    ByteReader,
    TableRecord,
    TableSlice,
    cut,
    open_stream,
    too_long,
)

DELIMITERS = {"csv": ",", "tsv": "\t"}
BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A text table of format "jsonl", "array", "csv", "tsv" or "txt".

    The first record begins at or after `data_offset`: behind a byte order mark or a header line.
    """

    path: Path
    format: str
    max_row_bytes: int
    columns: tuple[str, ...] = ()
    data_offset: int = 0

    def records(
        self, file: ByteReader, number: int, offset: int, *, inside: bool
    ) -> Iterator[TableRecord]:
        """Yield the records of a file or span that stands at record `number`."""
        if self.format in ("jsonl", "txt"):
            return line_records(file, number, offset, self.max_row_bytes)
        if self.format == "array":
            elements = Elements(file, offset, self.max_row_bytes, self.path)
            return elements.records(number, inside=inside)
        delimiter = DELIMITERS[self.format]
        return delimited_records(file, number, offset, self.max_row_bytes, self.path, delimiter)

    def fields(self, record: TableRecord) -> Mapping[str, Any]:
        """Return the fields of a record, or raise the `SampleError` that it deserves."""
        if record.problem is not None:
            raise record.problem
        if self.format == "txt":
            return text_fields(record)
        if self.format in DELIMITERS:
            return delimited_fields(record, self.columns)
        return json_fields(record)

    def slices(self, per_slice: int) -> Iterator[TableSlice]:
        """Stream the file once and yield its slices."""
        with open_stream(self.path) as file:
            file.read(self.data_offset)
            yield from cut(self.records(file, 0, self.data_offset, inside=False), per_slice)


def open_table(path: Path, format: str, columns: tuple[str, ...], max_row_bytes: int) -> TextTable:
    """Return the table with what its beginning tells: array or lines, the names of the columns.

    A csv has a header line unless its columns are given.
    """
    with open_stream(path) as file:
        mark = len(BYTE_ORDER_MARK) if _peek(file, 3) == BYTE_ORDER_MARK else 0
        file.read(mark)
        if format == "json":
            format = _json_format(file, path, max_row_bytes)
        elif format in DELIMITERS and not columns:
            table = TextTable(path=path, format=format, max_row_bytes=max_row_bytes)
            columns, mark = _header(table, file, mark)
    return TextTable(
        path=path,
        format=format,
        max_row_bytes=max_row_bytes,
        columns=columns,
        data_offset=mark,
    )


def _header(table: TextTable, file: BinaryIO, offset: int) -> tuple[tuple[str, ...], int]:
    header = next(table.records(file, 0, offset, inside=False), None)
    if header is None:
        return (), offset
    if header.problem is not None or len(set(header.cells or ())) != len(header.cells or ()):
        raise FormatError(
            "its first line does not name the columns, each once: give the names of its columns "
            "if it has no header",
            path=table.path,
            offset=header.offset,
        )
    return tuple(header.cells or ()), header.offset + header.num_bytes


def _json_format(file: BinaryIO, path: Path, max_row_bytes: int) -> str:
    """Return "array" or "jsonl" for what a .json file begins with."""
    first = b""
    while (byte := file.read(1)) and not first.strip(BLANK):
        first = byte
    if first == b"[":
        return "array"
    line = first + byte + file.readline(max_row_bytes)
    rest = file.read(1 << 16).strip(BLANK)
    if first.strip(BLANK) and not rest.startswith(b"{") and _is_no_row(line, rest):
        raise FormatError(
            "is one JSON object, not rows: give a JSON array of objects, or one object a line "
            "(an object of columns is read with --source columns)",
            path=path,
            offset=0,
        )
    return "jsonl"


def _is_no_row(line: bytes, rest: bytes) -> bool:
    """Say whether a first line, with no row after it, is columns or only begins an object."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return bool(rest)
    return isinstance(value, dict) and all(isinstance(v, list | dict) for v in value.values())


def _peek(file: BinaryIO, size: int) -> bytes:
    return file.peek(size)[:size]  # type: ignore[attr-defined,no-any-return]


def line_records(
    file: ByteReader, number: int, offset: int, max_bytes: int
) -> Iterator[TableRecord]:
    """Yield a record for each line that is not blank; the file stands at line `number`."""
    while line := file.readline(max_bytes + 1):
        start, size = offset, len(line)
        whole = size <= max_bytes or line.endswith(b"\n")
        while not line.endswith(b"\n") and not whole and (line := file.readline(PIECE)):
            size += len(line)
        offset += size
        if not whole:
            yield too_long(TableRecord(number, start, size), max_bytes)
        elif line.strip(BLANK):
            yield TableRecord(number, start, size, line)
        number += 1


def json_fields(record: TableRecord) -> dict[str, Any]:
    """Return the JSON object of a record."""
    return json_object(record.raw, record.place, record.offset)


def json_object(raw: bytes, where: str, offset: int = 0) -> dict[str, Any]:
    """Return a JSON object; NaN, which Python writes, becomes None.

    Anything else is a `SampleError` that says `where` it was, and counts bytes from `offset`.
    """
    value = _parse(raw, where, offset)
    if not isinstance(value, dict):
        raise SampleError("row is not an object", f"{where} is a {type(value).__name__}")
    return value


def text_fields(record: TableRecord) -> dict[str, Any]:
    """Return a line of plain text as the field `text`."""
    return {"text": decode_text(record.raw, record.place, record.offset).rstrip("\r\n")}


def _parse(raw: bytes, where: str, offset: int) -> Any:
    # orjson is several times faster, but knows no NaN: then, and only then, json has a look.
    try:
        return orjson.loads(raw.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        text = decode_text(raw, where, offset)
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise SampleError("not JSON", f"{where}: {error}") from error
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise SampleError("not JSON", f"{where}: {error}") from error


def decode_text(raw: bytes, where: str, offset: int = 0) -> str:
    """Return UTF-8 without its mark, or raise a `SampleError` like that of `json_object`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from behind the mark.
        mark = len(raw) - len(raw.removeprefix(BYTE_ORDER_MARK))
        at = offset + mark + error.start
        raise SampleError("not UTF-8", f"{where}: byte {at}: {error.reason}") from error


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
) -> Iterator[TableRecord]:
    """Yield a record for each row that has cells; the file stands at row `number`."""
    # The csv module's own limit on a field (128 KB) is process-wide and would refuse long texts;
    # the limit on a row is checked by _Lines.
    csv.field_size_limit(max(max_bytes, csv.field_size_limit()))
    lines = _Lines(file, offset, max_bytes, path)
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        cells: list[str] | None = None
        problem = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = str(error)
        start, raw = lines.take()
        record = TableRecord(number, start, len(raw), raw, cells)
        if problem is not None:
            record.problem = SampleError("not csv", f"{record.place}: {problem}")
        elif not cells:
            continue
        yield record
        number += 1


def delimited_fields(record: TableRecord, columns: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a record by the names of the columns."""
    cells = record.cells or []
    if len(cells) != len(columns):
        detail = f"{record.place} has {len(cells)} cells, the table has {len(columns)} columns"
        raise SampleError("wrong number of cells", detail)
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise SampleError("not UTF-8", record.place) from error
    return dict(zip(columns, cells))
