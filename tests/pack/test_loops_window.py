"""The search fills a pack to the last token whenever some subset does."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pack.loops import NO_LIMIT, choose, fill_window


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
