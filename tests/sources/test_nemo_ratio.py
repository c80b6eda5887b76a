from __future__ import annotations

from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.sources.nemo import copies_for, mixed, seed_of

seeds = st.integers(0, (1 << 64) - 1)


@given(st.integers(1, 3000), st.integers(1, 500), seeds)
def test_counts_are_exact(num_rows: int, hundredths: int, seed: int) -> None:
    ratio = hundredths / 100
    copies = copies_for(ratio, num_rows, seed).of_rows(0, num_rows)
    if hundredths < 100:
        assert copies.sum() == max(1, num_rows * hundredths // 100)
        assert copies.max() == 1
    else:
        rest = num_rows * (hundredths % 100) // 100
        assert copies.sum() == num_rows * (hundredths // 100) + rest
        assert set(copies.tolist()) <= {floor(ratio), floor(ratio) + 1}


@given(st.integers(1, 500), seeds, st.data())
def test_any_slice_says_what_the_whole_says(num_rows: int, seed: int, data: st.DataObject) -> None:
    copies = copies_for(0.37, num_rows, seed)
    first = data.draw(st.integers(0, num_rows))
    count = data.draw(st.integers(0, num_rows - first))
    whole = copies.of_rows(0, num_rows)
    assert (copies.of_rows(first, count) == whole[first : first + count]).all()


def test_numbers_of_rows_are_all_different_and_even() -> None:
    numbers = mixed(7, 0, 100_000)
    assert len(np.unique(numbers)) == 100_000
    counts = np.bincount((numbers >> np.uint64(60)).astype(np.int64), minlength=16)
    assert abs(counts - 6250).max() < 400


def test_seeds_choose_different_rows() -> None:
    first, second = (copies_for(0.5, 1000, seed_of(42, n)).of_rows(0, 1000) for n in ("a", "b"))
    assert 300 < (first == second).sum() < 700


@pytest.mark.parametrize("ratio", [0, -1.5])
def test_a_ratio_of_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        copies_for(ratio, 10, 0)


def test_no_rows_stay_no_rows() -> None:
    assert copies_for(0.5, 0, 1).of_rows(0, 0).sum() == 0
