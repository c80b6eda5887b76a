"""Numbers as decimal text for many rows at once: (1, 22), (), (3) gives "1,22" "" "3"."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.weave import Column

try:
    from shardmill.io import _weave  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _weave = None

ROOM = {1: 5, 2: 7, 4: 12, 8: 22}  # for the digits of the largest number, and a separator


def numbers(values: NDArray[Any], separator: bytes = b",") -> Column:
    """Return a column with one number, which is not below zero, in each row."""
    return number_lists(values, np.arange(len(values) + 1), separator)


def number_lists(
    values: NDArray[Any], bounds: NDArray[np.int64], separator: bytes = b","
) -> Column:
    """Return a column whose row i lists the values bounds[i] to bounds[i + 1], none below zero."""
    flat = np.ascontiguousarray(values[int(bounds[0]) : int(bounds[-1])])
    if flat.dtype.kind not in "ui" or (flat.dtype.kind == "i" and int(flat.min(initial=0)) < 0):
        raise ValueError("only whole numbers from zero on can be written")
    counts = np.diff(bounds).astype(np.int64)
    text, starts = _compiled(flat, counts, separator) if _weave else _plain(flat, counts, separator)
    # The separator stands after each number; that of a row's last one is left out.
    lengths = np.diff(starts) - len(separator) * (counts > 0)
    return Column(text, starts[:-1], lengths)


def _compiled(
    values: NDArray[Any], counts: NDArray[np.int64], separator: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    text = np.empty(ROOM[values.itemsize] * len(values) + 8, np.uint8)
    starts = np.empty(len(counts) + 1, np.int64)
    _weave.number_texts(values, values.itemsize, counts, separator, text, starts)
    return text, starts


def _plain(
    values: NDArray[Any], counts: NDArray[np.int64], separator: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    listed = [b"%d%b" % (value, separator) for value in values.tolist()]
    sizes = np.concatenate([[0], np.cumsum(np.fromiter(map(len, listed), np.int64, len(listed)))])
    starts = sizes[np.concatenate([[0], np.cumsum(counts)])]
    return np.frombuffer(b"".join(listed), np.uint8), starts
