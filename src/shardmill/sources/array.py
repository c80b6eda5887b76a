"""A JSON array as rows, streamed: only the element at hand is in memory.

The text is decoded as latin-1, in which every byte is one character, so that the positions of
Python's own JSON scanner are byte offsets. An element that does not end inside the window makes
the window grow up to the limit; the elements are parsed for real, as UTF-8, when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from shardmill.errors import FormatError
from shardmill.sources.records import ByteReader, Record, too_long

WINDOW = 1 << 16
SPACE = " \t\r\n"
DECODER = json.JSONDecoder()


class Elements:
    """The elements of an array, found one after the other from any element on."""

    def __init__(self, file: ByteReader, offset: int, max_bytes: int, path: Path) -> None:
        self._file, self._max_bytes, self._path = file, max_bytes, path
        self._text, self._at, self._base = "", 0, offset
        self._at_end = False

    def records(self, number: int, *, inside: bool) -> Iterator[Record]:
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

    def _element(self, number: int) -> Record:
        self._peek()
        size = WINDOW
        while True:
            end = self._end_of_element()
            if end is not None:
                raw = self._text[self._at : end].encode("latin-1")
                record = Record(number, self._base + self._at, len(raw), raw)
                self._at = end
                return record if len(raw) <= self._max_bytes else too_long(record, self._max_bytes)
            if len(self._text) - self._at > self._max_bytes:
                raise self._broken(f"has no element that ends within {self._max_bytes} bytes")
            self._grow(size)
            size *= 2

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
        # A number may go on after the end of the window: "12" could be the beginning of "123".
        return end if end < len(self._text) or self._at_end else None

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
