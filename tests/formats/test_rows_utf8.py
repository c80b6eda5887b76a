"""Texts are UTF-8 each by itself, not only all together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.rows import continues, is_utf8


@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(str.encode), max_size=6))
def test_it_is_what_decoding_each_says(texts: list[bytes]) -> None:
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    assert is_utf8(b"".join(texts), starts) == all(map(decodes, texts))


def test_a_character_cut_in_two_is_found() -> None:
    assert is_utf8("é".encode(), np.array([0]))
    assert not is_utf8("é".encode(), np.array([0, 1]))
    assert continues("aé".encode()).tolist() == [False, False, True]


def decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
