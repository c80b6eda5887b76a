"""Rows are dealt to patterns by their lengths, each row once, shuffled inside a length."""

from __future__ import annotations

import numpy as np

from shardmill.pack.loops import SHUFFLE_ROWS_SINGLY, Patterns, block_order, deal_rows, sort_rows


def test_rows_by_length_in_shuffled_blocks() -> None:
    lengths = np.array([3, 1, 3, 0, 1, 3], np.int32)
    blocks = np.array([2, 0, 1])
    rows = sort_rows(lengths, blocks, 2, np.array([0, 2, 0, 3]))
    assert rows.tolist() == [4, 1, 5, 0, 2]


def test_packs_of_a_pattern_take_rows_in_turn() -> None:
    # Three packs of (3, 1, 1): lengths 1 are rows 10..15, lengths 3 are rows 20..22.
    patterns = Patterns(
        np.array([3, 1], np.int32), np.array([1, 2], np.int32), np.array([0, 2]), np.array([3])
    )
    rows = np.array([10, 11, 12, 13, 14, 15, 20, 21, 22], np.uint32)
    members = deal_rows(patterns, rows, np.array([0, 6, 0, 3]))
    assert members.reshape(3, 3).tolist() == [[20, 10, 11], [21, 12, 13], [22, 14, 15]]


def test_blocks_cover_all_rows() -> None:
    for num_rows in (0, 1, 100, SHUFFLE_ROWS_SINGLY + 5):
        blocks, block_rows = block_order(num_rows, 3)
        rows = (blocks[:, None] * block_rows + np.arange(block_rows)).ravel()
        assert sorted(rows[rows < num_rows].tolist()) == list(range(num_rows))


def test_long_lengths_are_sorted_too() -> None:
    lengths = np.array([70_000, 5, 70_000], np.int32)
    histogram = np.bincount(lengths)
    assert sort_rows(lengths, np.arange(3), 1, histogram).tolist() == [1, 0, 2]
