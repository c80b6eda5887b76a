"""What becomes of a row that is too long: one policy for tokenizing and for packing.

fail   nothing is made: someone must choose
drop   the sample is left out, and counted under its reason
cut    text goes from its end; media stay whole, or the sample is dropped
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.tokenrow import TokenRow, mask_of, spans_of

Overlong: TypeAlias = Literal["fail", "drop", "cut"]


def cut_row(row: TokenRow, num_tokens: int, is_fixed: NDArray[np.bool_] | None = None) -> TokenRow:
    """Return the row with `num_tokens` tokens: the last that may go are gone.

    `is_fixed` marks the tokens that stay, by default media with their delimiters. A row that is
    shorter, or that is longer even without all that may go, is a `SampleError`.
    """
    if len(row.ids) == num_tokens:
        return row
    if len(row.ids) < num_tokens:
        raise SampleError(
            "shorter than planned", f"{row.key} has {len(row.ids)} tokens, planned {num_tokens}"
        )
    if is_fixed is None:
        is_fixed = np.zeros(len(row.ids), np.bool_)
        for span in row.media:
            is_fixed[span.start : span.end] = True
    kept = kept_tokens(is_fixed, num_tokens)
    return replace(
        row,
        ids=row.ids[kept],
        loss=spans_of(mask_of(row.loss, len(row.ids))[kept]),
        media=tuple(
            replace(span, position=int(np.searchsorted(kept, span.start)) + span.before)
            for span in row.media
        ),
    )


def kept_tokens(is_fixed: NDArray[np.bool_], num_kept: int) -> NDArray[np.int64]:
    """Return the numbers of the tokens that stay when `num_kept` do.

    Of [text, image, text, text] with 3 to keep, those are 0, 1 and 2.
    """
    surplus = len(is_fixed) - num_kept
    if surplus <= 0:
        return np.arange(len(is_fixed))
    text = np.flatnonzero(~is_fixed)
    if surplus > len(text):
        num_fixed = len(is_fixed) - len(text)
        raise SampleError("too long", f"{num_fixed} tokens remain without any text, not {num_kept}")
    return np.delete(np.arange(len(is_fixed)), text[len(text) - surplus :])
