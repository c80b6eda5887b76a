"""Results come in order, a bounded number ahead, and nothing goes on after the end."""

from __future__ import annotations

import threading
import time

import pytest

from shardmill.train.prefetch import announced, in_order


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_results_come_in_the_order_of_tasks(threads: int) -> None:
    def work(task: int) -> int:
        time.sleep(0.002 * (task % 3))
        return task * 2

    assert list(in_order(range(30), work, threads=threads, ahead=5)) == list(range(0, 60, 2))


def test_no_more_than_so_many_are_begun() -> None:
    begun: list[int] = []
    results = in_order(range(100), lambda task: begun.append(task) or task, threads=2, ahead=3)
    for _ in range(5):
        next(results)
    assert len(begun) <= 5 + 3
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 5 + 3
    assert not [t for t in threading.enumerate() if t.name.startswith("shardmill-ahead")]


def test_an_error_comes_at_its_place() -> None:
    def work(task: int) -> int:
        return 10 // (task - 3)

    results = in_order(range(9), work, threads=2, ahead=4)
    assert [next(results) for _ in range(3)] == [-4, -5, -10]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_tasks_are_announced_before_they_come(ahead: int) -> None:
    told: list[int] = []
    tasks = announced(range(12), told.append, ahead=ahead)
    for number in range(4):
        assert next(tasks) == number
        end = time.monotonic() + 60
        while len(told) < number + 1 + ahead:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert told == list(range(number + 1 + ahead))
    assert list(tasks) == list(range(4, 12))
    assert told == list(range(len(told)))  # at the end nobody needs to be told any more
    assert not [t for t in threading.enumerate() if t.name.startswith("shardmill-ahead")]


def test_an_announcement_that_fails_is_left_to_the_work() -> None:
    assert list(announced([1, 0], lambda task: 1 / task, ahead=2)) == [1, 0]
    assert list(announced([], print, ahead=2)) == []
