"""Rows of bytes, woven from columns: the members of tars, lines of JSON, any row-by-row format.

A column says for each row which bytes of its data belong to it. Weaving puts the first row of every
column after each other, then the second row of every column, and so on:

    columns  ("a", "bb"), (":", ":"), ("1", "2")   ->   "a:1" "bb:2"

So a writer plans whole batches in arrays and takes no step a row in Python. The one loop over rows
is compiled where there is a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.pieces import write_all
from shardmill.io.room import Room
from shardmill.io.scribe import Scribe

try:
    from shardmill.io import _weave  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _weave = None


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Bytes by row: row i is data[starts[i] : starts[i] + lengths[i]]."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> memoryview:
        start = int(self.starts[row])
        return self.data.data[start : start + int(self.lengths[row])]

    def contents(self) -> list[bytes]:
        """Return the bytes of each row."""
        whole, ends = self.data.tobytes(), self.starts + self.lengths
        return [whole[start:end] for start, end in zip(self.starts.tolist(), ends.tolist())]

    def taken(self, rows: NDArray[Any] | slice) -> Column:
        """Return some rows, by number, by mask or by range."""
        return Column(self.data, self.starts[rows], self.lengths[rows])


def constant(content: bytes, num_rows: int) -> Column:
    """Return a column that is the same in every row."""
    data = np.frombuffer(content, np.uint8)
    return Column(data, _repeated(0, num_rows), _repeated(len(content), num_rows))


def between(values: NDArray[Any], bounds: NDArray[np.int64]) -> Column:
    """Return a column whose row i has the values bounds[i] to bounds[i + 1] of a flat array."""
    flat, size = np.ascontiguousarray(values), values.itemsize
    return Column(flat.view(np.uint8), bounds[:-1] * size, np.diff(bounds) * size)


def cells(table: NDArray[Any]) -> Column:
    """Return a column of the rows of a table with two axes, all of the same length."""
    width = table.shape[1] * table.itemsize
    starts = np.arange(len(table), dtype=np.int64) * width
    flat = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
    return Column(flat, starts, _repeated(width, len(table)))


def texts(contents: Sequence[bytes]) -> Column:
    """Return a column of these contents."""
    lengths = np.fromiter(map(len, contents), np.int64, len(contents))
    return Column(np.frombuffer(b"".join(contents), np.uint8), _starts(lengths), lengths)


def filling(lengths: NDArray[np.int64], byte: bytes = b"\0") -> Column:
    """Return a column that has the same byte so many times."""
    longest = int(lengths.max(initial=0))
    return Column(_filling(longest, byte), _repeated(0, len(lengths)), lengths)


def lengths_of(columns: Iterable[Column]) -> NDArray[np.int64]:
    """Return how long each row is when these columns are woven."""
    total: NDArray[np.int64] = np.sum([column.lengths for column in columns], axis=0)
    return total


def rises(column: Column, after: bytes = b"") -> bool:
    """Say whether each row is greater than the one before it, and the first than `after`.

    Rows hold no zeros.
    """
    if not len(column):
        return True
    longest = int(column.lengths.max())
    filled = weave([column, filling(longest - column.lengths)]).data
    rows = filled.reshape(-1, longest).view(f"S{longest}").reshape(-1) if longest else filled
    return bytes(column[0]) > after and bool((rows[1:] > rows[:-1]).all())


def weave(columns: Sequence[Column], room: Room | None = None) -> Column:
    """Return the rows of all columns, joined; they lie one after the other in `data`."""
    lengths = lengths_of(columns)
    out = (room or Room()).take(int(lengths.sum()))
    if _weave is None:
        weave_plainly(columns, out)
    else:
        _weave.weave([(c.data, c.starts, c.lengths) for c in columns], out)
    return Column(out, _starts(lengths), lengths)


def write_woven(descriptor: int, columns: Sequence[Column]) -> None:
    """Write the same bytes to a file; other threads run meanwhile."""
    if _weave is not None:
        _weave.write([(c.data, c.starts, c.lengths) for c in columns], descriptor)
        return
    write_all(descriptor, weave(columns).data)


def write_rows(path: Path, batches: Iterable[Sequence[Column]]) -> None:
    """Write a file of rows, each batch of them given by its columns, while the next is made."""
    with path.open("wb", buffering=0) as file, Scribe() as scribe:
        for columns in batches:
            scribe.write(write_woven, file.fileno(), columns)


def weave_plainly(columns: Sequence[Column], out: NDArray[np.uint8]) -> None:
    """Copy the rows to a buffer that is just large enough, in Python."""
    pieces = [[column[row] for row in range(len(column))] for column in columns]
    joined = b"".join(piece for row in zip(*pieces, strict=True) for piece in row)
    out[:] = np.frombuffer(joined, np.uint8)


def _repeated(number: int, times: int) -> NDArray[np.int64]:
    # Stored once. This is what np.broadcast_to makes, in a thirtieth of the time.
    return np.ndarray((times,), np.int64, np.int64(number).tobytes(), strides=(0,))


@lru_cache(maxsize=1024)
def _filling(count: int, byte: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(byte * count, np.uint8)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts
