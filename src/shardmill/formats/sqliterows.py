"""Rows of an SQLite table as the cells that its pages hold, many at once.

A cell is a varint that counts the bytes after it, and the row. That is a header, which is a varint
that counts its own bytes and a varint for the type of each column, and then the values:

    type 1, 2, 4, 6   whole number of 1, 2, 4, 8 bytes, signed, big-endian
    type 13 + 2n      text of n bytes

A number may be longer than it must be. So a column of numbers has one width in all rows of a batch,
and what lies between two texts is a table. Varints have seven bits a byte, the highest first, and
all bytes but the last have the eighth bit; here they have one byte or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.io.room import Room
from shardmill.io.weave import Column, cells, weave

# By row: numbers, which all have one width, or texts.
Values: TypeAlias = NDArray[Any] | Column

TYPE_OF_WIDTH = {1: 1, 2: 2, 4: 4, 8: 6}
FIRST_TEXT = 13
ONE_BYTE = 1 << 7  # numbers below take a varint of one byte


def row_cells(columns: Sequence[Values], room: Room | None = None) -> Column:
    """Return the cells of rows that are given by columns, of which there are less than 60."""
    num_rows = len(columns[0])
    values = [column if isinstance(column, Column) else _narrowed(column) for column in columns]
    types = [_types(column) for column in values]
    header = np.full(num_rows, 1 + sum(map(_widths, types)))
    payload = header + sum(map(_widths, values))
    pieces = [_varints(payload), header.astype(np.uint8), *types, *values]
    return weave(list(_joined(pieces)), room)


def _narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in the fewest bytes that hold all of them."""
    low, high = int(numbers.min()), int(numbers.max())
    for width in (1, 2, 4):
        if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1:
            return numbers.astype(f">i{width}")
    return numbers.astype(">i8")


def _types(values: Values) -> Values:
    if isinstance(values, Column):
        return _varints(FIRST_TEXT + 2 * values.lengths)
    return np.full(len(values), TYPE_OF_WIDTH[values.itemsize], np.uint8)


def _varints(numbers: NDArray[np.int64]) -> Values:
    """Return numbers below 16384 as varints."""
    is_long = numbers >= ONE_BYTE
    if not is_long.any():
        return numbers.astype(np.uint8)
    both = np.stack([numbers // ONE_BYTE | ONE_BYTE, numbers % ONE_BYTE], axis=1)
    wide = cells(both.astype(np.uint8))
    return Column(wide.data, wide.starts + ~is_long, 1 + is_long.astype(np.int64))


def _widths(values: Values) -> Any:
    return values.lengths if isinstance(values, Column) else values.itemsize


def _joined(pieces: Sequence[Values]) -> Iterator[Column]:
    """Yield the pieces as few columns: numbers that follow each other are one table."""
    numbers: list[NDArray[Any]] = []
    for piece in pieces:
        if not isinstance(piece, Column):
            numbers.append(piece)
            continue
        if numbers:
            yield _table(numbers)
        numbers = []
        yield piece
    if numbers:
        yield _table(numbers)


def _table(numbers: Sequence[NDArray[Any]]) -> Column:
    named = {str(place): column for place, column in enumerate(numbers)}
    table = np.empty(len(numbers[0]), [(name, column.dtype) for name, column in named.items()])
    for name, column in named.items():
        table[name] = column
    return cells(table[:, None])
