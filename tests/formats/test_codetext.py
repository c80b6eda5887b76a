"""Codes as text: the very bytes that json.dumps writes."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.codetext import code_texts

CODES = st.lists(st.integers(0, 20_000), max_size=40)


@given(pictures=st.lists(CODES, max_size=6))
def test_the_text_is_that_of_json(pictures: list[list[int]]) -> None:
    found = code_texts([np.array(codes, np.uint16) for codes in pictures])
    assert found.to_pylist() == [json.dumps(codes) for codes in pictures]


def test_codes_beyond_the_table_are_written_too() -> None:
    codes = np.array([3, 5_000_000], np.uint32)
    assert code_texts([codes]).to_pylist() == ["[3, 5000000]"]
