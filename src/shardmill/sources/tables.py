"""Tables as a source: jsonl, json arrays, csv, tsv, text lines, parquet and Arrow files.

Text tables may be compressed (.gz, .zst). Listing streams each text table once and stores, for
every slice, its bytes and their checksum; parquet and Arrow files (the IPC file and the IPC stream
format, of which Hugging Face writes the latter) are cut by row numbers and identified by the
checksum of the file. Whoever reads parts in order decodes each page once.

`NestedSource` is for tables whose rows hold lists of rows, `ColumnsSource` for JSON files that are
objects of columns.

Run as a module, this counts rows of Arrow files: a line with a path in, a line with the number, or
with {"error": text}, out.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import orjson

from shardmill.errors import (
    ConfigError,
    FormatError,
    SampleError,
    ShardmillError,
    foreign,
    need,
)
from shardmill.machine import (
    may_die,
    note,
    open_note,
    python_environ,
    python_module,
    write_notes,
)
from shardmill.model.codec import PlaceName, Plain, RootName
from shardmill.model.sample import Origin
from shardmill.sources.source import (
    ROWS_PER_PART,
    Listed,
    Read,
    Row,
    SourcePart,
    check_unchanged,
    fingerprint,
    list_files,
    size_or_tag,
)
from shardmill.sources.stream import COMPRESSIONS, Span, Streams, TableSlice, open_stream
from shardmill.sources.text import HEAD_BYTES, Cell, Elements, TextTable, open_table
from shardmill.storage.path import UrlPath, as_path
from shardmill.storage.text import mistaken_for

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
# What `datasets` leaves there when somebody shuffles or maps the rows: their order, or copies.
CACHED = re.compile(r"cache-\w+\.arrow")
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
MAPPED_BYTES = 256 << 20  # a smaller file is read in less time than a process takes to start
MAX_ROW_BYTES, MAX_BATCH_BYTES = 64 << 20, 256 << 20
MAX_UNPACKED, MAX_UNPACKED_RATIO = 1 << 30, 64  # of a column of a row group of a parquet file
BATCH_ROWS = 32  # made Python values at a time; rows may hold whole images
# Rows that are all alike take hardly a byte, but a file may not claim them without end.
MANY_ROWS, MAX_ROWS_PER_BYTE = 1 << 24, 64
Rows: TypeAlias = Iterator[dict[str, Any] | SampleError]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """What the sources of tables share: the files, and how a row of one is named.

    A folder means all tables below it. Relative paths of media begin at `media_root`, or beside
    the table; rows read below it, and below what the user wants to `allow`.
    """

    files: tuple[PlaceName, ...]
    name: str = "table"
    media_root: RootName | None = None
    allow: tuple[RootName, ...] = ()

    def places(self) -> tuple[str, ...]:
        return self.files

    def inputs(self) -> Mapping[str, Any]:
        return fingerprint(listed.path for listed in self._listed())

    def apart(self) -> Iterator[TableFiles]:
        """Yield the source of each file."""
        return (replace(self, files=(str(listed.path),)) for listed in self._listed())

    def _listed(self) -> Iterator[Listed]:
        return list_files(self.files, table_stem, self.allow)

    def _rows(self, part: Mapping[str, Any], found: Iterable[tuple[int, Any]]) -> Iterator[Row]:
        """Yield a row for each (number, fields), or for the `SampleError` in place of fields."""
        media_dir = self.media_root or str(as_path(part["raw"]).parent)
        for number, content in found:
            is_problem = isinstance(content, SampleError)
            yield Row(
                key=f"{part['name']}-{number:08d}",
                origin=Origin(source=self.name, path=part["relative"], row=number),
                fields={} if is_problem else content,
                media_dir=media_dir,
                allow=self.allow,
                problem=content if is_problem else None,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(TableFiles):
    """The rows of table files.

    `format` follows from the suffix unless given. `columns` names the columns of a csv that has no
    header line.
    """

    format: str | None = None
    columns: tuple[str, ...] = ()
    max_row_bytes: int = MAX_ROW_BYTES

    def __post_init__(self) -> None:
        if self.format not in (None, *FORMATS):
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.max_row_bytes <= 0:
            raise ConfigError(f"max_row_bytes must be positive, got {self.max_row_bytes}")

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of `per_shard` rows of each file in turn."""
        per_part = per_shard or ROWS_PER_PART
        with closing(RowCounter()) as counter:
            for listed in self._listed():
                format = self.format or table_format(listed.path.name)
                if format == "columnar":
                    yield from _columnar_parts(listed, per_part, counter)
                else:
                    table = open_table(listed.path, format, self.columns, self.max_row_bytes)
                    yield from _text_parts(listed, table, per_part)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; it keeps the file of the last part open."""
        with closing(Streams()) as streams, closing(Cursors(self.max_row_bytes)) as cursors:

            def read(part: Mapping[str, Any]) -> Iterator[Row]:
                is_columnar = part["format"] == "columnar"
                found = _columnar(cursors, part) if is_columnar else self._text(streams, part)
                return self._rows(part, found)

            yield read

    def _text(self, streams: Streams, part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Yield (number, fields or problem) of each record, and check that none was changed."""
        path, number, offset = as_path(part["raw"]), part["number"], part["offset"]
        table = TextTable(
            path=path,
            format=part["format"],
            max_row_bytes=self.max_row_bytes,
            columns=tuple(part.get("columns", ())),
        )
        span = Span(streams.at(path, offset), part["num_bytes"])
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
        with TableSource.open(self) as read:
            yield lambda part: self._nested(read(part))

    def _nested(self, rows: Iterator[Row]) -> Iterator[Row]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsSource(TableFiles):
    """JSON files that are objects of columns, as pandas writes them and WebVid's lists are.

        {"image": {"0": "a.mp4", "1": "b.mp4"}, "value": ["A cat.", "A dog."]}

    A column is an object (its cells have keys) or an array. The keys of all columns must be the
    same and in the same order, and so their lengths. Listing streams the file once and notes where
    the cells of each slice lie in each column; a slice is read from there, so memory is bounded by
    it.
    """

    name: str = "columns"
    max_cell_bytes: int = 16 << 20

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of `per_shard` rows of each file in turn."""
        for listed in self._listed():
            size: dict[str, Plain] = {"size": [*size_or_tag(listed.path)]}
            for number, count, spans in self._slices(listed.path, per_shard or ROWS_PER_PART):
                place = _place(listed, number, count)
                yield SourcePart(input={**place, **size, "spans": spans}, num_rows=count)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; it keeps the file of the last part open."""
        with closing(Streams()) as streams:
            yield lambda part: self._rows(part, self._cells(streams, part))

    def _slices(self, path: Path, per_slice: int) -> Iterator[tuple[int, int, dict[str, Plain]]]:
        """Yield (first row, rows, spans): [offset, bytes, whether cells have keys] by column."""
        slices: list[dict[str, tuple[int, int, bool]]] = []
        lengths: dict[str, int] = {}
        with open_stream(path) as file:
            elements = Elements(file, 0, self.max_cell_bytes, path)
            for column, is_keyed, cell in elements.all_columns():
                number = lengths.get(column, 0)
                lengths[column] = number + 1
                if number // per_slice == len(slices):
                    slices.append({})
                spans = slices[number // per_slice]
                first = spans[column][0] if column in spans else cell.start
                spans[column] = (first, cell.end - first, is_keyed)
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise FormatError(f"its columns differ in length: {found}", path=path)
        num_rows = max(lengths.values(), default=0)
        for number, spans in zip(range(0, num_rows, per_slice), slices):
            plain: dict[str, Plain] = {name: list(span) for name, span in spans.items()}
            yield number, min(per_slice, num_rows - number), plain

    def _cells(self, streams: Streams, part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        path = _unchanged(part)
        columns: dict[str, list[Cell]] = {}
        for name, (offset, num_bytes, is_keyed) in part["spans"].items():
            span = Span(streams.at(path, offset), num_bytes)
            elements = Elements(span, offset, self.max_cell_bytes, path)
            columns[name] = list(elements.cells(is_keyed=is_keyed))
        for number, cells in enumerate(zip(*columns.values()), part["number"]):
            yield number, _fields(dict(zip(columns, cells)))


def _fields(row: Mapping[str, Cell]) -> dict[str, Any] | SampleError:
    keys = {cell.key for cell in row.values() if cell.key}
    if len(keys) > 1:
        return SampleError("columns do not match", f"cells of one row are called {keys}")
    fields: dict[str, Any] = {}
    for name, cell in row.items():
        if cell.record.problem is not None:
            return cell.record.problem
        try:
            fields[name] = orjson.loads(cell.record.raw)
        except orjson.JSONDecodeError as error:
            return SampleError("not JSON", f"{cell.record.place}: {error}")
    return fields


def _text_parts(listed: Listed, table: TextTable, per_part: int) -> Iterator[SourcePart]:
    for piece in table.slices(per_part):
        slice_: dict[str, Plain] = {
            **_place(listed, piece.number, piece.num_rows),
            "format": table.format,
            "offset": piece.offset,
            "num_bytes": piece.end - piece.offset,
            "xxh3": piece.checksum.hexdigest(),
        }
        if table.columns:
            slice_["columns"] = list(table.columns)
        yield SourcePart(input=slice_, num_rows=piece.num_rows)


def _columnar_parts(listed: Listed, per_part: int, counter: RowCounter) -> Iterator[SourcePart]:
    size = size_or_tag(listed.path)
    num_rows = counter.count(listed.path, int(size[0]))
    if num_rows > max(MANY_ROWS, MAX_ROWS_PER_BYTE * int(size[0])):
        problem = f"claims {num_rows:,} rows in {size[0]:,} bytes"
        raise FormatError(problem, path=listed.path)
    for first in range(0, num_rows, per_part):
        count = min(per_part, num_rows - first)
        place = _place(listed, first, count)
        input: dict[str, Plain] = {**place, "size": [*size], "format": "columnar"}
        yield SourcePart(input=input, num_rows=count)


def _columnar(cursors: Cursors, part: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    number = part["number"]
    return enumerate(cursors.at(_unchanged(part), number, part["num_rows"]), number)


def _place(listed: Listed, number: int, num_rows: int) -> dict[str, Plain]:
    return {
        "raw": str(listed.path),
        "relative": listed.relative,
        "name": listed.name,
        "number": number,
        "num_rows": num_rows,
    }


def _unchanged(part: Mapping[str, Any]) -> Path:
    """Return the path of a part whose file is still the one that was listed."""
    path = as_path(part["raw"])
    check_unchanged(path, part["size"])
    return path


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
    if file_name in NOT_ROWS or CACHED.fullmatch(file_name):
        return None
    return file_name[: -len(suffix + compression)]


def split_suffixes(file_name: str) -> tuple[str, str]:
    """Return (suffix, compression): "a.jsonl.zst" gives (".jsonl", ".zst")."""
    path = PurePath(file_name.lower())
    if path.suffix in COMPRESSIONS:
        return PurePath(path.stem).suffix, path.suffix
    return path.suffix, ""


def count_rows(path: Path) -> int:
    """Return the number of rows, from the footer or from the headers of the batches."""
    with _arrow_errors(path):
        if _is_parquet(path):
            parquet = need("pyarrow.parquet", extra="tables")
            return int(parquet.read_metadata(_source(path)).num_rows)
        return sum(batch.num_rows for batch in _ipc_batches(path))


class RowCounter:
    """Counts the rows of tables; large Arrow files are counted by a process that maps them.

    To count rows only the headers of batches are needed, which a map reads and nothing else. But
    a file that is cut meanwhile ends whoever maps it: then the error names the file.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def count(self, path: Path, num_bytes: int) -> int:
        """Return the number of rows of a parquet or Arrow file."""
        if num_bytes < MAPPED_BYTES or isinstance(path, UrlPath) or may_die() or _is_parquet(path):
            return count_rows(path)
        if self._process is None:
            self._process = subprocess.Popen(
                python_module(__name__ if __name__ != "__main__" else "shardmill.sources.tables"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=python_environ(),
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(orjson.dumps(os.fsencode(path).hex()) + b"\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise FormatError(
                f"ended the process that counted its rows {self.close()}: it is damaged, or was "
                "changed meanwhile",
                path=path,
            )
        found = orjson.loads(answer)
        if isinstance(found, dict):
            raise FormatError(found["error"], path=path)
        return int(found)

    def close(self) -> str:
        """End the process, if there is one; return how it ended."""
        if self._process is None:
            return ""
        with self._process as process:
            self._process = None
            process.communicate()
        code = process.returncode
        return f"({signal.Signals(-code).name})" if code < 0 else f"(status {code})"


def rows_from(path: Path, first: int, max_row_bytes: int = MAX_ROW_BYTES) -> Rows:
    """Yield the rows of a file beginning with row `first`; for a bad one its `SampleError`."""
    batches, start = _parquet_batches(path, first) if _is_parquet(path) else (_ipc_batches(path), 0)
    with _arrow_errors(path):
        for batch in batches:
            skip = min(max(first - start, 0), batch.num_rows)
            start += batch.num_rows
            for at in range(skip, batch.num_rows, BATCH_ROWS):
                yield from checked_rows(batch.slice(at, BATCH_ROWS), max_row_bytes)


def checked_rows(batch: Any, max_row_bytes: int) -> Rows:
    """Yield the rows of a batch; one whose values cannot be read is a `SampleError` in its place.

    Nothing is read before it is checked: Arrow believes the offsets in a file, and one that leads
    elsewhere would end the process.
    """
    try:
        yield from _python_rows(batch, max_row_bytes)
    except SampleError as problem:
        if batch.num_rows == 1:
            yield problem
        else:
            for number in range(batch.num_rows):
                yield from checked_rows(batch.slice(number, 1), max_row_bytes)


def _python_rows(batch: Any, max_bytes: int) -> list[dict[str, Any]]:
    with foreign("broken row"):
        batch.validate()
        for column in batch.columns:
            _check_values(column, need("pyarrow", extra="tables"))
        # What is too much for one row is too much at a time: then each row is tried alone. A
        # dictionary of one long text is small, but each of its rows is as long as that text.
        if batch.nbytes > max_bytes:
            num_bytes = sum(_plain(column).nbytes for column in batch.slice(0, 1).columns)
            if batch.num_rows > 1 or num_bytes > max_bytes:
                raise SampleError("row too long", f"{num_bytes} bytes, at most {max_bytes}")
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows


def _plain(array: Any) -> Any:
    return array.dictionary_decode() if hasattr(array, "dictionary_decode") else array


def _check_values(array: Any, pa: Any) -> None:
    """Raise what Arrow says of offsets and text that are not valid, in these rows alone.

    Arrow's own check of a slice looks at all that nested values of the whole batch hold, which
    would cost the more the longer a batch is, and one bad value would cost all of its rows.
    """
    if isinstance(array, pa.ExtensionArray):
        _check_values(array.storage, pa)
    elif isinstance(array, pa.StructArray):
        for number in range(array.type.num_fields):
            _check_values(array.field(number), pa)
    elif isinstance(array, pa.DictionaryArray):
        array.indices.validate(full=True)
        for index in array.indices.unique().drop_null().to_pylist():
            if not 0 <= index < len(array.dictionary):
                raise SampleError("broken row", f"entry {index} of {len(array.dictionary)}")
            _check_values(array.dictionary.slice(index, 1), pa)
    elif isinstance(array, pa.ListArray | pa.LargeListArray) and len(array):
        offsets = array.offsets.to_numpy()
        if offsets[0] < 0 or offsets[-1] > len(array.values) or (offsets[1:] < offsets[:-1]).any():
            raise SampleError("broken row", "the offsets of a list lead out of its values")
        _check_values(array.values.slice(offsets[0], offsets[-1] - offsets[0]), pa)
    else:
        array.validate(full=True)


@dataclass(slots=True)
class Cursors:
    """The rows of one file, kept where the last part ended."""

    max_row_bytes: int = MAX_ROW_BYTES
    path: Path | None = None
    next_row: int = 0
    rows: Rows | None = None

    def at(self, path: Path, first: int, num_rows: int) -> Rows:
        """Yield `num_rows` rows beginning with row `first`."""
        note(f"{path}, row {first}")
        if self.rows is None or path != self.path or self.next_row != first:
            self.close()
            self.path, self.next_row = path, first
            self.rows = rows_from(path, first, self.max_row_bytes)
        for row in islice(self.rows, num_rows):
            self.next_row += 1
            yield row
        if self.next_row != first + num_rows:
            raise FormatError(f"has no row {self.next_row}: it was changed", path=path)

    def close(self) -> None:
        """Forget the open file, if there is one."""
        self.path = self.rows = None


def _parquet_batches(path: Path, first: int) -> tuple[Iterator[Any], int]:
    """Return the batches from the row group that holds row `first`, and where that begins."""
    with _arrow_errors(path):
        file = need("pyarrow.parquet", extra="tables").ParquetFile(_source(path))
    start = group = 0
    while group < file.num_row_groups:
        num_rows = file.metadata.row_group(group).num_rows
        if start + num_rows > first:
            break
        start, group = start + num_rows, group + 1
    groups = range(group, file.num_row_groups)
    return chain.from_iterable(map(partial(_group_batches, file), groups)), start


def _group_batches(file: Any, group: int) -> Iterator[Any]:
    """Yield the batches of a row group; few rows at a time if each may be as long as all of it.

    A page is unpacked whole, and a list of nulls takes no bytes in it: kilobytes could become
    gigabytes before there is a row to look at.
    """
    chunks = file.metadata.row_group(group)
    repeated = []
    for chunk in map(chunks.column, range(chunks.num_columns)):
        num_nested = chunk.num_values if chunk.num_values > chunks.num_rows else 0
        num_bytes = max(chunk.total_uncompressed_size, 8 * num_nested)
        if num_bytes > max(MAX_UNPACKED, MAX_UNPACKED_RATIO * chunk.total_compressed_size):
            where = f"row group {group}, column {chunk.path_in_schema:.60}"
            packed = f"{chunk.total_compressed_size:,} bytes"
            raise SampleError("cannot be read", f"{where} unpacks {packed} to {num_bytes:,}")
        if chunk.has_dictionary_page:
            repeated.append(chunk.total_uncompressed_size)
    # Writers give up a dictionary of more than a megabyte or so.
    count = min(BATCH_ROWS, 1 + MAX_BATCH_BYTES // max([1, *repeated]))
    return iter(file.iter_batches(count, row_groups=[group], use_threads=False))


def _ipc_batches(path: Path) -> Iterator[Any]:
    pa = need("pyarrow", extra="tables")
    # Mapped where a crash costs one unit: a page behind the end of a file that was cut meanwhile
    # ends the process. Rows that are skipped, as by parts in the middle, are then not read at all.
    opened = pa.memory_map if may_die() else pa.OSFile
    with pa.PythonFile(path.open("rb")) if isinstance(path, UrlPath) else opened(str(path)) as file:
        magic = file.read(6)
        file.seek(0)
        if magic == b"ARROW1":
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from pa.ipc.open_stream(file)


def _source(path: Path) -> Any:
    return path.open("rb") if isinstance(path, UrlPath) else path


def _is_parquet(path: Path) -> bool:
    # By its first bytes: people name either file anything.
    with open_stream(path) as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    pa = need("pyarrow", extra="tables")
    try:
        # Arrow raises OSError, without a number, for data that is cut off; a disk gives a number.
        with foreign("cannot be read"):
            yield
    except SampleError as error:
        with open_stream(path) as file:
            what = mistaken_for(file.read(HEAD_BYTES))
        raise FormatError(f"is {what}" if what else f"{error}", path=path) from error
    except pa.lib.ArrowMemoryError as error:  # a file that says it holds more than there is room
        raise FormatError(f"cannot be read: {error}", path=path) from error


def _answer() -> None:
    write_notes(open_note())
    for line in sys.stdin.buffer:
        path = as_path(os.fsdecode(bytes.fromhex(orjson.loads(line))))
        try:
            found: Any = count_rows(path)
        except (ShardmillError, OSError) as error:
            found = {"error": getattr(error, "problem", str(error))}
        sys.stdout.buffer.write(orjson.dumps(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _answer()
