"""The keyed shuffle is a bijection, and never changes from one machine or version to the next."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pack.order import permute, shuffled


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_each_place_is_taken_once(size: int, key: int) -> None:
    assert sorted(shuffled(size, key).tolist()) == list(range(size))


def test_order_is_the_same_everywhere() -> None:
    assert shuffled(12, 1).tolist() == [5, 3, 7, 11, 6, 10, 4, 0, 8, 1, 2, 9]


def test_single_places_agree_with_the_whole() -> None:
    whole = shuffled(40_000, 9)
    some = np.array([39_999, 0, 17_000])
    assert permute(some, 40_000, 9).tolist() == whole[some].tolist()


def test_keys_and_neighbours_are_unrelated() -> None:
    one, two = shuffled(10_000, 1), shuffled(10_000, 2)
    assert np.mean(one == two) < 0.01
    assert abs(np.corrcoef(np.arange(10_000), one)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(one)) == 1) < 0.01
