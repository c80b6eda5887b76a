"""The books of a run are the sum of its events."""

from __future__ import annotations

from pathlib import Path

from shardmill.run.events import Event
from shardmill.run.progress import RunBooks


def test_events_add_up() -> None:
    books = RunBooks(Path("out"))
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
        books(event)
    report = books.report(None)
    assert (report.num_units, report.num_done_before, report.num_done) == (9, 4, 2)
    assert (report.num_in, report.num_kept, report.num_bytes) == (7, 5, 100)
    assert report.failures == (("c", "why"), ("d", "late"))
    assert not report.complete and report.seconds >= 0
