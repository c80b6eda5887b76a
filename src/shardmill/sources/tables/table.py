"""Tables as a source: jsonl, json arrays, csv, tsv, text lines, parquet and Arrow files.

Text tables may be compressed (.gz, .zst). Listing streams each text table once and stores, for
every slice, its bytes and their checksum; parquet and Arrow files are cut by row numbers and
identified by size and time. `NestedSource` is for tables whose rows hold lists of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import Plain
from shardmill.model.sample import Origin
from shardmill.sources.listing import Listed, fingerprint, list_files, size_and_time
from shardmill.sources.part import ROWS_PER_PART, Read, Row, SourcePart
from shardmill.sources.tables.arrow import Cursors, count_rows
from shardmill.sources.tables.stream import COMPRESSIONS, Span, Streams, TableSlice
from shardmill.sources.tables.text import TextTable, open_table
from shardmill.storage.path import as_path

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
    ".parquet": "columnar",
    ".arrow": "columnar",
    ".feather": "columnar",
}
# What Hugging Face stores beside its Arrow files.
NOT_ROWS = ("dataset_info.json", "state.json", "dataset_dict.json")
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """The rows of table files; a folder means all tables below it.

    `format` follows from the suffix unless given. `columns` names the columns of a csv that has no
    header line. Relative paths of media begin at `media_root`, or beside the table.
    """

    files: tuple[str, ...]
    name: str = "table"
    format: str | None = None
    columns: tuple[str, ...] = ()
    media_root: str | None = None
    max_row_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.format not in (None, *FORMATS):
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.max_row_bytes <= 0:
            raise ConfigError(f"max_row_bytes must be positive, got {self.max_row_bytes}")

    def places(self) -> tuple[str, ...]:
        """Return what it was given."""
        return self.files

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of `per_shard` rows of each file in turn."""
        for listed in self._listed():
            yield from self._parts_of(listed, per_shard or ROWS_PER_PART)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; it keeps the file of the last part open."""
        with closing(_Reader(self)) as reader:
            yield reader.read

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each file."""
        return fingerprint(listed.path for listed in self._listed())

    def _listed(self) -> Iterator[Listed]:
        return list_files(self.files, table_stem)

    def _parts_of(self, listed: Listed, per_part: int) -> Iterator[SourcePart]:
        format = self.format or table_format(listed.path.name)
        if format == "columnar":
            return _columnar_parts(listed, per_part)
        return _text_parts(listed, self._table(listed.path, format), per_part)

    def _table(self, path: Path, format: str) -> TextTable:
        return open_table(path, format, self.columns, self.max_row_bytes)


def table_format(file_name: str) -> str:
    """Return the format that a file name says, or raise `ConfigError` with those that are known."""
    suffix = split_suffixes(file_name)[0]
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ConfigError(f"{file_name!r} is no known table: give its format, or use {known}")
    return SUFFIXES[suffix]


def table_stem(file_name: str) -> str | None:
    """Return a table's name without its suffixes; None for other files and loose text files."""
    suffix, compression = split_suffixes(file_name)
    if suffix not in SUFFIXES or suffix == ".txt" or file_name.startswith("."):
        return None
    if file_name in NOT_ROWS:
        return None
    return file_name[: -len(suffix + compression)]


def split_suffixes(file_name: str) -> tuple[str, str]:
    """Return (suffix, compression): "a.jsonl.zst" gives (".jsonl", ".zst")."""
    path = PurePath(file_name.lower())
    if path.suffix in COMPRESSIONS:
        return PurePath(path.stem).suffix, path.suffix
    return path.suffix, ""


def _text_parts(listed: Listed, table: TextTable, per_part: int) -> Iterator[SourcePart]:
    for piece in table.slices(per_part):
        slice_: dict[str, Plain] = {
            **_place(listed, table.format, piece.number, piece.num_rows),
            "offset": piece.offset,
            "num_bytes": piece.end - piece.offset,
            "xxh3": piece.checksum.hexdigest(),
        }
        if table.columns:
            slice_["columns"] = list(table.columns)
        yield SourcePart(input=slice_, num_rows=piece.num_rows)


def _columnar_parts(listed: Listed, per_part: int) -> Iterator[SourcePart]:
    size, mtime_ns = size_and_time(listed.path)
    num_rows = count_rows(listed.path)
    for first in range(0, num_rows, per_part):
        count = min(per_part, num_rows - first)
        place = _place(listed, "columnar", first, count)
        yield SourcePart(input={**place, "size": size, "mtime_ns": mtime_ns}, num_rows=count)


def _place(listed: Listed, format: str, number: int, num_rows: int) -> dict[str, Plain]:
    return {
        "path": str(listed.path),
        "relative": listed.relative,
        "name": listed.name,
        "format": format,
        "number": number,
        "num_rows": num_rows,
    }


@dataclass(slots=True)
class _Reader:
    """Reads parts of one table source, and holds the file that the last one came from."""

    source: TableSource
    streams: Streams = field(default_factory=Streams)
    cursors: Cursors = field(default_factory=Cursors)

    def read(self, part: Mapping[str, Any]) -> Iterator[Row]:
        media_dir = self.source.media_root or str(as_path(part["path"]).parent)
        is_columnar = part["format"] == "columnar"
        for number, content in self._columnar(part) if is_columnar else self._text(part):
            is_problem = isinstance(content, SampleError)
            yield Row(
                key=f"{part['name']}-{number:08d}",
                origin=Origin(source=self.source.name, path=part["relative"], row=number),
                fields={} if is_problem else content,
                media_dir=media_dir,
                problem=content if is_problem else None,
            )

    def close(self) -> None:
        self.streams.close()
        self.cursors.close()

    def _columnar(self, part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        path = as_path(part["path"])
        if size_and_time(path) != [part["size"], part["mtime_ns"]]:
            raise FormatError("was changed after it was listed", path=path)
        return enumerate(self.cursors.at(path, part["number"], part["num_rows"]), part["number"])

    def _text(self, part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Yield (number, fields or problem) of each record, and check that none was changed."""
        path, number, offset = as_path(part["path"]), part["number"], part["offset"]
        table = TextTable(
            path=path,
            format=part["format"],
            max_row_bytes=self.source.max_row_bytes,
            columns=tuple(part.get("columns", ())),
        )
        span = Span(self.streams.at(path, offset), part["num_bytes"])
        found = TableSlice(number, offset)
        for record in table.records(span, number, offset, inside=True):
            found.add(record)
            try:
                content: Any = table.fields(record)
            except SampleError as problem:
                content = problem
            yield record.number, content
        if found.checksum.hexdigest() != part["xxh3"]:
            raise FormatError("was changed after it was listed", path=path, offset=offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedSource(TableSource):
    """A table whose rows hold lists of rows: each element becomes a row of its own.

        {"video_id": "x", "clips": [{"clip_path": "a", ...}, {"clip_path": "b", ...}]}

    with `each` = "clips" gives two rows with `video_id`, the fields of their clip, which win over
    those of the row, and keys that end in its number. How many there are is known only when they
    are read.
    """

    each: str = "clips"

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of the table; a slice holds `per_shard` of its rows."""
        parts = TableSource.parts(self, per_shard)
        return (replace(part, num_rows=None) for part in parts)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part."""
        with TableSource.open(self) as read:
            yield lambda part: self._rows(read(part))

    def _rows(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield from [row] if row.problem is not None else self._elements(row)

    def _elements(self, row: Row) -> Iterator[Row]:
        elements = row.fields.get(self.each)
        if not isinstance(elements, list) or not elements:
            problem = SampleError("missing field", f"{self.each!r} is no list of rows")
            yield replace(row, fields={}, problem=problem)
            return
        shared = {name: value for name, value in row.fields.items() if name != self.each}
        for number, element in enumerate(elements):
            key = f"{row.key}-{number:03d}"
            origin = replace(row.origin, row=f"{row.origin.row}.{self.each}.{number}")
            if isinstance(element, Mapping):
                fields = {**shared, **element}
                yield replace(row, key=key, origin=origin, fields=fields)
            else:
                detail = f"element {number} of {self.each!r} is {element!r:.60}"
                problem = SampleError("row is not an object", detail)
                yield replace(row, key=key, origin=origin, fields={}, problem=problem)
