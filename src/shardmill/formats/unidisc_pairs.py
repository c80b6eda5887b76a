"""UniDisc's pairs as flat documents of a token space: text without end, marker, codes, end.

txt_input_ids, txt_attention_mask [N, T]    padded text; without a mask, ids below 0 are padding
img_input_ids [N, I]                        the codes of one picture, raw or shifted
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.paddedrows import IdRule, Rows, copy_ids
from shardmill.formats.unidisc_rows import (
    CodeForm,
    FlatRows,
    Table,
    media_columns,
    place_for,
    without_padding,
)
from shardmill.model.space import TokenSpace


def paired_rows(
    table: Table,
    numbers: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
    room: NDArray[Any] | None = None,
    *,
    end: bool,
) -> FlatRows:
    """Return pairs of text and picture, with `end` each with one end token."""
    marker, last = space.names.get("image"), space.special("eos") if end else None
    text, words = _words(table, numbers, last)
    pictures = _pictures(table, numbers)
    position = words.lengths + (marker is not None)
    lengths = position + pictures.lengths + end
    starts = np.cumsum(lengths) - lengths
    ids = place_for(int(lengths.sum()), space, room)
    rule = IdRule.of(space, is_shifted=codes == "shifted")
    copy_ids(text, words, np.empty((0, 3), np.int64), rule, ids, starts)
    images, codes_at = table["img_input_ids"].reshape(-1), starts + position
    copy_ids(images, pictures, _whole_runs(pictures), rule, ids, codes_at)
    if marker is not None:
        ids[codes_at - 1] = marker
    if last is not None:
        ids[starts + lengths - 1] = last
    ones = np.ones_like(lengths)
    before = ones * (marker is not None)
    media = media_columns(ones, position, pictures.lengths, before)
    return FlatRows(ids, lengths, ones, media)


def _words(table: Table, numbers: NDArray[np.int64], last: int | None) -> tuple[NDArray[Any], Rows]:
    """Return flat ids of text, and the rows in them without padding and without their end."""
    columns = {"input_ids": table["txt_input_ids"]}
    if "txt_attention_mask" in table:
        columns["attention_mask"] = table["txt_attention_mask"]
    else:
        columns["input_ids"] = columns["input_ids"][numbers]
        columns["attention_mask"] = columns["input_ids"] >= 0
        numbers = np.arange(len(numbers))
    rows, flat = without_padding(columns, numbers)
    ids = flat["input_ids"]
    if last is None or not len(ids):
        return ids, rows
    final = np.maximum(rows.first + rows.lengths - 1, 0)
    has_end = (rows.lengths > 0) & (ids[final] == last)
    return ids, Rows(rows.first, rows.lengths - has_end)


def _pictures(table: Table, numbers: NDArray[np.int64]) -> Rows:
    width = table["img_input_ids"].shape[1]
    return Rows(numbers * width, np.full(len(numbers), width, np.int64))


def _whole_runs(rows: Rows) -> NDArray[np.int64]:
    """Return each row as one run: all of it is codes."""
    numbers = np.arange(len(rows.lengths))
    return np.stack([numbers, np.zeros_like(numbers), rows.lengths], axis=1)
