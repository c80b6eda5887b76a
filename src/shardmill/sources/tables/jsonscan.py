"""JSON arrays and objects of columns, streamed: only the element at hand is in memory.

The text is decoded as latin-1, in which every byte is one character, so that the positions of
Python's own JSON scanner are byte offsets. An element that does not end inside the window makes
the window grow up to the limit, and one beyond the limit is passed over in pieces. The elements
are parsed for real, as UTF-8, when they are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from shardmill.errors import FormatError
from shardmill.sources.tables.stream import ByteReader, TableRecord, too_long

WINDOW = 1 << 16
PIECE = 1 << 20
MARKS = re.compile(r'["\\\[\]{}]')
SPACE = " \t\r\n"
# Behind an element of an array; and behind names and values of an object of columns.
DELIMITERS = frozenset(SPACE + ",]}:")
DECODER = json.JSONDecoder()


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
        return end if self._at_end or self._text[end : end + 1] in DELIMITERS else None

    def _peek(self) -> str:
        """Skip white space and return the character after it, or "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in SPACE:
                self._at += 1
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
