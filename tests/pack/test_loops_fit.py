"""Best fit over classes of packs does what best fit does with one sample after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pack.loops import NO_LIMIT, Patterns, best_fit


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
