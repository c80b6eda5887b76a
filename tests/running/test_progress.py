"""Progress from events, with a clock that the test moves; the lines that are shown; the report."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path

import pytest

from shardmill.running.events import Event
from shardmill.running.progress import PlainLines, Progress, describe, show_progress


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
    assert progress.share == 0.25 and set(progress.failures) == {"a"}


def test_memory_does_not_grow_with_the_units() -> None:
    progress = planned(10**6)
    for number in range(20_000):
        progress.update(done(number), number / 10)
    assert len(progress._window) < 70


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def big_done(**numbers: int) -> Event:
    return Event(kind="done", unit="x", **{"num_in": 500, "num_bytes": 40_000_000} | numbers)


def test_the_line_says_how_far_how_fast_and_how_long() -> None:
    progress = Progress(0.0)
    progress.update(Event(kind="plan", num_units=1200, num_done=1000), 0.0)
    assert describe(progress, 1.0) == "83% 1,000/1,200 units"
    for second in range(1, 51):
        progress.update(big_done(), second * 0.5)
    progress.update(Event(kind="failed", unit="y", message="why"), 25.0)
    assert describe(progress, 25.0) == (
        "88% 1,050/1,200 units, 1,000 samples/s, 80.0 MB/s, 1 failed, 1 min 14 s left"
    )


def test_plain_lines_come_every_few_seconds_then_less_often() -> None:
    stream, clock = io.StringIO(), Clock()
    show = PlainLines(stream, clock)
    show(Event(kind="plan", num_units=100_000))
    times = []
    for second in range(7200):
        clock.now_s = float(second)
        length = stream.tell()
        show(big_done())
        show(Event(kind="tick"))
        if stream.tell() > length:
            times.append(second)
    pauses = [after - before for before, after in pairwise(times)]
    assert times[0] == 5 and pauses[:3] == [5, 5, 5] and pauses[-1] == 60
    assert pauses == sorted(pauses)


def test_failures_and_waits_are_told_at_once() -> None:
    stream = io.StringIO()
    show = PlainLines(stream, Clock())
    show(Event(kind="wait", message="looking whether it is alive"))
    show(Event(kind="failed", unit="00042", message="a bug"))
    assert stream.getvalue() == "looking whether it is alive\nunit 00042 failed\n"


def test_a_terminal_gets_a_bar_and_brackets_are_not_markup() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with show_progress(stream) as on_event:
        on_event(Event(kind="plan", num_units=2))
        on_event(big_done())
        on_event(Event(kind="failed", unit="[red]b[/red]", message="why"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "unit [red]b[/red] failed" in text
    assert "100% 1/2 units" in text


def test_something_else_gets_plain_lines() -> None:
    stream = io.StringIO()
    with show_progress(stream) as on_event:
        on_event(Event(kind="failed", unit="a", message="why"))
    assert stream.getvalue() == "unit a failed\n"


def test_events_add_up() -> None:
    progress = Progress()
    for event in (
        Event(kind="plan", num_units=9, num_done=4),
        Event(kind="start", unit="a"),
        Event(kind="done", unit="a", num_in=5, num_kept=3, num_bytes=70),
        Event(kind="done", unit="b", num_in=2, num_kept=2, num_bytes=30),
        Event(kind="failed", unit="d", message="late"),
        Event(kind="failed", unit="c", message="why"),
        Event(kind="tick"),
        Event(kind="end"),
    ):
        progress(event)
    report = progress.report(Path("out"), None)
    assert (report.num_units, report.num_done_before, report.num_done) == (9, 4, 2)
    assert (report.num_in, report.num_kept, report.num_bytes) == (7, 5, 100)
    assert report.failures == (("c", "why"), ("d", "late"))
    assert not report.complete and report.seconds >= 0


def working(unit: str, num_in: int, num_samples: int = 0) -> Event:
    return Event(kind="working", unit=unit, num_in=num_in, num_samples=num_samples)


def test_a_long_unit_moves_before_it_is_done() -> None:
    """One of two units, of 1,000 samples and ten minutes, tells now and then how far it is."""
    progress = planned(2)
    progress.update(Event(kind="start", unit="a"), 0.0)
    progress.update(working("a", 250, 1000), 150.0)
    assert progress.share == pytest.approx(0.125)
    assert progress.seconds_left(150.0) == pytest.approx(1050)
    assert describe(progress, 150.0) == "12% 0/2 units, 250 samples, 2 samples/s, 17 min 30 s left"
    progress.update(working("a", 500, 1000), 300.0)
    progress.update(Event(kind="done", unit="a", num_in=1000), 600.0)
    progress.update(working("a", 990, 1000), 600.1)  # a word that comes too late
    assert (progress.num_read, progress.parts) == (1000, {})
    assert progress.share == 0.5 and progress.seconds_left(600.0) == pytest.approx(600)


def test_samples_are_told_where_their_number_is_not_known() -> None:
    progress = planned(2)
    progress.update(Event(kind="start", unit="a"), 0.0)
    progress.update(working("a", 5000), 10.0)
    assert describe(progress, 10.0) == "0% 0/2 units, 5,000 samples, 500 samples/s"
    progress.update(working("a", 100), 20.0)  # it failed, and is tried again from its beginning
    assert progress.samples_per_s(20.0) == pytest.approx(250)
    progress.update(Event(kind="failed", unit="a", message="no"), 30.0)
    assert progress.num_read == 0
