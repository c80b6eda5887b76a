"""csv and tsv: a record may span lines inside quotes, so the csv module itself finds the ends.

Lines are decoded with `surrogateescape`: a byte that is not UTF-8 spoils its own row only. A
record that does not end within the limit (a quote that is never closed) stops the file, because
nothing after it can be trusted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardmill.errors import FormatError, SampleError
from shardmill.sources.lines import BYTE_ORDER_MARK
from shardmill.sources.records import ByteReader, Record, place


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
