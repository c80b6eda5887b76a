"""UniDisc's padded rows as flat documents of a token space, many rows at a time.

    interleaved    input_ids, attention_mask, modality [N, L]: text ids and raw codes, padded
    paired         txt_input_ids, txt_attention_mask [N, T] and img_input_ids [N, I], raw codes
    one modality   input_ids [N, L], modality [N, 1]
    packs          sample_ids [N, L] besides: the number of each token's document in its pack

No step is taken a token: 60 % of a row of 3072 tokens is copied once, found again in `cuts`, the
places where a document or a picture begins or ends, and shifted where it is a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.tokenfile import MEDIA_COLUMNS
from shardmill.io.tokenwrite import MediaColumns
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MODALITIES

Table: TypeAlias = dict[str, NDArray[Any]]
CodeForm: TypeAlias = Literal["raw", "shifted"]
IMAGE = MODALITIES["image"]
WORD = 8
FULL_WORD = np.uint64(0x0101010101010101)
NAMES = ("codes",)


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows:
    """Documents after each other: `per_row` says how many each row is made of."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_row: NDArray[np.int64]
    media: MediaColumns


def interleaved_rows(table: Table, rows: Any, space: TokenSpace, codes: CodeForm) -> FlatRows:
    """Return rows of text and pictures; `rows` is a slice or an array of numbers."""
    padded, kinds = table["input_ids"][rows], table["modality"][rows]
    mask = (
        table["attention_mask"][rows] if "attention_mask" in table else np.ones(padded.shape, bool)
    )
    lengths = prefix_lengths(mask)
    ids = _unsigned(_kept(padded, mask, lengths), space)
    totals = mask.sum(axis=1, dtype=np.int64) if lengths is None else lengths
    row_starts = np.cumsum(totals) - totals
    if kinds.shape[1] == 1:
        is_used = totals > 0  # an empty row begins where the next one does
        cuts, kind_at = row_starts[is_used], kinds[is_used, 0]
    elif lengths is None:
        kept = kinds[mask]
        cuts = np.union1d(row_starts[totals > 0], _changes(kept))
        kind_at = kept[cuts]
    else:
        cuts, kind_at = _cuts_of_kinds(kinds, lengths, row_starts)
    starts, per_row = row_starts, np.ones_like(totals)
    if "sample_ids" in table:
        changes = _changes(_kept(table["sample_ids"][rows], mask, lengths))
        starts = np.union1d(row_starts[totals > 0], changes)
        per_row = np.diff(np.searchsorted(starts, np.append(row_starts, len(ids))))
    media = _shift_pictures(ids, (cuts, kind_at), starts, space, codes)
    return FlatRows(ids, np.append(starts[1:], len(ids)) - starts, per_row, media)


def paired_rows(
    table: Table, rows: Any, space: TokenSpace, codes: CodeForm, *, end: bool
) -> FlatRows:
    """Return pairs as text without end, marker, codes and, with `end`, the end."""
    text, pictures = table["txt_input_ids"][rows], table["img_input_ids"][rows]
    mask = table["txt_attention_mask"][rows] if "txt_attention_mask" in table else text >= 0
    pictures = space.code_ids(pictures) if codes == "raw" else pictures
    marker = [space.names["image"]] if "image" in space.names else []
    last = [space.special("eos")] if end else []
    words = [_without_end(row[is_word], last) for row, is_word in zip(text, mask.astype(bool))]
    parts = [part for pair in zip(words, pictures) for part in (pair[0], marker, pair[1], last)]
    ids = np.concatenate([*parts, np.empty(0, np.int64)]).astype(space.dtype)
    num_words = np.array([len(row) for row in words], np.int64)
    lengths = num_words + len(marker) + pictures.shape[1] + len(last)
    ones = np.ones_like(num_words)
    before = len(marker) * ones
    media = _media_columns(ones, num_words + before, pictures.shape[1] * ones, before)
    return FlatRows(ids, lengths, ones, media)


def prefix_lengths(mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Return how many values of each row are True if those are its first; None if not.

    Eight values are looked at as one word: a row is a prefix if as many words are full as its
    length allows, all of them in front, and the next one has its first bytes set.
    """
    num_rows, width = mask.shape
    if width % WORD or not mask.flags.c_contiguous or not num_rows:
        lengths = mask.sum(axis=1, dtype=np.int64)
        is_prefix = bool((mask == (np.arange(width) < lengths[:, None])).all())
        return lengths if is_prefix else None
    words = mask.view(np.uint64)
    num_full = (words == FULL_WORD).argmin(axis=1).astype(np.int64)
    lengths = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
    num_full[lengths == width] = words.shape[1]
    rest = lengths - WORD * num_full
    at = np.minimum(num_full, words.shape[1] - 1)
    following = words[np.arange(num_rows), at]
    wanted = FULL_WORD & ((np.uint64(1) << (rest % WORD * WORD).astype(np.uint64)) - np.uint64(1))
    good = (num_full == words.shape[1]) | ((rest < WORD) & (following == wanted))
    return lengths if bool(good.all()) else None


def _kept(
    padded: NDArray[Any], mask: NDArray[np.bool_], lengths: NDArray[np.int64] | None
) -> NDArray[Any]:
    """Return the values that are not padding, row after row."""
    if lengths is None:
        return padded[mask]
    rows = [row[:length] for row, length in zip(padded, lengths.tolist())]
    return np.concatenate(rows) if rows else padded.reshape(-1)


def _unsigned(ids: NDArray[Any], space: TokenSpace) -> NDArray[Any]:
    """Return ids of our own in the dtype of the space; one below 0 would be another id there."""
    if len(ids) and int(ids.min()) < 0:
        raise FormatError(f"holds the id {int(ids.min())} among its tokens", path="input_ids")
    if ids.dtype.itemsize == space.dtype.itemsize:
        return ids.view(space.dtype)
    return ids.astype(space.dtype)


def _changes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(values[1:] != values[:-1]) + 1


def _cuts_of_kinds(
    kinds: NDArray[Any], lengths: NDArray[np.int64], row_starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return where a row begins or its modality changes, among what is kept, and what it is there.

    Changes are looked for in words of eight values where that is possible: a word of zeros or ones
    that equals the word before it has none.
    """
    width = kinds.shape[1]
    flat = np.ascontiguousarray(kinds).reshape(-1)
    places = _changes(flat) if width % WORD else _changes_in_words(flat)
    row, column = np.divmod(np.union1d(np.arange(len(kinds)) * width, places), width)
    is_kept = column < lengths[row]
    row, column = row[is_kept], column[is_kept]
    return row_starts[row] + column, kinds[row, column]


def _changes_in_words(flat: NDArray[Any]) -> NDArray[np.int64]:
    words = flat.view(np.uint64)
    is_mixed = (words != 0) & (words != FULL_WORD)
    is_mixed[1:] |= words[1:] != words[:-1]
    first = np.flatnonzero(is_mixed)[:, None] * WORD
    places = (first + np.arange(WORD + 1)).reshape(-1)
    places = places[(places > 0) & (places < len(flat))]
    is_change: NDArray[np.bool_] = flat[places] != flat[places - 1]
    return places[is_change]


def _shift_pictures(
    ids: NDArray[Any],
    kinds: tuple[NDArray[np.int64], NDArray[Any]],
    starts: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
) -> MediaColumns:
    """Return the runs of codes, none across two documents, and shift them behind the text."""
    changes, kind_at = kinds
    cuts = np.union1d(starts[starts < len(ids)], changes)
    ends = np.append(cuts[1:], len(ids))
    is_picture = kind_at[np.searchsorted(changes, cuts, side="right") - 1] == IMAGE
    first, last = cuts[is_picture], ends[is_picture]
    if codes == "raw":
        offset = ids.dtype.type(space.code_offset)
        for start, end in zip(first.tolist(), last.tolist()):
            picture = ids[start:end]
            picture += offset
    owner = np.searchsorted(starts, first, side="right") - 1
    counts = np.bincount(owner, minlength=len(starts)).astype(np.int64)
    position = first - starts[owner]
    has_marker = (position > 0) & (ids[first - 1] == space.names.get("image", -1))
    return _media_columns(counts, position, last - first, has_marker.astype(np.int64))


def _media_columns(
    counts: NDArray[np.int64],
    position: NDArray[np.int64],
    length: NDArray[np.int64],
    before: NDArray[np.int64],
) -> MediaColumns:
    side = np.floor(np.sqrt(length) + 0.5).astype(np.int64)
    is_square = side * side == length
    ones = np.ones_like(length)
    grid = [ones, np.where(is_square, side, 1), np.where(is_square, side, length)]
    zeros = np.zeros_like(length)
    columns = dict.fromkeys(MEDIA_COLUMNS, zeros)
    columns |= {"position": position, "length": length, "before": before, "kind": IMAGE * ones}
    return MediaColumns(counts, columns, np.stack(grid, axis=1), NAMES)


def _without_end(words: NDArray[Any], last: list[int]) -> NDArray[Any]:
    return words[:-1] if last and words[-1:].tolist() == last else words
