"""Spans and masks say the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, modality_of, spans_of


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
