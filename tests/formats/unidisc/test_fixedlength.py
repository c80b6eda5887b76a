"""Rows of one length: the rules agree with the packer's, and every row is in the books."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.formats.unidisc.fixedlength import Desk, FixedLength, account, kept_tokens
from shardmill.model.stage import Tally
from shardmill.pack.overlong import keep_places
from shardmill.shards.weave import texts

ROWS = st.lists(st.lists(st.booleans(), max_size=9), min_size=1, max_size=8)


@given(rows=ROWS, width=st.integers(1, 9))
def test_what_is_cut_is_what_the_packer_cuts(rows: list[list[bool]], width: int) -> None:
    lengths = np.array([len(row) for row in rows])
    num_fixed = np.array([sum(row) for row in rows])
    kept = FixedLength(width=width, overlong="cut").kept(lengths, num_fixed)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.array([fixed for row in rows for fixed in row], np.uint8)
    stays = kept_tokens(bounds, kept, width, lambda: flat)
    found = np.flatnonzero(np.ones(len(flat), bool) if stays is None else stays).tolist()
    wanted = [
        int(place) + int(start)
        for row, start, stay in zip(rows, bounds, kept)
        if stay
        for place in keep_places(np.array(row, bool), min(width, len(row)))
    ]
    assert found == wanted


@given(rows=st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6))
def test_padded_rows_hold_their_values_and_then_the_fill(rows: list[list[int]]) -> None:
    lengths = np.array([len(row) for row in rows])
    desk = Desk(6, np.int32)
    desk.padded([texts([bytes(24)] * 8)], 9)  # what was there does not shine through
    mask = desk.filled(lengths)
    matrix = desk.padded([texts([np.array(row, np.int32).tobytes() for row in rows])], 7)
    assert matrix.tolist() == [row + [7] * (6 - len(row)) for row in rows]
    assert mask.sum(axis=1).tolist() == lengths.tolist()


def test_a_policy_refuses_by_name() -> None:
    lengths, keys = np.array([4, 5, 3]), ["a", "b", "c"]
    with pytest.raises(ConfigError, match=r"'b' has 5 tokens, a row holds 4.*overlong=cut"):
        FixedLength(width=4, pad_id=0).check(lengths, keys, "here")
    with pytest.raises(ConfigError, match=r"'c' has 3 tokens.*pad_id"):
        FixedLength(width=4, overlong="drop").check(lengths, keys, "here")
    FixedLength(width=4, pad_id=0, overlong="drop").check(lengths, keys, "here")
    with pytest.raises(ConfigError, match="at least one token"):
        FixedLength(width=0)


def test_every_row_is_in_the_books() -> None:
    rule, tally = FixedLength(width=4, pad_id=0, overlong="drop"), Tally()
    lengths = [4, 5, 0]
    account(tally, np.array([True, False, False]), "abc", lambda row: rule.explain(lengths[row]))
    assert (tally.num_in, tally.num_kept) == (3, 1)
    assert dict(tally.skipped) == {"longer than a row": 1, "no tokens": 1}
    assert all(reject.filtered for reject in tally.rejects)
