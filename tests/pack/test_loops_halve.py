"""One split: the cheap half goes left, and both sides stay sorted by both costs."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.pack.loops import load_loops


@pytest.mark.parametrize("name", ["plain", "compiled"])
@pytest.mark.parametrize("middle", [2, 3])
def test_rows_are_split_on_the_cost_that_decides(name: str, middle: int) -> None:
    visual, attention = np.array([4, 1, 3, 2, 9, 8, 7, 6]), np.array([1, 2, 3, 4, 8, 6, 7, 5])
    rows = np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.uint32)
    by_visual = np.take_along_axis(rows, np.argsort(visual[rows], axis=1), axis=1)
    by_attention = np.take_along_axis(rows, np.argsort(attention[rows], axis=1), axis=1)
    is_left = np.zeros(8, np.bool_)
    load_loops(name).halve(by_visual, by_attention, np.array([False, True]), middle, is_left)
    assert not is_left.any()
    for row, cost in ((0, visual), (1, attention)):
        left = by_visual[row, :middle]
        assert set(left) == set(by_attention[row, :middle])
        assert cost[left].max() < cost[by_visual[row, middle:]].min()
    for matrix, cost in ((by_visual, visual), (by_attention, attention)):
        for side in (matrix[:, :middle], matrix[:, middle:]):
            assert np.all(np.diff(cost[side], axis=1) > 0)
