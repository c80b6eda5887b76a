"""Rows that are too long: fail, drop with a reason, cut text only, or split into blocks.

Media are never cut: a picture stays whole with its delimiters, or the sample is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from shardmill.errors import SampleError, UnitFailed
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, spans_of
from shardmill.tokens.assemble import Assembled

Overlong: TypeAlias = Literal["fail", "drop", "cut"]


def fit(assembled: Assembled, max_length: int | None, overlong: Overlong) -> TokenRow:
    """Return the row if it has at most `max_length` tokens, else what the policy says."""
    row = assembled.row
    if max_length is None or len(row.ids) <= max_length:
        return row
    found = f"{len(row.ids)} tokens, at most {max_length} are allowed"
    if overlong == "fail":
        raise UnitFailed(f"sample {row.key} has {found}: raise max_length, or drop or cut it")
    if overlong == "drop":
        raise SampleError("too long", found)
    return cut_text(assembled, max_length)


def cut_text(assembled: Assembled, max_length: int) -> TokenRow:
    """Return the row without the ends of its last texts; control tokens and media stay."""
    row, excess = assembled.row, len(assembled.row.ids) - max_length
    keep = np.ones(len(row.ids), np.bool_)
    for start, length in reversed(assembled.texts):
        cut = min(length, excess)
        keep[start + length - cut : start + length] = False
        excess -= cut
    if excess > 0:
        raise SampleError("too long", f"{max_length + excess} tokens remain without any text")
    return _kept(row, keep)


def split_blocks(row: TokenRow, block_size: int) -> list[TokenRow]:
    """Return rows of at most `block_size` tokens that hold every token once, in order.

    The first keeps the key, the others add ~1, ~2. A block ends before a picture that does not
    fit into what is left of it.
    """
    bounds = [0]
    while bounds[-1] < len(row.ids):
        bounds.append(_block_end(row, bounds[-1], block_size))
    if len(bounds) <= 2:
        return [row]
    mask = mask_of(row.loss, len(row.ids))
    return [
        replace(
            row,
            key=row.key if number == 0 else f"{row.key}~{number}",
            ids=row.ids[start:end],
            loss=spans_of(mask[start:end]),
            media=tuple(_moved(m, -start) for m in row.media if start <= m.start and m.end <= end),
            continues=number > 0,
        )
        for number, (start, end) in enumerate(pairwise(bounds))
    ]


def _block_end(row: TokenRow, start: int, block_size: int) -> int:
    end = min(start + block_size, len(row.ids))
    for span in row.media:
        if span.start < end < span.end:
            end = span.start
    if end == start:
        raise SampleError("picture longer than a block", f"at token {start} of {row.key}")
    return end


def _kept(row: TokenRow, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> TokenRow:
    removed = np.cumsum(~keep)
    return replace(
        row,
        ids=row.ids[keep],
        loss=spans_of(mask_of(row.loss, len(row.ids))[keep]),
        media=tuple(_moved(m, -int(removed[m.start])) for m in row.media),
    )


def _moved(span: MediaSpan, by: int) -> MediaSpan:
    return replace(span, position=span.position + by)
