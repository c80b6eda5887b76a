"""Announced ranges: fetched together, taken once, bounded, and given back when nobody comes."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from shardmill.storage import blob as ahead
from shardmill.storage.blob import BUDGET, Announced, Range

DATA = bytes(range(256)) * 16


class Store:
    """Counts the requests."""

    def __init__(self) -> None:
        self.requests: list[list[Range]] = []

    def fetch(self, ranges: Sequence[Range]) -> list[memoryview]:
        self.requests.append(list(ranges))
        return [memoryview(DATA)[offset : offset + length] for offset, length in ranges]


def test_one_request_fetches_all_and_each_is_taken_once() -> None:
    store, before = Store(), BUDGET.num_bytes
    announced = Announced(store.fetch)
    announced.announce([(0, 4), (100, 8), (0, 4), (7, 0)])
    announced.announce([(100, 8)])
    assert announced.take((100, 8)) == DATA[100:108] and announced.take((0, 4)) == DATA[:4]
    assert announced.take((0, 4)) is None and announced.take((1, 2)) is None
    assert store.requests == [[(0, 4), (100, 8)]]
    assert BUDGET.num_bytes == before


def test_beyond_the_bound_announcements_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MAX_BYTES", BUDGET.num_bytes + 100)
    store = Store()
    announced = Announced(store.fetch)
    announced.announce([(0, 60)])
    announced.announce([(60, 60)])
    assert announced.take((60, 60)) is None and announced.take((0, 60)) == DATA[:60]
    announced.announce([(60, 60)])
    assert announced.take((60, 60)) == DATA[60:120]


def test_what_nobody_takes_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BUDGET.num_bytes
    monkeypatch.setattr(ahead, "MAX_ANNOUNCED", 3)
    announced = Announced(Store().fetch)
    for number in range(10):
        announced.announce([(number, 5)])
    assert BUDGET.num_bytes - before == 15
    assert announced.take((0, 5)) is None and announced.take((9, 5)) is not None
    del announced
    gc.collect()
    assert BUDGET.num_bytes == before


def test_a_failure_is_met_by_whoever_takes() -> None:
    def fail(ranges: Sequence[Range]) -> list[memoryview]:
        raise OSError("gone")

    announced = Announced(fail)
    announced.announce([(0, 5)])
    with pytest.raises(OSError, match="gone"):
        announced.take((0, 5))
