"""Results come in order, a bounded number ahead, and nothing goes on after the end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence

import pytest

from shardmill.storage import prefetch
from shardmill.storage.prefetch import BUDGET, Range, RangePrefetch, announce_ahead, map_ahead


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_results_come_in_the_order_of_tasks(threads: int) -> None:
    def work(task: int) -> int:
        time.sleep(0.002 * (task % 3))
        return task * 2

    assert list(map_ahead(work, range(30), threads=threads, ahead=5)) == list(range(0, 60, 2))


def test_no_more_than_so_many_are_begun() -> None:
    begun: list[int] = []
    results = map_ahead(lambda task: begun.append(task) or task, range(100), threads=2, ahead=3)
    for _ in range(5):
        next(results)
    assert len(begun) <= 5 + 3
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 5 + 3
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


def test_an_error_comes_at_its_place() -> None:
    def work(task: int) -> int:
        return 10 // (task - 3)

    results = map_ahead(work, range(9), threads=2, ahead=4)
    assert [next(results) for _ in range(3)] == [-4, -5, -10]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_tasks_are_announced_before_they_come(ahead: int) -> None:
    told: list[int] = []
    tasks = announce_ahead(told.append, range(12), ahead=ahead)
    for number in range(4):
        assert next(tasks) == number
        end = time.monotonic() + 60
        while len(told) < number + 1 + ahead:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert told == list(range(number + 1 + ahead))
    assert list(tasks) == list(range(4, 12))
    assert told == list(range(len(told)))  # at the end nobody needs to be told any more
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


def test_an_announcement_that_fails_is_left_to_the_work() -> None:
    assert list(announce_ahead(lambda task: 1 / task, [1, 0], ahead=2)) == [1, 0]
    assert list(announce_ahead(print, [], ahead=2)) == []


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
    announced = RangePrefetch(store.fetch)
    announced.announce([(0, 4), (100, 8), (0, 4), (7, 0)])
    announced.announce([(100, 8)])
    assert announced.take((100, 8)) == DATA[100:108] and announced.take((0, 4)) == DATA[:4]
    assert announced.take((0, 4)) is None and announced.take((1, 2)) is None
    assert store.requests == [[(0, 4), (100, 8)]]
    assert BUDGET.num_bytes == before


def test_beyond_the_bound_announcements_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_BYTES", BUDGET.num_bytes + 100)
    store = Store()
    announced = RangePrefetch(store.fetch)
    announced.announce([(0, 60)])
    announced.announce([(60, 60)])
    assert announced.take((60, 60)) is None and announced.take((0, 60)) == DATA[:60]
    announced.announce([(60, 60)])
    assert announced.take((60, 60)) == DATA[60:120]


def test_what_nobody_takes_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BUDGET.num_bytes
    monkeypatch.setattr(prefetch, "MAX_RANGES", 3)
    announced = RangePrefetch(Store().fetch)
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

    announced = RangePrefetch(fail)
    announced.announce([(0, 5)])
    with pytest.raises(OSError, match="gone"):
        announced.take((0, 5))
