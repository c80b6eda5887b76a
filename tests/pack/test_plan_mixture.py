"""Lengths that pass the window in groups are all packed, and packed as well as singly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_lengths import draw

from shardmill.pack.loops import NO_LIMIT, PLAIN, load_engine
from shardmill.pack.plan import fit_window, group_size, lower_bound


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=9), st.integers(4, 40))
def test_every_length_is_packed_as_often_as_it_occurs(counts: list[int], window: int) -> None:
    capacity = 3 * len(counts)
    histogram = np.zeros(capacity + 1, np.int64)
    histogram[1 : len(counts) + 1] = counts
    patterns = fit_window(histogram, capacity, window, NO_LIMIT, 7, PLAIN)
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
    patterns = fit_window(histogram, 8192, 512, NO_LIMIT, 7, load_engine())
    assert patterns.num_packs <= 1.0001 * lower_bound(histogram, 8192)
