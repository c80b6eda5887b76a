"""Parquet and Arrow files as rows of Python values, from any row on, a few rows at a time.

Arrow files are the IPC file and the IPC stream format (Hugging Face writes the latter); both are
memory-mapped. `Cursors` keeps the last file open, so that parts in order decode each page once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import FormatError, need
from shardmill.sources.tables.stream import open_stream
from shardmill.storage.path import UrlPath

BATCH_ROWS = 32
Rows: TypeAlias = Iterator[dict[str, Any]]


def count_rows(path: Path) -> int:
    """Return the number of rows, from the footer or from the headers of the batches."""
    with _arrow_errors(path):
        if _is_parquet(path):
            parquet = need("pyarrow.parquet", extra="tables")
            return int(parquet.read_metadata(_source(path)).num_rows)
        return sum(batch.num_rows for batch in _ipc_batches(path))


def rows_from(path: Path, first: int) -> Rows:
    """Yield the rows of a file beginning with row `first`."""
    batches, start = _parquet_batches(path, first) if _is_parquet(path) else (_ipc_batches(path), 0)
    with _arrow_errors(path):
        for batch in batches:
            skip = min(max(first - start, 0), batch.num_rows)
            start += batch.num_rows
            for at in range(skip, batch.num_rows, BATCH_ROWS):
                yield from batch.slice(at, BATCH_ROWS).to_pylist()


@dataclass(slots=True)
class Cursors:
    """The rows of one file, kept where the last part ended."""

    path: Path | None = None
    next_row: int = 0
    rows: Rows | None = None

    def at(self, path: Path, first: int, num_rows: int) -> Rows:
        """Yield `num_rows` rows beginning with row `first`."""
        if self.rows is None or path != self.path or self.next_row != first:
            self.close()
            self.path, self.next_row, self.rows = path, first, rows_from(path, first)
        for fields in islice(self.rows, num_rows):
            self.next_row += 1
            yield fields
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
    groups = list(range(group, file.num_row_groups))
    return file.iter_batches(BATCH_ROWS, row_groups=groups, use_threads=False), start


def _ipc_batches(path: Path) -> Iterator[Any]:
    pa = need("pyarrow", extra="tables")
    remote = isinstance(path, UrlPath)
    with pa.PythonFile(path.open("rb")) if remote else pa.memory_map(str(path)) as file:
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
    with open_stream(path) as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    pa = need("pyarrow", extra="tables")
    try:
        yield
    except (pa.lib.ArrowException, OSError) as error:
        # Arrow raises OSError, without a number, for data that is cut off; a disk gives a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise FormatError(f"cannot be read: {error}", path=path) from error
