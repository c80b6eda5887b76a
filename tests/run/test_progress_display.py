"""What a person sees: plain lines now and then, notices at once, a moving line on a terminal."""

from __future__ import annotations

import io
import re
from itertools import pairwise

from shardmill.run.events import Event
from shardmill.run.progress import PlainLines, Progress, describe, show_progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def done(**numbers: int) -> Event:
    return Event(kind="done", unit="x", **{"num_in": 500, "num_bytes": 40_000_000} | numbers)


def test_the_line_says_how_far_how_fast_and_how_long() -> None:
    progress = Progress(0.0)
    progress.update(Event(kind="plan", num_units=1200, num_done=1000), 0.0)
    assert describe(progress, 1.0) == "83% 1,000/1,200 units"
    for second in range(1, 51):
        progress.update(done(), second * 0.5)
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
        show(done())
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
    assert stream.getvalue() == "looking whether it is alive\nunit 00042 failed: a bug\n"


def test_a_terminal_gets_a_bar_and_brackets_are_not_markup() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with show_progress(stream) as on_event:
        on_event(Event(kind="plan", num_units=2))
        on_event(done())
        on_event(Event(kind="failed", unit="b", message="bad [red]bracket[/red]"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "unit b failed: bad [red]bracket[/red]" in text
    assert "100% 1/2 units" in text


def test_something_else_gets_plain_lines() -> None:
    stream = io.StringIO()
    with show_progress(stream) as on_event:
        on_event(Event(kind="failed", unit="a", message="why"))
    assert stream.getvalue() == "unit a failed: why\n"
