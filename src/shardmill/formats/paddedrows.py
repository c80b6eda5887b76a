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


def prefix_lengths(mask: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return how many values of these rows are set if those are their first; None if not."""
    if _paddedrows is None or mask.itemsize > 1:
        return plain_lengths(mask, numbers)
    lengths, width = np.empty(len(numbers), np.int64), mask.shape[1]
    first = numbers * width
    good = _paddedrows.prefix_lengths(mask.reshape(-1), first, width, lengths)
    return lengths if good else None


def plain_lengths(mask: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Do the same in numpy."""
    rows = mask[numbers]
    lengths = rows.sum(axis=1, dtype=np.int64)
    return lengths if bool((rows == (np.arange(mask.shape[1]) < lengths[:, None])).all()) else None


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
    has_value, starts = rows.join(values) == value, rows.starts
    begins, ends = has_value.copy(), has_value.copy()
    begins[1:] &= ~has_value[:-1]
    ends[:-1] &= ~has_value[1:]
    for edges, places in ((begins, starts), (ends, starts + rows.lengths - 1)):
        at_edge = places[rows.lengths > 0]
        edges[at_edge] = has_value[at_edge]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends)
    owner = np.searchsorted(starts, first, side="right") - 1
    return np.stack([owner, first - starts[owner], last - first + 1], axis=1)


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
    joined, starts = rows.join(ids), rows.starts
    begins = starts[runs[:, 0]] + runs[:, 1]
    pieces = [slice(*ends) for ends in zip(begins.tolist(), (begins + runs[:, 2]).tolist())]
    for piece in pieces:
        _check(joined[piece], rule.run_size, "code", "in a picture")
    _check(joined, rule.size, "id", "among its tokens")
    joined = joined.astype(out.dtype)
    for piece in pieces:
        joined[piece] += out.dtype.type(rule.shift)
    for start, length, place in zip(starts.tolist(), rows.lengths.tolist(), to.tolist()):
        out[place : place + length] = joined[start : start + length]


def _check(values: NDArray[Any], size: int, what: str, where: str) -> None:
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < size):
        return
    value = int(values[(values < 0) | (values >= size)][0])
    problem = f"holds the {what} {value} {where}, the token space has {size}"
    raise FormatError(problem, path="input_ids")
