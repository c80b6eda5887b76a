"""Text tables: which records a file holds, its slices, and the fields of a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from shardmill.errors import FormatError
from shardmill.sources.tables.jsonarray import Elements
from shardmill.sources.tables.records import (
    BLANK,
    BYTE_ORDER_MARK,
    ByteReader,
    Record,
    Slice,
    cut,
    delimited_fields,
    delimited_records,
    json_fields,
    line_records,
    text_fields,
)
from shardmill.sources.tables.stream import open_stream

DELIMITERS = {"csv": ",", "tsv": "\t"}


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
    ) -> Iterator[Record]:
        """Yield the records of a file or span that stands at record `number`."""
        if self.format in ("jsonl", "txt"):
            return line_records(file, number, offset, self.max_row_bytes)
        if self.format == "array":
            elements = Elements(file, offset, self.max_row_bytes, self.path)
            return elements.records(number, inside=inside)
        delimiter = DELIMITERS[self.format]
        return delimited_records(file, number, offset, self.max_row_bytes, self.path, delimiter)

    def fields(self, record: Record) -> Mapping[str, Any]:
        """Return the fields of a record, or raise the `SampleError` that it deserves."""
        if record.problem is not None:
            raise record.problem
        if self.format == "txt":
            return text_fields(record)
        if self.format in DELIMITERS:
            return delimited_fields(record, self.columns)
        return json_fields(record)

    def slices(self, per_slice: int) -> Iterator[Slice]:
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
