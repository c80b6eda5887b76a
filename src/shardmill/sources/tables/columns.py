"""JSON files that are objects of columns, as pandas writes them and WebVid's lists are.

    {"image": {"0": "a.mp4", "1": "b.mp4"}, "value": ["A cat.", "A dog."]}

A column is an object (its cells have keys) or an array. The keys of all columns must be the same
and in the same order, and so their lengths. Listing streams the file once and notes where the
cells of each slice lie in each column; a slice is read from there, so memory is bounded by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.model.codec import Plain
from shardmill.model.sample import Origin
from shardmill.sources.listing import Listed, fingerprint, list_files, size_and_time
from shardmill.sources.part import ROWS_PER_PART, Read, Row, SourcePart
from shardmill.sources.tables.jsonarray import Elements
from shardmill.sources.tables.stream import Span, Streams, TableRecord, open_stream, place
from shardmill.sources.tables.table import table_stem


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsSource:
    """The rows of objects of columns; relative paths of media begin as in a table."""

    files: tuple[str, ...]
    name: str = "columns"
    media_root: str | None = None
    max_cell_bytes: int = 16 << 20

    def places(self) -> tuple[str, ...]:
        """Return what it was given."""
        return self.files

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of `per_shard` rows of each file in turn."""
        for listed in self._listed():
            stamp = size_and_time(listed.path)
            for slice_ in _slices(listed.path, per_shard or ROWS_PER_PART, self.max_cell_bytes):
                yield SourcePart(input=_place(listed, stamp, slice_), num_rows=slice_.num_rows)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; it keeps the file of the last part open."""
        streams = Streams()
        try:
            yield lambda part: self._rows(streams, part)
        finally:
            streams.close()

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each file."""
        return fingerprint(listed.path for listed in self._listed())

    def _listed(self) -> Iterator[Listed]:
        return list_files(self.files, table_stem)

    def _rows(self, streams: Streams, part: Mapping[str, Any]) -> Iterator[Row]:
        path = Path(part["path"])
        if size_and_time(path) != [part["size"], part["mtime_ns"]]:
            raise FormatError("was changed after it was listed", path=path)
        columns: dict[str, list[Cell]] = {}
        for name, (offset, num_bytes, is_keyed) in part["spans"].items():
            span = Span(streams.at(path, offset), num_bytes)
            cells = Cells(span, offset, self.max_cell_bytes, path)
            columns[name] = list(cells.cells(is_keyed=is_keyed))
        for number, cells_of_row in enumerate(zip(*columns.values()), part["number"]):
            fields, problem = _fields(dict(zip(columns, cells_of_row)))
            yield Row(
                key=f"{part['name']}-{number:08d}",
                origin=Origin(source=self.name, path=part["relative"], row=number),
                fields=fields,
                media_dir=self.media_root or str(PurePath(part["path"]).parent),
                problem=problem,
            )


class Cell(NamedTuple):
    """A cell: its key, "" in an array; where key and value begin; and the value's bytes."""

    key: str
    start: int
    record: TableRecord

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


@dataclass(slots=True)
class _Slice:
    """Neighbouring rows: [offset, number of bytes, whether cells have keys] of each column."""

    number: int
    num_rows: int = 0
    spans: dict[str, list[Plain]] = field(default_factory=dict)


def _slices(path: Path, per_slice: int, max_cell_bytes: int) -> list[_Slice]:
    slices: list[_Slice] = []
    lengths: dict[str, int] = {}
    with open_stream(path) as file:
        for column, is_keyed, cell in Cells(file, 0, max_cell_bytes, path).all_columns():
            number = lengths.get(column, 0)
            lengths[column] = number + 1
            if number // per_slice == len(slices):
                slices.append(_Slice(number))
            slice_ = slices[number // per_slice]
            first = slice_.spans.get(column, [cell.start])[0]
            assert isinstance(first, int)
            slice_.spans[column] = [first, cell.end - first, is_keyed]
            slice_.num_rows = max(slice_.num_rows, number + 1 - slice_.number)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise FormatError(f"its columns differ in length: {found}", path=path)
    return slices


def _place(listed: Listed, stamp: list[int], slice_: _Slice) -> dict[str, Plain]:
    spans: dict[str, Plain] = {name: list(span) for name, span in slice_.spans.items()}
    return {
        "path": str(listed.path),
        "relative": listed.relative,
        "name": listed.name,
        "size": stamp[0],
        "mtime_ns": stamp[1],
        "number": slice_.number,
        "num_rows": slice_.num_rows,
        "spans": spans,
    }


def _fields(row: Mapping[str, Cell]) -> tuple[dict[str, Any], SampleError | None]:
    keys = {cell.key for cell in row.values() if cell.key}
    if len(keys) > 1:
        return {}, SampleError("columns do not match", f"cells of one row are called {keys}")
    try:
        return {name: _value(cell) for name, cell in row.items()}, None
    except SampleError as problem:
        return {}, problem


def _value(cell: Cell) -> Any:
    if cell.record.problem is not None:
        raise cell.record.problem
    try:
        return orjson.loads(cell.record.raw)
    except orjson.JSONDecodeError as error:
        raise SampleError("not JSON", f"{place(cell.record)}: {error}") from error
