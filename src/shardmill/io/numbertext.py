"""Numbers as decimal text for many rows at once: (1, 22), (), (3) gives "1,22" "" "3"."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.room import Room
from shardmill.io.weave import Column, constant, texts

try:
    from shardmill.io import _weave  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _weave = None

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
