"""Texts in flat arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.shards.arrays import Arrays
from shardmill.shards.columns import open_strings, pack_strings

texts = st.lists(st.binary(max_size=12), max_size=8)


@given(texts)
def test_texts_come_back_whatever_their_bytes(raw: list[bytes]) -> None:
    strings = open_strings(Arrays(Path("x"), "f", {}, pack_strings("key", raw)), "key")
    assert [text.encode("utf-8", "surrogateescape") for text in strings] == raw
    assert [bytes(strings.raw(i)) for i in range(len(strings))] == raw


@pytest.mark.parametrize("bounds", [[], [0], [1, 3], [0, 4], [0, 5, 3], [0, 1 << 63, 3]])
def test_bounds_that_do_not_rise_inside_the_bytes_are_refused(bounds: list[int]) -> None:
    arrays = {"key_bytes": np.frombuffer(b"abc", np.uint8), "key_bounds": np.array(bounds, "u8")}
    with pytest.raises(FormatError, match="key_bounds"):
        open_strings(Arrays(Path("x"), "f", {}, arrays), "key")
