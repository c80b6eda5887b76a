"""Plans as lists of sample numbers."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.train.nemo.lengths import (
    PackBins,
    greedy_knapsack,
    greedy_knapsack_vt_balanced,
    ordered,
    plan_lengths,
)


def test_knapsacks_return_lists_without_overlong_samples() -> None:
    packs = greedy_knapsack([5, 3, 9, 2, 20, 0], 10)
    assert sorted(number for pack in packs for number in pack) == [0, 1, 2, 3, 5]
    assert len(packs) == 2
    assert all(type(number) is int for pack in packs for number in pack)
    visual = greedy_knapsack_vt_balanced([5, 3, 9, 2, 20], 10, [5, 0, 1, 2, 0])
    assert sorted(map(sorted, visual)) == sorted(map(sorted, greedy_knapsack([5, 3, 9, 2, 20], 10)))


def test_bins_behave_like_a_list() -> None:
    lengths = np.arange(1, 40)
    none = np.zeros(39, np.bool_)
    plan = plan_lengths(lengths, lengths // 2, none, 64, None, 1)
    bins = PackBins(ordered(plan))
    assert sorted(map(sorted, bins)) == sorted(map(sorted, PackBins(plan)))
    assert bins[-1] == bins[len(bins) - 1]
    assert bins[:2] == [bins[0], bins[1]]
    with pytest.raises(IndexError):
        bins[len(bins)]
