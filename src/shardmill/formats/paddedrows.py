"""Padded rows without their padding: the ids of many rows copied, those of pictures shifted.

A row is named by the place of its first value in a flat array, which may be a whole mapped file, so
that rows are copied once, from where they lie to where they are written from. The three loops are
compiled where there is a compiler; numpy does the same elsewhere, and says what is wrong where the
compiled loop only sees that something is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.space import TokenSpace

try:
    from shardmill.formats import _paddedrows  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _paddedrows = None

RUNS_A_ROW = 4


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where rows begin in a flat array, and how many values each has."""

    first: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the rows begin once they are joined."""
        return np.cumsum(self.lengths) - self.lengths

    def join(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows after each other."""
        ends = (self.first + self.lengths).tolist()
        rows = [values[a:b] for a, b in zip(self.first.tolist(), ends)]
        return np.concatenate([values[:0], *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """Which ids a row may have: those outside of runs below `size`, those in runs below `run_size`.

    The latter become ids of the space when `shift` is added.
    """

    size: int
    run_size: int
    shift: int

    @classmethod
    def of(cls, space: TokenSpace, *, is_shifted: bool) -> IdRule:
        """Return the rule of a space, for pictures of shifted ids or of codes that count from 0."""
        if is_shifted:
            return cls(size=space.size, run_size=space.size, shift=0)
        return cls(size=space.size, run_size=space.num_codes, shift=space.code_offset)


def prefix_lengths(
    mask: NDArray[np.bool_], first: NDArray[np.int64], width: int
) -> NDArray[np.int64] | None:
    """Return how many values of each row are True if those are its first; None if not."""
    if _paddedrows is None:
        return plain_lengths(mask, first, width)
    lengths = np.empty(len(first), np.int64)
    return lengths if _paddedrows.prefix_lengths(mask, first, width, lengths) else None


def plain_lengths(
    mask: NDArray[np.bool_], first: NDArray[np.int64], width: int
) -> NDArray[np.int64] | None:
    """Do the same in numpy."""
    rows = mask[first[:, None] + np.arange(width)]
    lengths = rows.sum(axis=1, dtype=np.int64)
    return lengths if bool((rows == (np.arange(width) < lengths[:, None])).all()) else None


def find_runs(values: NDArray[Any], rows: Rows, value: int) -> NDArray[np.int64]:
    """Return where bytes have this value: (row, start in the row, length) of each run."""
    if _paddedrows is None or values.dtype.itemsize > 1:
        return plain_runs(values, rows, value)
    room = RUNS_A_ROW * len(rows.first)
    while True:
        runs = np.empty((room, 3), np.int64)
        count = _paddedrows.find_runs(values, rows.first, rows.lengths, value, runs)
        if count <= room:
            return runs[:count]
        room = count


def plain_runs(values: NDArray[Any], rows: Rows, value: int) -> NDArray[np.int64]:
    """Do the same in numpy."""
    has_value = rows.join(values) == value
    owner = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    is_first, is_last = has_value.copy(), has_value.copy()
    goes_on = has_value[1:] & has_value[:-1] & (owner[1:] == owner[:-1])
    is_first[1:] &= ~goes_on
    is_last[:-1] &= ~goes_on
    begin, last = np.flatnonzero(is_first), np.flatnonzero(is_last)
    return np.stack([owner[begin], begin - rows.starts[owner[begin]], last - begin + 1], axis=1)


def copy_ids(
    ids: NDArray[Any],
    rows: Rows,
    runs: NDArray[np.int64],
    rule: IdRule,
    out: NDArray[Any],
    to: NDArray[np.int64],
) -> None:
    """Copy the ids of row i to `out[to[i]]` and on, its runs shifted."""
    if _paddedrows is not None and ids.itemsize in (2, 4) and (rule.run_size or not len(runs)):
        most = int(np.iinfo(ids.dtype).max)
        last, run_last = min(rule.size - 1, most), max(0, min(rule.run_size - 1, most))
        source = (ids, ids.itemsize, rows.first, rows.lengths, np.ascontiguousarray(runs))
        target = (to, out, out.itemsize)
        if _paddedrows.copy_rows(*source, *target, last, run_last, rule.shift):
            return
    plain_copy(ids, rows, runs, rule, out, to)


def plain_copy(
    ids: NDArray[Any],
    rows: Rows,
    runs: NDArray[np.int64],
    rule: IdRule,
    out: NDArray[Any],
    to: NDArray[np.int64],
) -> None:
    """Do the same in numpy; ids that the rule does not allow are a `FormatError`."""
    joined = rows.join(ids).astype(np.int64)
    begin = rows.starts[runs[:, 0]] + runs[:, 1]
    in_run = np.zeros(len(joined) + 1, np.int64)
    in_run[begin] += 1
    np.subtract.at(in_run, begin + runs[:, 2], 1)
    is_code = np.cumsum(in_run[:-1]) > 0
    _check(joined[~is_code], rule.size, "id", "among its tokens")
    _check(joined[is_code], rule.run_size, "code", "in a picture")
    joined[is_code] += rule.shift
    out[np.arange(len(joined)) + np.repeat(to - rows.starts, rows.lengths)] = joined


def _check(values: NDArray[np.int64], size: int, what: str, where: str) -> None:
    is_wrong = (values < 0) | (values >= size)
    if is_wrong.any():
        value = int(values[is_wrong][0])
        problem = f"holds the {what} {value} {where}, the token space has {size}"
        raise FormatError(problem, path="input_ids")
