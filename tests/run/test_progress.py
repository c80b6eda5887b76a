"""Progress from events, with a clock that the test moves."""

from __future__ import annotations

import pytest

from shardmill.run.events import Event
from shardmill.run.progress import Progress


def done(number: int, samples: int = 100, num_bytes: int = 1000) -> Event:
    return Event(kind="done", unit=str(number), num_in=samples, num_bytes=num_bytes)


def planned(num_units: int, num_done: int = 0) -> Progress:
    progress = Progress(0.0)
    progress.update(Event(kind="plan", num_units=num_units, num_done=num_done), 0.0)
    return progress


def test_steady_work_has_a_steady_rate() -> None:
    progress = planned(1000, num_done=500)
    for second in range(1, 101):
        progress.update(done(second), float(second))
    assert progress.share == pytest.approx(0.6)
    assert progress.samples_per_s(100.0) == pytest.approx(100, rel=0.02)
    assert progress.bytes_per_s(100.0) == pytest.approx(1000, rel=0.02)
    assert progress.seconds_left(100.0) == pytest.approx(400, rel=0.02)


def test_the_rate_follows_a_change_within_the_window() -> None:
    progress = planned(100_000)
    for tick in range(1, 6001):
        progress.update(done(tick), tick / 100)
    for second in range(61, 181):
        progress.update(done(second), float(second))
    assert progress.samples_per_s(180.0) == pytest.approx(100, rel=0.05)


def test_units_that_take_minutes_still_have_a_rate() -> None:
    progress = planned(20)
    for number in range(1, 6):
        progress.update(done(number), number * 600.0)
    assert progress.seconds_left(3000.0) == pytest.approx(15 * 600)
    assert progress.seconds_left(3300.0) == pytest.approx(15 * 660)


def test_before_the_first_unit_the_time_left_is_unknown() -> None:
    assert planned(10).seconds_left(5.0) is None
    assert planned(10, num_done=10).seconds_left(5.0) == 0.0
    assert planned(0).share == 1.0


def test_failed_units_are_over_and_running_ones_are_known() -> None:
    progress = planned(4)
    progress.update(Event(kind="start", unit="a"), 1.0)
    progress.update(Event(kind="start", unit="b"), 2.0)
    progress.update(Event(kind="failed", unit="a"), 3.0)
    assert progress.running == {"b": 2.0}
    assert progress.share == 0.25 and progress.num_failed == 1


def test_memory_does_not_grow_with_the_units() -> None:
    progress = planned(10**6)
    for number in range(20_000):
        progress.update(done(number), number / 10)
    assert len(progress._window) < 70
