"""Patterns add up, alone and joined."""

from __future__ import annotations

import numpy as np

from shardmill.pack.loops import join_patterns, single_runs


def test_sums_of_joined_patterns() -> None:
    first = single_runs(np.array([5, 3, 7], np.int32), np.array([2, 3]), 4)
    second = single_runs(np.array([2], np.int32), np.array([1]), 1)
    joined = join_patterns([first, second])
    assert joined.num_packs == 9
    assert joined.documents().tolist() == [2, 1, 1]
    assert joined.tokens().tolist() == [8, 7, 2]
