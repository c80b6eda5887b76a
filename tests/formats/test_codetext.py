"""Codes as text: the very bytes that json.dumps writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats import codetext
from shardmill.formats.codetext import code_texts, compiled_texts, table_texts
from shardmill.io.room import Room

CODES = st.lists(st.integers(0, 65_535), max_size=40)
needs_compiler = pytest.mark.skipif(codetext._codetext is None, reason="it was not compiled")
WAYS = [pytest.param(compiled_texts, marks=needs_compiler), table_texts, code_texts]


@pytest.mark.parametrize("texts_of", WAYS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@given(pictures=st.lists(CODES, max_size=6))
def test_the_text_is_that_of_json(texts_of: Any, dtype: Any, pictures: list[list[int]]) -> None:
    pictures = [np.array(codes).astype(dtype).tolist() for codes in pictures]
    flat = np.array([code for codes in pictures for code in codes], dtype)
    found = texts_of(flat, np.array([len(codes) for codes in pictures], np.int64))
    found.validate(full=True)
    assert found.to_pylist() == [json.dumps(codes) if codes else "no" for codes in pictures]


@needs_compiler
def test_texts_lie_in_the_room_that_is_given() -> None:
    room, codes, counts = Room(), np.array([7, 12, 3], np.uint16), np.array([2, 1])
    for _ in range(2):
        assert code_texts(codes, counts, room).to_pylist() == ["[7, 12]", "[3]"]
        assert bytes(room.take(10)) == b"[7, 12][3]"


def test_codes_beyond_the_table_are_written_too() -> None:
    codes = np.array([3, 5_000_000], np.uint32)
    assert code_texts(codes, np.array([2, 0])).to_pylist() == ["[3, 5000000]", "no"]


@needs_compiler
@pytest.mark.parametrize("lengths", [[3], [1], [-1, 3], [2, 1]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        compiled_texts(np.array([1, 2], np.uint16), np.array(lengths))
