"""Rows that are too long lose text or become blocks; media stay whole and no token is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError, UnitFailed
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, spans_of
from shardmill.tokens.assemble import AssembledRow, fit, split_blocks


@st.composite
def assembled(draw: st.DrawFn) -> AssembledRow:
    """Control tokens 1, texts of 2s and images of 4s between 3s, in any order."""
    ids: list[int] = []
    texts, media = [], []
    for kind in draw(st.lists(st.sampled_from("ctm"), max_size=8)):
        length = draw(st.integers(0, 5))
        if kind == "c":
            ids.append(1)
        elif kind == "t":
            texts.append((len(ids), length))
            ids += [2] * length
        else:
            media.append(
                MediaSpan(
                    name="jpg",
                    kind="image",
                    position=len(ids) + 1,
                    num_tokens=length,
                    before=1,
                    after=1,
                )
            )
            ids += [3] + [4] * length + [3]
    loss = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    row = TokenRow(
        key="k", ids=np.array(ids, int), loss=spans_of(np.array(loss, bool)), media=tuple(media)
    )
    return AssembledRow(row, texts)


def check_media(row: TokenRow) -> None:
    for span in row.media:
        assert row.ids[span.start] == row.ids[span.end - 1] == 3
        assert set(row.ids[span.start + 1 : span.end - 1].tolist()) <= {4}


@given(assembled(), st.integers(1, 40))
def test_cutting_takes_text_only_and_no_more_than_needed(whole: AssembledRow, limit: int) -> None:
    row, num_text = whole.row, sum(length for _, length in whole.texts)
    if len(row.ids) <= limit:
        assert fit(whole, limit, "cut") is row
        return
    if len(row.ids) - num_text > limit:
        with pytest.raises(SampleError, match="too long"):
            fit(whole, limit, "cut")
        return
    cut = fit(whole, limit, "cut")
    assert len(cut.ids) == limit
    assert [i for i in cut.ids.tolist() if i != 2] == [i for i in row.ids.tolist() if i != 2]
    assert [m.num_tokens for m in cut.media] == [m.num_tokens for m in row.media]
    check_media(cut)


def test_cutting_keeps_loss_with_its_tokens() -> None:
    ids = np.array([1, 2, 2, 2, 9])
    row = TokenRow(key="k", ids=ids, loss=np.array([[2, 3]]))
    cut = fit(AssembledRow(row, [(1, 3)]), 4, "cut")
    assert cut.ids.tolist() == [1, 2, 2, 9]
    assert cut.loss.tolist() == [[2, 2]]


@given(assembled(), st.integers(1, 12))
def test_blocks_hold_every_token_once_in_order(whole: AssembledRow, size: int) -> None:
    row = whole.row
    if any(span.end - span.start > size for span in row.media):
        with pytest.raises(SampleError, match="longer than a block"):
            split_blocks(row, size)
        return
    blocks = split_blocks(row, size)
    assert [i for b in blocks for i in b.ids.tolist()] == row.ids.tolist()
    mask = [bit for b in blocks for bit in mask_of(b.loss, len(b.ids)).tolist()]
    assert mask == mask_of(row.loss, len(row.ids)).tolist()
    assert sum(len(b.media) for b in blocks) == len(row.media)
    assert len({b.key for b in blocks}) == len(blocks)
    assert [b.continues for b in blocks] == [False] + [True] * (len(blocks) - 1)
    for block in blocks:
        assert len(block.ids) <= size
        check_media(block)
    # Only an image that does not fit may end a block early.
    for block, following in pairwise(blocks):
        assert len(block.ids) == size or following.media[0].start == 0


def test_an_exact_fill_is_not_too_long() -> None:
    row = TokenRow(key="k", ids=np.arange(8))
    for policy in ("fail", "drop", "cut"):
        assert fit(AssembledRow(row, []), 8, policy) is row  # type: ignore[arg-type]
    assert split_blocks(row, 8) == [row]
    with pytest.raises(UnitFailed, match="8 tokens, at most 7"):
        fit(AssembledRow(row, []), 7, "fail")
    with pytest.raises(SampleError, match="too long"):
        fit(AssembledRow(row, []), 7, "drop")
    assert fit(AssembledRow(row, []), None, "fail") is row
