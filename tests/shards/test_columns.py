"""Narrow columns say what wide ones said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.shards.arrays import Arrays
from shardmill.shards.columns import (
    bounds_between,
    narrow_bounds,
    narrow_column,
    row_slice,
    wide_column,
)


def stored(**arrays: object) -> Arrays:
    return Arrays(Path("x"), "f", {}, arrays)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2**40), max_size=8))
def test_columns_come_back(values: list[int]) -> None:
    narrow = narrow_column(np.array(values, np.int64))
    assert wide_column(stored(a=narrow), "a", len(values)).tolist() == values
    if values and len(set(values)) == 1:
        assert len(narrow) == 1
    assert narrow.dtype == np.min_scalar_type(max(values, default=0))


@given(st.lists(st.integers(0, 300), max_size=8))
def test_bounds_come_back(counts: list[int]) -> None:
    arrays = stored(b=narrow_bounds(np.array(counts, np.int64)))
    found = [row_slice(arrays, "b", row, len(counts), sum(counts)) for row in range(len(counts))]
    assert [s.stop - s.start for s in found] == counts
    assert [s.start for s in found] == np.cumsum([0, *counts])[:-1].tolist()
    for start in range(len(counts) + 1):
        rows = range(start, len(counts))
        bounds = bounds_between(arrays, "b", rows, len(counts), sum(counts))
        assert bounds.tolist() == np.cumsum([0, *counts])[start:].tolist()


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match="must be unsigned"):
        wide_column(stored(a=np.zeros(2, np.uint8)), "a", 3)
    with pytest.raises(FormatError, match="must be unsigned"):
        wide_column(stored(a=np.zeros(3, np.int8)), "a", 3)
    for bounds in ([0, 9], [2, 1], [7]):
        with pytest.raises(FormatError, match="leave the table"):
            row_slice(stored(b=np.array(bounds, np.uint8)), "b", 0, 1, 5)
        with pytest.raises(FormatError, match="leave the table"):
            bounds_between(stored(b=np.array(bounds, np.uint8)), "b", range(1), 1, 5)
