"""Keys as flat text are the keys as they are read one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.rows import key_texts
from shardmill.shards.arrays import Arrays
from shardmill.shards.columns import KeyColumn, open_keys, pack_keys

KEYS = st.lists(st.from_regex(r"[ab/é٣-]{0,3}[0-9]{0,25}", fullmatch=True), max_size=12)


def column_of(keys: list[str], **arrays: np.ndarray) -> KeyColumn:
    return open_keys(Arrays(Path("x"), "f", {}, pack_keys(keys) | arrays), len(keys))


def texts(column: KeyColumn, rows: slice | np.ndarray) -> list[str]:
    return [bytes(text).decode() for text in key_texts(column, rows)]


@given(KEYS, st.data())
def test_they_are_the_keys(keys: list[str], data: st.DataObject) -> None:
    column = column_of(keys)
    start = data.draw(st.integers(0, len(keys)))
    assert texts(column, slice(start, len(keys))) == keys[start:]
    some = data.draw(st.lists(st.sampled_from(range(len(keys))))) if keys else []
    assert texts(column, np.array(some, np.int64)) == [keys[row] for row in some]


def test_a_number_that_does_not_fit_is_refused() -> None:
    column = column_of(["a-007", "b"], key_number=np.array([1000, 5], np.uint16))
    with pytest.raises(ValueError, match="longer than its width"):
        key_texts(column, slice(0, 2))
    assert texts(column, slice(1, 2)) == ["b"]
