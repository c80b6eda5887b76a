"""The cells of a JSON object of columns, found one after the other; only the one at hand is held.

    {"image": {"0": "a.mp4", "1": "b.mp4"}, "value": ["A cat.", "A dog."]}

A column is an object (its cells have keys) or an array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from shardmill.sources.array import Elements
from shardmill.sources.records import Record


class Cell(NamedTuple):
    """A cell: its key, "" in an array; where key and value begin; and the value's bytes."""

    key: str
    start: int
    record: Record

    @property
    def end(self) -> int:
        """Where its value ends."""
        return self.record.offset + self.record.num_bytes


class Cells(Elements):
    """Walks the columns of an object, or the cells of a column from any cell on."""

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
