"""The parts that UniDisc's workers left behind, and which row of which part is taken.

A folder holds `train_0`, `train_1`, ... from ranks that ended and `tmp_train_0`, ... from ranks
that were stopped, each a TensorDict with a column `idx`; or it is one merged TensorDict. A row was
written if its `idx` is not negative and its `write_flag`, if there is one, is set. Of rows with one
id the first is taken, finished parts before temporary ones: none is lost and none is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.adapters.unidisc.memmaps import is_memmap_folder, open_memmaps

Ids = Literal["global", "local"]
PART = re.compile(r"(tmp_)?(train|val)(?:_(.+))?")
ROWS_AT_ONCE = 256
TOKEN_NAMES = ("input_ids", "img_input_ids", "txt_input_ids")


@dataclass(frozen=True, slots=True, eq=False)
class UnidiscPart:
    """The folder of a part and its columns, mapped."""

    folder: Path
    table: dict[str, NDArray[Any]]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass(frozen=True, slots=True, eq=False)
class PartRows:
    """A part, the rows that are taken from it in order, and how many are not and why."""

    part: UnidiscPart
    rows: NDArray[np.int64]
    ids: NDArray[np.int64]
    num_unwritten: int
    num_repeated: int


def find_parts(root: Path, split: str, *, skip_broken: bool) -> list[UnidiscPart]:
    """Return the parts of a split: finished ones by number, then the temporary ones."""
    if is_memmap_folder(root):
        return [UnidiscPart(root, open_memmaps(root))]
    found = sorted((key, path) for path in root.iterdir() if (key := _sort_key(path, split)))
    opened = (_open_part(path, skip_broken=skip_broken) for _, path in found)
    parts = [part for part in opened if part is not None]
    if not parts:
        raise ConfigError(f"{root} holds no parts of split {split!r}, such as {split}_0")
    return parts


def choose_rows(parts: Sequence[UnidiscPart], ids: Ids | None) -> Iterator[PartRows]:
    """Yield what is taken from each part; holds 9 bytes a row of all parts.

    With `ids` None rows of one id must hold the same tokens, because nothing else tells whether
    the parts count their samples together or each from 0.
    """
    columns = [_id_column(part) for part in parts]
    taken = _first_of_each(columns) if ids != "local" else [np.flatnonzero(c >= 0) for c in columns]
    if ids is None:
        _check_repeats(parts, columns, taken)
    for part, column, rows in zip(parts, columns, taken):
        num_written = int((column >= 0).sum())
        yield PartRows(part, rows, column[rows], len(column) - num_written, num_written - len(rows))


def _sort_key(path: Path, split: str) -> tuple[bool, int, str] | None:
    found = PART.fullmatch(path.name)
    if found is None or found[2] != split or not path.is_dir():
        return None
    number = found[3] or ""
    return bool(found[1]), int(number) if number.isdecimal() else -1, number


def _open_part(folder: Path, *, skip_broken: bool) -> UnidiscPart | None:
    try:
        return UnidiscPart(folder, open_memmaps(folder))
    except FormatError as error:
        if not folder.name.startswith("tmp_"):
            raise
        if not skip_broken:
            hint = "; --from unidisc,skip_broken=true leaves this part out"
            raise FormatError(error.problem + hint, path=error.path) from error
        return None


def _id_column(part: UnidiscPart) -> NDArray[np.int64]:
    """Return the id of each row, -1 where none was written."""
    table = part.table
    if "idx" not in table:
        raise FormatError("has no column 'idx': it was not written by UniDisc", path=part.folder)
    ids = table["idx"].reshape(len(table["idx"]), -1)[:, 0].astype(np.int64)
    if "write_flag" in table:
        written = table["write_flag"].reshape(len(ids), -1)[:, 0]
        ids = np.where(written, ids, -1)
    return np.maximum(ids, -1)


def _first_of_each(columns: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return, for each part, the rows whose id no earlier row of any part has."""
    joined = np.concatenate(columns)
    ids, first = np.unique(joined, return_index=True)
    is_taken = np.zeros(len(joined), np.bool_)
    is_taken[first[ids >= 0]] = True
    bounds = np.cumsum([len(column) for column in columns])[:-1]
    return [np.flatnonzero(part) for part in np.split(is_taken, bounds)]


def _check_repeats(
    parts: Sequence[UnidiscPart],
    columns: Sequence[NDArray[np.int64]],
    taken: Sequence[NDArray[np.int64]],
) -> None:
    """Raise `ConfigError` unless every row that is left out repeats the one that is taken."""
    owner_ids = np.concatenate([column[rows] for column, rows in zip(columns, taken)])
    owner_part = np.repeat(np.arange(len(parts)), [len(rows) for rows in taken])
    owner_row = np.concatenate(taken)
    order = np.argsort(owner_ids, kind="stable")
    for number, (column, rows) in enumerate(zip(columns, taken)):
        is_left = column >= 0
        is_left[rows] = False
        left = np.flatnonzero(is_left)
        at = order[np.searchsorted(owner_ids, column[left], sorter=order)]
        for mine, other, theirs in _runs(left, owner_part[at], owner_row[at]):
            differs = _differing_row(parts[number].table, mine, parts[other].table, theirs)
            if differs is not None:
                raise _conflict(int(column[mine][differs]), parts[other], parts[number])


def _runs(
    rows: NDArray[np.int64], parts: NDArray[np.int64], others: NDArray[np.int64]
) -> Iterator[tuple[slice, int, slice]]:
    """Yield (my rows, other part, its rows) for runs that go on by one in both, as slices."""
    breaks = (np.diff(rows) != 1) | (np.diff(parts) != 0) | (np.diff(others) != 1)
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    for first, end in pairwise(cuts):
        for start in range(first, end, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, end - start)
            mine, theirs = int(rows[start]), int(others[start])
            yield slice(mine, mine + count), int(parts[start]), slice(theirs, theirs + count)


def _differing_row(
    a: dict[str, NDArray[Any]], mine: slice, b: dict[str, NDArray[Any]], theirs: slice
) -> int | None:
    for name in TOKEN_NAMES:
        if name in a and name in b:
            rows, others = a[name][mine], b[name][theirs]
            if rows.shape != others.shape:
                return 0
            if not np.array_equal(_words(rows), _words(others)):
                return int(np.argmax((rows != others).any(axis=1)))
    return None


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows as numbers of eight bytes, which are compared faster, if they can be cut."""
    return rows if rows.nbytes % 8 or not rows.size else rows.reshape(-1).view(np.uint64)


def _conflict(id_: int, first: UnidiscPart, second: UnidiscPart) -> ConfigError:
    return ConfigError(
        f"id {id_} has other tokens in {second.name} than in {first.name}: choose "
        "--from unidisc,ids=global if it is one sample that was tokenized twice (the first is "
        "kept), or --from unidisc,ids=local if each part counts its own samples from 0 (all are)"
    )
