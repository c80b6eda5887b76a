"""Codes as text: the very bytes that json.dumps writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.liquid.columns import code_texts
from shardmill.storage.background import Room


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@given(images=st.lists(st.lists(st.integers(0, 5_000_000), max_size=40), max_size=6))
def test_the_text_is_that_of_json(dtype: Any, images: list[list[int]]) -> None:
    images = [np.array(codes, np.int64).astype(dtype).tolist() for codes in images]
    flat = np.array([code for codes in images for code in codes], dtype)
    found = code_texts(flat, np.cumsum([0, *map(len, images)]))
    wanted = [json.dumps(codes) if codes else "no" for codes in images]
    assert [str(found[row], "ascii") for row in range(len(found))] == wanted
    assert found.data.tobytes() == "".join(wanted).encode()  # one after the other, as Arrow wants


def test_texts_lie_in_the_room_that_is_given() -> None:
    room, codes, bounds = Room(), np.array([7, 12, 3], np.uint16), np.array([0, 2, 3])
    for _ in range(2):
        found = code_texts(codes, bounds, room)
        assert found.data.tobytes() == b"[7, 12][3]"
        assert np.shares_memory(found.data, room.take(1))
