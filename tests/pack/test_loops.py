"""Compiled and plain loops give the same answers, and without numba the plain ones are taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pack import loops as engine
from shardmill.pack.loops import NO_LIMIT, PLAIN, block_order, load_loops

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
    blocks, _ = block_order(-(-len(lengths) // block_rows), 5)
    patterns = PLAIN.best_fit(histogram, capacity, NO_LIMIT)
    rows = [load_loops(n).sort_rows(lengths, blocks, block_rows, histogram) for n in NAMES]
    np.testing.assert_array_equal(*rows)
    members = [load_loops(n).deal_rows(patterns, rows[0], histogram) for n in NAMES]
    np.testing.assert_array_equal(*members)


def test_without_numba_the_plain_loops_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    load_loops.cache_clear()
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    assert load_loops("auto") is PLAIN
    load_loops.cache_clear()
