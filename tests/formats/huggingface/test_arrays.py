"""Arrays of buffers are those that Arrow makes of lists."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.huggingface.arrays import list_array, number_array, string_array
from shardmill.shards.weave import texts

WITHOUT_PANDAS = """
import sys
import numpy as np
from shardmill.formats.huggingface.arrays import list_array, string_array
from shardmill.shards.weave import texts
list_array(np.arange(3), np.array([0, 3]))
string_array(texts([b"a"]))
assert "pyarrow" in sys.modules
assert "pandas" not in sys.modules
"""


@given(st.lists(st.lists(st.integers(0, 65_535), max_size=5), max_size=6))
def test_lists_come_back(lists: list[list[int]]) -> None:
    values = np.array([number for row in lists for number in row], np.uint16)
    found = list_array(values, np.cumsum([0, *map(len, lists)]))
    found.validate(full=True)
    assert found.equals(pa.array(lists, pa.list_(pa.uint16())))


@given(st.lists(st.text(max_size=4), max_size=6))
def test_texts_come_back(strings: list[str]) -> None:
    found = string_array(texts([string.encode() for string in strings]))
    found.validate(full=True)
    assert found.equals(pa.array(strings, pa.string()))


def test_numbers_keep_their_type_and_order() -> None:
    values = np.arange(10, dtype=np.int64)[::-2]
    assert number_array(values).equals(pa.array([9, 7, 5, 3, 1], pa.int64()))


def test_pandas_is_not_loaded() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)
