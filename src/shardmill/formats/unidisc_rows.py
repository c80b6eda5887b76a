"""UniDisc's padded rows as flat documents of a token space, many rows at a time.

    interleaved    input_ids, attention_mask, modality [N, L]: text ids and raw codes, padded
    one modality   input_ids [N, L], modality [N, 1]
    packs          sample_ids [N, L] besides: the number of each token's document in its pack

A row is copied once, without its padding and with its codes shifted (paddedrows.py); everything
else is arithmetic on the places where documents and pictures begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.formats.paddedrows import IdRule, Rows, copy_ids, find_runs, prefix_lengths
from shardmill.io.tokenfile import MEDIA_COLUMNS
from shardmill.io.tokenwrite import MediaColumns
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MODALITIES

Table: TypeAlias = dict[str, NDArray[Any]]
CodeForm: TypeAlias = Literal["raw", "shifted"]
IMAGE = MODALITIES["image"]
NAMES = ("codes",)
ROWS_AT_ONCE = 256
WIDE = ("input_ids", "attention_mask", "modality", "sample_ids")


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows:
    """Documents after each other: `per_row` says how many each row is made of."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_row: NDArray[np.int64]
    media: MediaColumns


def interleaved_rows(
    table: Table,
    numbers: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
    room: NDArray[Any] | None = None,
) -> FlatRows:
    """Return rows of text and pictures; the ids lie in `room` if they have room there."""
    rows, flat = without_padding(table, numbers)
    runs = _pictures(table, numbers, rows, flat)
    starts, per_row, total = rows.starts, np.ones_like(rows.lengths), int(rows.lengths.sum())
    ids = place_for(total, space, room)
    rule = IdRule.of(space, is_shifted=codes == "shifted")
    copy_ids(flat["input_ids"], rows, runs, rule, ids, starts)
    first = starts[runs[:, 0]] + runs[:, 1]
    ends = first + runs[:, 2]
    if "sample_ids" in flat:
        changes = _changes(rows.join(flat["sample_ids"]))
        documents = np.union1d(starts[rows.lengths > 0], changes)
        per_row = np.diff(np.searchsorted(documents, np.append(starts, total)))
        starts, (first, ends) = documents, _cut(first, ends, documents)
    media = _media_of(ids, starts, first, ends, space)
    return FlatRows(ids, np.append(starts[1:], total) - starts, per_row, media)


def is_verbatim(table: Table, space: TokenSpace, codes: CodeForm) -> bool:
    """Say whether the file of ids is what they become: no padding, and nothing to shift."""
    if "input_ids" not in table or "modality" not in table:
        return False
    ids, kinds = table["input_ids"], table["modality"]
    mask = table.get("attention_mask", np.ones(1, np.bool_))
    if not ids.size or ids.itemsize != space.dtype.itemsize or not mask.all():
        return False
    if codes == "shifted" or space.code_offset == 0:
        return True
    some = (kinds[start : start + ROWS_AT_ONCE] for start in range(0, len(kinds), ROWS_AT_ONCE))
    return not any((rows == IMAGE).any() for rows in some)


def place_for(count: int, space: TokenSpace, room: NDArray[Any] | None) -> NDArray[Any]:
    """Return where so many ids may be written: in `room` if they have room there."""
    if room is None or len(room) < count:
        return np.empty(count, space.dtype)
    return room[:count]


def without_padding(table: Table, numbers: NDArray[np.int64]) -> tuple[Rows, Table]:
    """Return the rows in flat columns; nothing is copied unless a mask has gaps."""
    wide = _wide_columns(table)
    width, mask = wide["input_ids"].shape[1], wide.pop("attention_mask", None)
    first, lengths = numbers * width, None
    if mask is None:
        lengths = np.full(len(first), width, np.int64)
    else:
        lengths = prefix_lengths(mask, numbers)
    if lengths is not None:
        return Rows(first, lengths), {name: column.reshape(-1) for name, column in wide.items()}
    assert mask is not None
    is_kept = mask[numbers] != 0
    lengths = is_kept.sum(axis=1, dtype=np.int64)
    flat = {name: column[numbers][is_kept] for name, column in wide.items()}
    return Rows(np.cumsum(lengths) - lengths, lengths), flat


def _wide_columns(table: Table) -> Table:
    """Return the columns that have a value for each token; only modality may have one a row."""
    shape = table["input_ids"].shape
    wide = {name: table[name] for name in WIDE if name in table}
    if "modality" in wide and wide["modality"].shape == (shape[0], 1):
        del wide["modality"]
    for name, column in wide.items():
        if column.shape != shape:
            raise FormatError(f"has the shape {column.shape}, input_ids has {shape}", path=name)
    return wide


def _pictures(
    table: Table, numbers: NDArray[np.int64], rows: Rows, flat: Table
) -> NDArray[np.int64]:
    """Return the runs of codes in the rows: row, start and length."""
    if "modality" in flat:
        return find_runs(flat["modality"], rows, IMAGE)
    is_picture = (table["modality"][numbers, 0] == IMAGE) & (rows.lengths > 0)
    owner = np.flatnonzero(is_picture)
    return np.stack([owner, np.zeros_like(owner), rows.lengths[owner]], axis=1)


def _changes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(values[1:] != values[:-1]) + 1


def _cut(
    first: NDArray[np.int64], ends: NDArray[np.int64], cuts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the runs from `first` to `ends` in pieces that no cut goes through."""
    owner = np.searchsorted(first, cuts, side="left") - 1
    inside = cuts[(owner >= 0) & (cuts < np.append(ends, 0)[owner])]
    return np.sort(np.append(first, inside)), np.sort(np.append(ends, inside))


def _media_of(
    ids: NDArray[Any],
    starts: NDArray[np.int64],
    first: NDArray[np.int64],
    ends: NDArray[np.int64],
    space: TokenSpace,
) -> MediaColumns:
    """Return the pictures as media of the documents that begin at `starts`."""
    owner = np.searchsorted(starts, first, side="right") - 1
    counts = np.bincount(owner, minlength=len(starts)).astype(np.int64)
    position = first - starts[owner]
    has_marker = (position > 0) & (ids[first - 1] == space.names.get("image", -1))
    return media_columns(counts, position, ends - first, has_marker.astype(np.int64))


def media_columns(
    counts: NDArray[np.int64],
    position: NDArray[np.int64],
    length: NDArray[np.int64],
    before: NDArray[np.int64],
) -> MediaColumns:
    """Return pictures as media: `counts` of them in each row, square if they can be."""
    side = np.floor(np.sqrt(length) + 0.5).astype(np.int64)
    is_square = side * side == length
    ones = np.ones_like(length)
    grid = [ones, np.where(is_square, side, 1), np.where(is_square, side, length)]
    zeros = np.zeros_like(length)
    columns = dict.fromkeys(MEDIA_COLUMNS, zeros)
    columns |= {"position": position, "length": length, "before": before, "kind": IMAGE * ones}
    return MediaColumns(counts, columns, np.stack(grid, axis=1), NAMES)
