"""The lower bound never exceeds the best packing, and reaches it where single bounds fail."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pack.plan import lower_bound


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
