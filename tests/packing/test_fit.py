"""No plan beats the bound; lengths that pass the window in groups are packed as well as singly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_lengths import draw

from shardmill.packing.fit import Neighbours, Room, fit_window, group_size, lower_bound
from shardmill.packing.loops import NO_LIMIT, PLAIN, Loops, load_loops


def fewest_packs(lengths: list[int], capacity: int) -> int:
    """Try every assignment of at most six samples to packs."""
    best = len(lengths)
    for assignment in product(range(len(lengths)), repeat=len(lengths)):
        room = [capacity] * len(lengths)
        for length, pack in zip(lengths, assignment):
            room[pack] -= length
        if min(room) >= 0:
            best = min(best, len(set(assignment)))
    return best


def bound_of(lengths: list[int], capacity: int, max_documents: int | None = None) -> int:
    return lower_bound(np.bincount(lengths, minlength=capacity + 1), capacity, max_documents)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 30), st.data())
def test_no_packing_beats_the_bound(capacity: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=5))
    assert bound_of(lengths, capacity) <= fewest_packs(lengths, capacity)


def test_samples_above_half_a_pack_never_share_one() -> None:
    assert bound_of([51] * 10, 100) == 10


def test_no_pack_holds_more_than_four_samples_above_a_fifth() -> None:
    assert bound_of([21] * 100, 100) == 25


def test_tokens_over_capacity_and_documents_over_their_limit() -> None:
    assert bound_of([10] * 25, 100) == 3
    assert bound_of([10] * 25, 100, max_documents=5) == 5


def test_nothing_needs_no_pack() -> None:
    assert bound_of([], 100) == 0


def room_of(histogram: np.ndarray, capacity: int, loops: Loops = PLAIN) -> Room:
    return Room(capacity, NO_LIMIT, lower_bound(histogram, capacity), key=7, loops=loops)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=9), st.integers(4, 40))
def test_every_length_is_packed_as_often_as_it_occurs(counts: list[int], window: int) -> None:
    capacity = 3 * len(counts)
    histogram = np.zeros(capacity + 1, np.int64)
    histogram[1 : len(counts) + 1] = counts
    patterns = fit_window(histogram, window, room_of(histogram, capacity))
    times = patterns.run_count * np.repeat(patterns.repeats, np.diff(patterns.run_starts))
    packed = np.bincount(patterns.run_length, times, minlength=capacity + 1)
    assert packed.tolist() == histogram.tolist()
    assert patterns.tokens().max(initial=0) <= capacity


def test_few_samples_pass_singly_and_many_in_groups() -> None:
    assert group_size(np.zeros(9, np.int64)) == 1
    assert group_size(np.full(1000, 3)) == 1
    assert group_size(np.full(1000, 20_000)) == 100


@pytest.mark.parametrize("name", ["vlm", "img"])
def test_groups_cost_no_packs(name: str) -> None:
    lengths = draw(name, 8192, 400_000)[0]
    histogram = np.bincount(lengths, minlength=8193)
    assert group_size(histogram) >= 4
    patterns = fit_window(histogram, 512, room_of(histogram, 8192, load_loops()))
    assert patterns.num_packs <= 1.0001 * lower_bound(histogram, 8192)


@given(
    st.lists(st.integers(0, 30), max_size=60),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_neighbours_share_a_pack_as_long_as_they_fit(
    lengths: list[int], capacity: int, max_documents: int | None
) -> None:
    lengths = [0 if length > capacity else length for length in lengths]
    packs: list[list[int]] = []
    is_open = False
    for length in lengths:
        fits = is_open and sum(packs[-1]) + length <= capacity
        if length and fits and (max_documents is None or len(packs[-1]) < max_documents):
            packs[-1].append(length)
        elif length:
            packs.append([length])
        is_open = length > 0
    ends = Neighbours().ends(np.array(lengths, np.int32), capacity, max_documents)
    assert ends.tolist() == np.cumsum([len(pack) for pack in packs]).astype(int).tolist()
