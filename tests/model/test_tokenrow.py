"""Spans and masks are each other's inverse; cutting keeps media whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.model.tokenrow import (
    MediaSpan,
    TokenRow,
    cut_row,
    kept_tokens,
    mask_of,
    modality_of,
    spans_of,
)


@given(st.lists(st.booleans(), max_size=40))
def test_spans_are_the_runs_of_a_mask(mask: list[bool]) -> None:
    spans = spans_of(np.array(mask, bool))
    assert mask_of(spans, len(mask)).tolist() == mask
    assert all(length > 0 for length in spans[:, 1])
    ends = spans.sum(axis=1)
    assert all(end < start for end, start in zip(ends, spans[1:, 0]))


def test_a_row_counts_what_is_in_media() -> None:
    media = MediaSpan(name="jpg", kind="video", position=2, num_tokens=3, before=1, after=1)
    row = TokenRow(key="a", ids=np.arange(8), loss=np.array([[0, 2], [5, 1]]), media=(media,))
    assert (row.num_visual, row.num_fixed, row.num_loss) == (3, 5, 3)
    assert modality_of(row.media, 8).tolist() == [0, 0, 2, 2, 2, 0, 0, 0]


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30))
def test_text_goes_from_the_end_and_media_stay(fixed: list[bool], num_kept: int) -> None:
    is_fixed = np.array(fixed, np.bool_)
    if num_kept < is_fixed.sum():
        with pytest.raises(SampleError, match="too long"):
            kept_tokens(is_fixed, num_kept)
        return
    kept = kept_tokens(is_fixed, num_kept)
    assert len(kept) == min(num_kept, len(fixed))
    assert set(np.flatnonzero(is_fixed)) <= set(kept)
    text = [place for place in range(len(fixed)) if not fixed[place]]
    assert [p for p in kept if not fixed[p]] == text[: len(kept) - int(is_fixed.sum())]


def test_a_cut_row_keeps_media_and_loss_with_their_tokens() -> None:
    span = MediaSpan(name="m", kind="image", position=3, num_tokens=2, before=1, after=1)
    row = TokenRow(key="k", ids=np.arange(9), loss=np.array([[1, 1], [6, 3]]), media=(span,))
    cut = cut_row(row, 5)
    assert cut.ids.tolist() == [0, 2, 3, 4, 5]
    assert cut.loss.tolist() == []
    assert (cut.media[0].position, cut.media[0].start, cut.media[0].end) == (2, 1, 5)
    assert cut_row(row, 9) is row
    with pytest.raises(SampleError, match="shorter than planned"):
        cut_row(row, 10)
    with pytest.raises(SampleError, match="4 tokens remain without any text, not 3"):
        cut_row(row, 3)
