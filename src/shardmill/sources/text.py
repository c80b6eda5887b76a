"""Text tables: one row a line (jsonl, plain text), JSON arrays, csv and tsv.

Rows of lines are numbered like lines, from 0; blank lines have a number but are no rows, and a
last line without newline counts. A run of blank lines without end, which a small file may inflate
to, is an error. A line longer than the limit is found and passed over in small
pieces, never held in memory.

A csv row may span lines inside quotes, so the csv module itself finds the ends. Lines are decoded
with `surrogateescape`: a byte that is not UTF-8 spoils its own row only. A row that does not end
within the limit (a quote that is never closed) stops the file, because nothing after it can be
trusted.

JSON arrays and objects of columns are streamed: only the element at hand is in memory. The text is
decoded as latin-1, in which every byte is one character, so that the positions of Python's own JSON
scanner are byte offsets. An element that does not end inside the window makes the window grow up to
the limit, and one beyond the limit is passed over in pieces. The elements are parsed for real, as
UTF-8, when they are read.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.sources.stream import (
    ByteReader,
    TableRecord,
    TableSlice,
    cut,
    open_stream,
    too_long,
)
from shardmill.storage.text import mistaken_for

DELIMITERS = {"csv": ",", "tsv": "\t"}
BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WINDOW = 1 << 16
NAME = re.compile(r'"(\w+)"\s*:\s*[\[{]')
HEAD_BYTES = 256  # tell what else a file may be
PIECE = 1 << 20
MARKS = re.compile(r'["\\\[\]{}]')
SPACE = " \t\r\n"
SPACES = re.compile(f"[{SPACE}]*")
MAX_BLANK_LINES = 1_000_000  # in a row: no table has as many, a file of 1 KB may inflate to them
# Behind an element of an array; and behind names and values of an object of columns.
AFTER_ELEMENT = frozenset(SPACE + ",]}:")
DECODER = json.JSONDecoder()


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
            return line_records(file, number, offset, self.max_row_bytes, self.path)
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
        what = mistaken_for(_peek(file, HEAD_BYTES))
        if what and format != "txt":
            raise FormatError(f"is {what}", path=path)
        mark = len(BYTE_ORDER_MARK) if _peek(file, 3) == BYTE_ORDER_MARK else 0
        file.read(mark)
        # People name lists of rows jsonl, too; no row of lines begins with a bracket.
        if format == "json" or (format == "jsonl" and _peek(file, 1) == b"["):
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
    while (piece := _peek(file, WINDOW)) and not piece.strip(BLANK):
        file.read(len(piece))
    file.read(len(piece) - len(piece.lstrip(BLANK)))
    line = file.readline(max_row_bytes)
    if line.startswith(b"["):
        return "array"
    rest = file.read(1 << 16).strip(BLANK)
    if line and not rest.startswith(b"{") and _is_no_row(line, rest):
        names = ", ".join(NAME.findall((line + rest)[:HEAD_BYTES].decode(errors="replace")))
        raise FormatError(
            f"is one JSON object ({names}, ...), not rows: give a JSON array of objects, or one "
            "object a line (an object of columns is read with --source columns)",
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
    file: ByteReader, number: int, offset: int, max_bytes: int, path: Path
) -> Iterator[TableRecord]:
    """Yield a record for each line that is not blank; the file stands at line `number`."""
    num_blank = 0
    while line := file.readline(max_bytes + 1):
        start, size = offset, len(line)
        whole = size <= max_bytes or line.endswith(b"\n")
        while not line.endswith(b"\n") and not whole and (line := file.readline(PIECE)):
            size += len(line)
        offset += size
        num_blank = 0 if not whole or line.strip(BLANK) else num_blank + 1
        if not whole:
            yield too_long(TableRecord(number, start, size), max_bytes)
        elif not num_blank:
            yield TableRecord(number, start, size, line)
        elif num_blank > MAX_BLANK_LINES:
            raise _too_blank(path, start)
        number += 1


def _too_blank(path: Path, offset: int) -> FormatError:
    problem = f"has more than {MAX_BLANK_LINES:,} blank lines in a row: is it damaged?"
    return FormatError(problem, path=path, offset=offset)


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
    num_blank = 0
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
            num_blank += 1
            if num_blank > MAX_BLANK_LINES:
                raise _too_blank(path, start)
            continue
        num_blank = 0
        yield record
        number += 1


def delimited_fields(record: TableRecord, columns: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a record by the names of the columns."""
    cells = record.cells or []
    if len(cells) != len(columns):
        detail = f"{record.place} has {len(cells)} cells, the table has {len(columns)} columns"
        raise SampleError("wrong number of cells", detail)
    try:
        # Bytes that are no UTF-8 were read as lone surrogates, which cannot be encoded.
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise SampleError("not UTF-8", record.place) from error
    return dict(zip(columns, cells))


class Brackets:
    """Finds the end of an object, array or string that comes in pieces, without parsing it."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def feed(self, text: str) -> int | None:
        """Return where the element ends in this piece, or None."""
        skip = 1 if self._is_escaped else 0
        self._is_escaped = False
        for found in MARKS.finditer(text):
            at, mark = found.start(), found[0]
            if at < skip:
                continue
            if self._in_string and mark == "\\":
                skip = at + 2
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0)
            if self._depth == 0 and not self._in_string:
                return at + 1
        self._is_escaped = skip > len(text)
        return None


class Cell(NamedTuple):
    """A cell: its key, "" in an array; where key and value begin; and the value's bytes."""

    key: str
    start: int
    record: TableRecord

    @property
    def end(self) -> int:
        """Where its value ends."""
        return self.record.offset + self.record.num_bytes


class Elements:
    """The elements of an array or of columns, found one after the other from any element on."""

    def __init__(self, file: ByteReader, offset: int, max_bytes: int, path: Path) -> None:
        self._file, self._max_bytes, self._path = file, max_bytes, path
        self._text, self._at, self._base = "", 0, offset
        self._at_end = False

    def records(self, number: int, *, inside: bool) -> Iterator[TableRecord]:
        """Yield the elements; `inside` means that the file stands inside of the array already."""
        if not inside:
            self._expect("[")
        first = True
        while self._peek() not in ("]", ""):
            if not first:
                self._expect(",")
            yield self._element(number)
            number, first = number + 1, False
        if not inside:
            self._expect("]")
            if self._peek():
                raise self._broken("has more text after the end of its array")

    def all_columns(self) -> Iterator[tuple[str, bool, Cell]]:
        """Yield the cells of all columns as (name of the column, whether cells have keys, cell)."""
        self._expect("{")
        while self._peek() != "}":
            name = self._name()
            is_keyed = self._peek() == "{"
            self._expect("{" if is_keyed else "[")
            for cell in self.cells(is_keyed=is_keyed):
                yield name, is_keyed, cell
            self._expect("}" if is_keyed else "]")
            self._pass_comma("}")
        self._expect("}")

    def cells(self, *, is_keyed: bool) -> Iterator[Cell]:
        """Yield the cells of a column up to its end, or to the end of the file."""
        end = "}" if is_keyed else "]"
        number = 0
        while self._peek() not in (end, ""):
            start = self._base + self._at
            key = self._name() if is_keyed else ""
            yield Cell(key, start, self._element(number))
            self._pass_comma(end)
            number += 1

    def _name(self) -> str:
        """Return the next string, which a colon follows."""
        record = self._element(0)
        self._expect(":")
        try:
            name = orjson.loads(record.raw)
        except orjson.JSONDecodeError as error:
            raise self._broken(f"has a name that is not JSON: {error}") from error
        if not isinstance(name, str):
            raise self._broken(f"has {name!r:.60} where a name should be")
        return name

    def _pass_comma(self, end: str) -> None:
        if self._peek() not in (end, ""):
            self._expect(",")

    def _element(self, number: int) -> TableRecord:
        self._peek()
        size = WINDOW
        while True:
            end = self._end_of_element()
            if end is not None:
                raw = self._text[self._at : end].encode("latin-1")
                record = TableRecord(number, self._base + self._at, len(raw), raw)
                self._at = end
                return record if len(raw) <= self._max_bytes else too_long(record, self._max_bytes)
            if len(self._text) - self._at > self._max_bytes:
                return self._long_element(number)
            # Each try parses the element from its beginning: doubling keeps the sum linear.
            self._grow(size)
            size *= 2

    def _long_element(self, number: int) -> TableRecord:
        """Return an element over the limit, after looking for its end by brackets and quotes."""
        start = self._base + self._at
        brackets = Brackets()
        while (end := brackets.feed(self._text[self._at :])) is None:
            self._at = len(self._text)
            self._grow(PIECE)
            if self._at_end:
                raise FormatError("its element does not end", path=self._path, offset=start)
        self._at += end
        record = TableRecord(number, start, self._base + self._at - start)
        if record.num_bytes <= self._max_bytes:
            raise FormatError("its element is not JSON", path=self._path, offset=start)
        return too_long(record, self._max_bytes)

    def _end_of_element(self) -> int | None:
        """Return where the element ends in the window, or None if more text is needed."""
        try:
            _, end = DECODER.raw_decode(self._text, self._at)
        except RecursionError as error:
            raise self._broken("is nested too deep") from error
        except json.JSONDecodeError as error:
            if self._at_end:
                raise self._broken(f"is not JSON: {error.msg}", error.pos) from error
            return None
        # A number may go on after the window: "12" could begin "123", and "1." is not its end.
        return end if self._at_end or self._text[end : end + 1] in AFTER_ELEMENT else None

    def _peek(self) -> str:
        """Skip white space and return the character after it, or "" at the end of the file."""
        while True:
            self._at = SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if self._at_end:
                return ""
            self._grow(WINDOW)

    def _expect(self, mark: str) -> None:
        found = self._peek()
        if found != mark:
            raise self._broken(f"has {found!r} where {mark!r} should be")
        self._at += 1

    def _grow(self, size: int) -> None:
        data = self._file.read(size)
        self._at_end = not data
        self._base += self._at
        self._text = self._text[self._at :] + data.decode("latin-1")
        self._at = 0

    def _broken(self, problem: str, position: int | None = None) -> FormatError:
        offset = self._base + (self._at if position is None else position)
        return FormatError(problem, path=self._path, offset=offset)
