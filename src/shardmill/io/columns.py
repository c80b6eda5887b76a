"""Unsigned columns as small as their values allow.

A column has the narrowest dtype that holds its largest value. One that is the same everywhere is
stored as a single value, and read as a view that repeats it. Bounds of a ragged table (row i owns
the entries from bounds[i] to bounds[i + 1]) are one number if every row owns that many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.arrays import Arrays


def narrow_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in the narrowest unsigned dtype, one of them if all are equal."""
    if len(values) and bool((values == values[0]).all()):
        values = values[:1]
    return values.astype(np.min_scalar_type(int(values.max()) if values.size else 0))


def wide_column(arrays: Arrays, name: str, num_rows: int, width: int | None = None) -> NDArray[Any]:
    """Return a column with `num_rows` rows, of `width` values each if given; checks its shape."""
    stored = arrays[name]
    tail = () if width is None else (width,)
    if stored.dtype.kind != "u" or stored.shape not in ((num_rows, *tail), (1, *tail)):
        raise FormatError(f"array {name!r} must be unsigned {(num_rows, *tail)}", path=arrays.path)
    return np.broadcast_to(stored, (num_rows, *tail)) if len(stored) != num_rows else stored


def narrow_bounds(counts: NDArray[Any]) -> NDArray[Any]:
    """Return the bounds of a ragged table in which row i owns counts[i] entries."""
    if len(counts) and bool((counts == counts[0]).all()):
        return narrow_column(counts[:1])
    return narrow_column(np.concatenate([[0], np.cumsum(counts)]))


def row_slice(arrays: Arrays, name: str, row: int, num_rows: int, num_entries: int) -> slice:
    """Return the entries of a row; a `FormatError` if they are not all there."""
    bounds = arrays[name]
    if len(bounds) == 1:
        count = int(bounds[0])
        start, stop = row * count, (row + 1) * count
    elif len(bounds) == num_rows + 1:
        start, stop = int(bounds[row]), int(bounds[row + 1])
    else:
        raise FormatError(f"array {name!r} does not have {num_rows + 1} bounds", path=arrays.path)
    if not start <= stop <= num_entries:
        raise FormatError(f"{name!r} of row {row} leave the table", path=arrays.path)
    return slice(start, stop)


def bounds_between(
    arrays: Arrays, name: str, rows: range, num_rows: int, num_entries: int
) -> NDArray[np.int64]:
    """Return where the entries of neighbouring rows begin, and where the last ones end."""
    stored = arrays[name]
    if len(stored) == 1:
        bounds = np.arange(rows.start, rows.stop + 1, dtype=np.int64) * int(stored[0])
    elif len(stored) == num_rows + 1:
        bounds = stored[rows.start : rows.stop + 1].astype(np.int64)
    else:
        raise FormatError(f"array {name!r} does not have {num_rows + 1} bounds", path=arrays.path)
    if (np.diff(bounds) < 0).any() or int(bounds[-1]) > num_entries:
        raise FormatError(f"{name!r} of {rows} leave the table", path=arrays.path)
    return bounds
