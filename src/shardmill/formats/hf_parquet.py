"""Token rows as columns of parquet, without a step a token.

    key         text with its length before each
    input_ids   16 bits each, as in memory: numbers into the dictionary 0, 1, 2 ...; int32 as it is
    labels      the same, with -100 at the end of the dictionary
    loss_mask   runs, straight from the spans
    modality    runs
    lengths     int32 as they are

All readers know these encodings; libraries choose others, because they do not know that ids are
numbers below 65,536 already, and that masks and levels are runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.parquetfile import Chunk
from shardmill.formats.parquetruns import list_levels, plain_numbers, runs, value_levels
from shardmill.formats.tokenrows import TokenRows
from shardmill.formats.tokenslice import Runs
from shardmill.io.weave import cells, weave
from shardmill.model.sample import SEGMENT_KINDS

NO_LABEL = -100
MAX_ENTRIES = 1 << 16
Values: TypeAlias = tuple[NDArray[np.int32] | None, tuple[Any, ...]]  # dictionary, pieces of a page


def chunks_of(rows: TokenRows, names: Sequence[str]) -> list[Chunk]:
    """Return the columns of these names."""
    num_levels, levels = list_levels(rows.bounds)
    found = []
    for name in names:
        if name in TOKEN_VALUES:
            dictionary, values = TOKEN_VALUES[name](rows)
            found.append(Chunk(num_levels, (levels, *values), dictionary))
        else:
            found.append(_keys(rows) if name == "key" else _lengths(rows))
    return found


def _ids(rows: TokenRows) -> Values:
    ids = rows.ids
    if ids.itemsize > 2:
        return None, (ids.astype("<i4", copy=False),)
    return np.arange(int(ids.max(initial=0)) + 1, dtype=np.int32), _numbers(ids)


def _labels(rows: TokenRows) -> Values:
    ids, learned = rows.ids, rows.part.loss_mask().view(bool)
    none = int(ids.max(initial=0)) + 1
    if ids.itemsize > 2 or none >= MAX_ENTRIES:
        return None, (np.where(learned, ids.astype("<i4"), np.int32(NO_LABEL)),)
    dictionary = np.append(np.arange(none, dtype=np.int32), np.int32(NO_LABEL))
    return dictionary, _numbers(np.where(learned, ids, np.uint16(none)))


def _loss_mask(rows: TokenRows) -> Values:
    return _runs(2, rows.part.loss_runs())


def _modality(rows: TokenRows) -> Values:
    return _runs(len(SEGMENT_KINDS), rows.part.modality_runs())


TOKEN_VALUES: dict[str, Callable[[TokenRows], Values]] = {
    "input_ids": _ids,
    "loss_mask": _loss_mask,
    "labels": _labels,
    "modality": _modality,
}


def _runs(num_values: int, found: Runs) -> Values:
    """Return runs of a few values, which are their own numbers in the dictionary."""
    num_bits = (num_values - 1).bit_length()
    return np.arange(num_values, dtype=np.int32), (bytes([num_bits]), runs(*found))


def _numbers(values: NDArray[Any]) -> tuple[Any, ...]:
    """Return numbers of 16 bits into a dictionary."""
    return bytes([16]), *plain_numbers(values.astype("<u2", copy=False))


def _keys(rows: TokenRows) -> Chunk:
    """Return the keys, each as the four bytes of its length and its text."""
    keys = rows.key_texts()
    content = weave([cells(keys.lengths.astype("<u4")[:, None]), keys]).data
    return Chunk(len(rows), (value_levels(len(rows)), content))


def _lengths(rows: TokenRows) -> Chunk:
    num_levels, levels = list_levels(rows.stored)
    return Chunk(num_levels, (levels, rows.part.lengths.astype("<i4", copy=False)))
