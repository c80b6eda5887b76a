"""Rows of bytes, woven from columns: the members of tars, lines of JSON, any row-by-row format.

A column says for each row which bytes of its data belong to it. Weaving puts the first row of every
column after each other, then the second row of every column, and so on:

    columns  ("a", "bb"), (":", ":"), ("1", "2")   ->   "a:1" "bb:2"

So a writer plans whole batches in arrays and takes no step a row in Python. The one loop over rows
is compiled where there is a compiler.

Columns of JSON text, to be woven: quoted strings, numbers, lists and objects of them.

Numbers as decimal text for many rows at once: (1, 22), (), (3) gives "1,22" "" "3".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.storage.atomic import write_all
from shardmill.storage.background import Room, Scribe

try:
    from shardmill.storage import _weave  # type: ignore[attr-defined, unused-ignore]
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


ESCAPED = np.isin(np.arange(256), [*range(32), ord('"'), ord("\\")])


def quoted(strings: Sequence[str]) -> Column:
    """Return strings as JSON, with their quotes."""
    return weave(quoted_texts(texts([string.encode() for string in strings])))


def quoted_texts(rows: Column) -> list[Column]:
    """Return texts in UTF-8, whose bytes lie one after the other, as JSON.

    Only those with a sign to be escaped are copied.
    """
    quote = constant(b'"', len(rows))
    places = np.flatnonzero(ESCAPED[rows.data])
    if not len(places):
        return [quote, rows, quote]
    changed = np.unique(np.searchsorted(rows.starts, places, side="right") - 1)
    escaped = texts([orjson.dumps(bytes(rows[row]).decode())[1:-1] for row in changed.tolist()])
    starts, lengths = rows.starts.copy(), rows.lengths.copy()
    starts[changed], lengths[changed] = len(rows.data) + escaped.starts, escaped.lengths
    return [quote, Column(np.concatenate([rows.data, escaped.data]), starts, lengths), quote]


def chosen(strings: Sequence[str], numbers: NDArray[Any]) -> Column:
    """Return some of a few strings as JSON, by their numbers."""
    return quoted(strings).taken(numbers.astype(np.int64))


def json_object(fields: Mapping[str, Sequence[Column]], num_rows: int) -> list[Column]:
    """Return an object whose fields are JSON already, in this order."""
    columns, opening = [], b"{"
    for name, content in fields.items():
        columns += [constant(opening + orjson.dumps(name) + b":", num_rows), *content]
        opening = b","
    return [*columns, constant(b"}", num_rows)]


def json_list(items: Sequence[Column], bounds: NDArray[np.int64]) -> list[Column]:
    """Return lists of which the i-th has the items bounds[i] to bounds[i + 1]."""
    num_rows = len(bounds) - 1
    inside = list(items) if bool((np.diff(bounds) == 1).all()) else [_joined(items, bounds)]
    return [constant(b"[", num_rows), *inside, constant(b"]", num_rows)]


def _joined(items: Sequence[Column], bounds: NDArray[np.int64]) -> Column:
    """Return a column of the items of each row, with commas between them."""
    each = weave([*items, constant(b",", int(bounds[-1]))])
    places = np.append(each.starts, len(each.data))[bounds]
    # The comma after a row's last item is left out.
    return Column(each.data, places[:-1], np.maximum(np.diff(places) - 1, 0))


ROOM = {1: 5, 2: 7, 4: 12, 8: 22}  # for the digits of the largest number, and a separator


def numbers(values: NDArray[Any]) -> Column:
    """Return a column with one number, which is not below zero, in each row."""
    if len(values) and values.dtype.kind in "ui" and values.min() == values.max() >= 0:
        return constant(b"%d" % values[0], len(values))
    return number_lists(values, np.arange(len(values) + 1))


def number_lists(
    values: NDArray[Any],
    bounds: NDArray[np.int64],
    separator: bytes = b",",
    around: bytes = b"",
    room: Room | None = None,
) -> Column:
    """Return a column whose row i lists the values bounds[i] to bounds[i + 1], none below zero.

    `around` are the two bytes that a row begins and ends with, such as b"[]". The rows lie one
    after the other, in `room` if it is given.
    """
    flat = np.ascontiguousarray(values[int(bounds[0]) : int(bounds[-1])])
    if flat.dtype.kind not in "ui" or (flat.dtype.kind == "i" and int(flat.min(initial=0)) < 0):
        raise ValueError("only whole numbers from zero on can be written")
    counts = np.diff(bounds).astype(np.int64)
    if _weave is None:
        return plain_lists(flat, counts, separator, around)
    num_bytes = ROOM[flat.itemsize] * len(flat) + 2 * len(counts) + 8
    text, starts = (room or Room()).take(num_bytes), np.empty(len(counts) + 1, np.int64)
    opening, closing = around[:1], around[1:]
    _weave.number_texts(flat, flat.itemsize, counts, separator, opening, closing, text, starts)
    return Column(text[: int(starts[-1])], starts[:-1], np.diff(starts))


def plain_lists(
    values: NDArray[Any], counts: NDArray[np.int64], separator: bytes, around: bytes
) -> Column:
    """Return the same without a compiler."""
    listed = iter([b"%d" % value for value in values.tolist()])
    rows = [separator.join(islice(listed, count)) for count in counts.tolist()]
    return texts([around[:1] + row + around[1:] for row in rows])
