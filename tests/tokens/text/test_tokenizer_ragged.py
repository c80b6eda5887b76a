"""A flat array with bounds is a list of lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardmill.tokens.text.tokenizer import joined, ragged


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), max_size=8))
def test_lists_come_back(lists: list[list[int]]) -> None:
    found = ragged(lists)
    assert len(found) == len(lists)
    assert [ids.tolist() for ids in found] == lists
    assert [found[i].tolist() for i in range(len(found))] == lists
    assert found.lengths.tolist() == [len(ids) for ids in lists]
    assert found.same(ragged(lists))
    assert found.same(joined(found))
    assert not found.same(ragged([*lists, []]))
