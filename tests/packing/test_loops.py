"""Plain and compiled loops agree to the last row, and keep the laws of packing."""

from __future__ import annotations

import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.packing.loops import (
    NO_LIMIT,
    PLAIN,
    Patterns,
    best_fit,
    choose,
    deal_rows,
    fill_window,
    join_patterns,
    load_loops,
    single_runs,
    sort_rows,
)
from shardmill.packing.order import shuffled

NAMES = ("plain", "compiled")
lengths_and_capacity = st.integers(1, 300).flatmap(
    lambda capacity: st.tuples(
        st.lists(st.integers(1, capacity), max_size=80).map(lambda v: np.array(v, np.int32)),
        st.just(capacity),
    )
)
limits = st.sampled_from([1, 2, 5, NO_LIMIT])


def histogram_of(lengths: np.ndarray, capacity: int) -> np.ndarray:
    return np.bincount(lengths, minlength=capacity + 1)


@settings(max_examples=150, deadline=None)
@given(lengths_and_capacity, limits)
def test_best_fit(given_lengths: tuple[np.ndarray, int], limit: int) -> None:
    histogram = histogram_of(*given_lengths)
    plain, compiled = (
        load_loops(name).best_fit(histogram, given_lengths[1], limit) for name in NAMES
    )
    for name in ("run_length", "run_count", "run_starts", "repeats"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(compiled, name))


@settings(max_examples=150, deadline=None)
@given(lengths_and_capacity, limits, st.integers(1, 40), st.integers(0, 300), st.booleans())
def test_fill_window(
    given_lengths: tuple[np.ndarray, int], limit: int, window: int, blind: int, flush: bool
) -> None:
    lengths, capacity = given_lengths
    answers = [
        load_loops(name).fill_window(lengths, capacity, window, blind, limit, flush)
        for name in NAMES
    ]
    for plain, compiled in zip(*answers):
        np.testing.assert_array_equal(plain, compiled)


@settings(max_examples=60, deadline=None)
@given(lengths_and_capacity, st.integers(1, 5))
def test_sort_and_deal_rows(given_lengths: tuple[np.ndarray, int], block_rows: int) -> None:
    lengths, capacity = given_lengths
    lengths = np.where(np.arange(len(lengths)) % 7 == 3, 0, lengths).astype(np.int32)
    histogram = histogram_of(lengths, capacity)
    histogram[0] = 0
    blocks = shuffled(-(-len(lengths) // block_rows), 5)
    patterns = PLAIN.best_fit(histogram, capacity, NO_LIMIT)
    rows = [load_loops(n).sort_rows(lengths, blocks, block_rows, histogram) for n in NAMES]
    np.testing.assert_array_equal(*rows)
    members = [load_loops(n).deal_rows(patterns, rows[0], histogram) for n in NAMES]
    np.testing.assert_array_equal(*members)


def test_without_compiled_loops_the_plain_ones_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_loops.cache_clear()
    monkeypatch.setitem(sys.modules, "shardmill.packing.compiled", None)
    assert load_loops("auto") is PLAIN
    with pytest.raises(ImportError):
        load_loops("compiled")
    load_loops.cache_clear()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 30))
def test_worst_fit(lengths: list[int], capacity: int) -> None:
    plain, compiled = (
        load_loops(name).worst_fit(np.array(lengths, np.int64), capacity) for name in NAMES
    )
    np.testing.assert_array_equal(plain, compiled)
    fills: list[int] = []
    for length, pack in zip(lengths, plain.tolist()):
        least = min(fills, default=capacity + 1)
        if pack == len(fills):
            assert least + length > capacity
            fills.append(0)
        else:
            assert pack == fills.index(least)
        fills[pack] += length


def test_sums_of_joined_patterns() -> None:
    first = single_runs(np.array([5, 3, 7], np.int32), np.array([2, 3]), 4)
    second = single_runs(np.array([2], np.int32), np.array([1]), 1)
    joined = join_patterns([first, second])
    assert joined.num_packs == 9
    assert joined.documents().tolist() == [2, 1, 1]
    assert joined.tokens().tolist() == [8, 7, 2]


def packs_of(patterns: Patterns) -> list[list[int]]:
    packs = []
    for number, repeats in enumerate(patterns.repeats.tolist()):
        runs = slice(*patterns.run_starts[number : number + 2])
        lengths = np.repeat(patterns.run_length[runs], patterns.run_count[runs]).tolist()
        packs += [sorted(lengths)] * repeats
    return sorted(packs)


def one_by_one(lengths: list[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = [pack for pack in packs if sum(pack) + length <= capacity]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            packs.append([length])
    return packs


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_as_many_packs_as_one_by_one(capacity: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    found = packs_of(best_fit(np.bincount(lengths, minlength=capacity + 1), capacity, NO_LIMIT))
    expected = one_by_one(lengths, capacity)
    assert sorted(length for pack in found for length in pack) == sorted(lengths)
    assert sorted(map(sum, found)) == sorted(map(sum, expected))


def test_limit_of_documents_closes_a_pack() -> None:
    histogram = np.bincount([1] * 10, minlength=101)
    assert packs_of(best_fit(histogram, 100, 4)) == [[1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    histogram[50] = 1
    assert packs_of(best_fit(histogram, 100, 4)) == [[1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 50]]


def test_time_does_not_depend_on_the_number_of_samples() -> None:
    histogram = np.zeros(8193, np.int64)
    histogram[[4096, 4000, 96]] = 10**12
    patterns = best_fit(histogram, 8192, NO_LIMIT)
    assert len(patterns) < 10
    assert int(patterns.documents() @ patterns.repeats) == 3 * 10**12


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_chosen_samples_leave_the_least_room(capacity: int, data: st.DataObject) -> None:
    waiting = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=9))
    chosen = choose(waiting, capacity, capacity, NO_LIMIT)
    others = range(1, len(waiting))
    sums = (
        waiting[0] + sum(waiting[i] for i in subset)
        for size in range(len(waiting))
        for subset in combinations(others, size)
    )
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    assert sum(waiting[i] for i in chosen) == max(s for s in sums if s <= capacity)


def test_blind_samples_are_given_back_when_the_rest_cannot_be_filled() -> None:
    # Taking 4 and 3 blindly leaves 3 of 10, which nothing fills; 4 and 6 do.
    assert choose([4, 3, 6], 10, 3, NO_LIMIT) == [0, 2]


def test_too_many_documents_give_way_to_large_ones() -> None:
    assert choose([1, 1, 1, 1, 5, 4], 8, 0, 3) == [0, 1, 4]


def test_without_flush_it_stops_when_the_window_runs_short() -> None:
    stream = np.array([6, 4, 5, 5, 3], np.int32)
    filled = fill_window(stream, 10, 3, 10, NO_LIMIT, False)
    assert filled.items.tolist() == [6, 4, 5, 5]
    assert filled.ends.tolist() == [2, 4]
    assert filled.waiting.tolist() == [3]
    assert fill_window(stream, 10, 3, 10, NO_LIMIT, True).ends.tolist() == [2, 4, 5]


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


def test_long_lengths_are_sorted_too() -> None:
    lengths = np.array([70_000, 5, 70_000], np.int32)
    histogram = np.bincount(lengths)
    assert sort_rows(lengths, np.arange(3), 1, histogram).tolist() == [1, 0, 2]


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
