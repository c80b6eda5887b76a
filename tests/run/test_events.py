"""Events survive the way through JSON and the log; a log that was cut off can still be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from shardmill.run.events import (
    Event,
    EventLog,
    Kind,
    event_from_plain,
    event_to_plain,
    read_log,
)

EVENTS = st.builds(
    Event,
    kind=st.sampled_from(get_args(Kind)),
    unit=st.text(max_size=5),
    pid=st.integers(0, 9),
    seconds=st.floats(0, 9),
    num_units=st.integers(0, 9),
    num_bytes=st.integers(0, 1 << 60),
    message=st.text(max_size=5),
    fatal=st.booleans(),
)


@given(EVENTS)
def test_plain_and_back(event: Event) -> None:
    assert event_from_plain(event_to_plain(event)) == event


def test_fields_of_a_later_version_are_left_out() -> None:
    assert event_from_plain({"kind": "end", "colour": "blue"}) == Event(kind="end")


def test_the_log_holds_all_but_ticks_and_bears_a_cut(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log.jsonl")
    events = [Event(kind="start", unit="a", pid=7), Event(kind="tick"), Event(kind="end")]
    for event in events:
        log(event)
    log.close()
    entries = list(read_log(tmp_path / "log.jsonl"))
    assert [replace(entry.event, host="") for entry in entries] == [events[0], events[2]]
    assert all(entry.host and entry.time_s > 1e9 for entry in entries)
    content = (tmp_path / "log.jsonl").read_bytes()
    for cut in range(len(content)):
        (tmp_path / "log.jsonl").write_bytes(content[:cut])
        assert len(list(read_log(tmp_path / "log.jsonl"))) in (0, 1, 2)
