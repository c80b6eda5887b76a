"""Events survive the way through JSON and the log; a log that is cut off or grows can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.running import events
from shardmill.running.events import (
    Event,
    EventLog,
    Kind,
    LogTail,
    event_from_plain,
    event_to_plain,
    read_log,
    read_logs,
)
from shardmill.storage.files import list_names
from shardmill.storage.path import as_path
from shardmill.storage.text import dump_line

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
    told = [Event(kind="start", unit="a", pid=7), Event(kind="tick"), Event(kind="end")]
    for event in told:
        log(event)
    log.close()
    entries = list(read_log(tmp_path / "log.jsonl"))
    assert [replace(entry.event, host="") for entry in entries] == [told[0], told[2]]
    assert all(entry.host and entry.time_s > 1e9 for entry in entries)
    content = (tmp_path / "log.jsonl").read_bytes()
    for cut in range(len(content)):
        (tmp_path / "log.jsonl").write_bytes(content[:cut])
        assert len(list(read_log(tmp_path / "log.jsonl"))) in (0, 1, 2)


def test_a_log_in_a_store_comes_in_pieces(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FIRST_PAUSE_S", 0.0)
    folder = as_path(store_url)
    log = EventLog(folder / "one.jsonl")
    for number in range(3):
        log(Event(kind="start", unit=f"{number}"))
        log(Event(kind="tick"))
    log.close()
    other = EventLog(folder / "two.jsonl")
    other(Event(kind="end"))
    other.close()
    assert len(list_names(folder)) == 4
    found = {token: [entry.event for entry in entries] for token, entries in read_logs(folder)}
    assert [event.unit for event in found["one"]] == ["0", "1", "2"]
    assert [event.kind for event in found["two"]] == ["end"]


def test_a_store_that_is_gone_does_not_stop_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "0")
    monkeypatch.setattr(events, "FIRST_PAUSE_S", 0.0)
    log = EventLog(as_path("s3://bucket/events/one.jsonl"))
    log(Event(kind="end"))
    log.close()


def test_only_what_came_since_and_only_of_others(tmp_path: Path) -> None:
    old, own = EventLog(tmp_path / "old.jsonl"), EventLog(tmp_path / "own.jsonl")
    old(Event(kind="done", unit="before"))
    tail = LogTail(tmp_path, own_token="own")
    assert list(tail.read()) == []
    old(Event(kind="done", unit="a"))
    own(Event(kind="done", unit="mine"))
    new = EventLog(tmp_path / "new.jsonl")
    new(Event(kind="plan", num_units=3))
    new(Event(kind="failed", unit="b", message="no"))
    assert [(e.kind, e.unit) for e in tail.read()] == [("failed", "b"), ("done", "a")]
    assert list(tail.read()) == []


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    tail = LogTail(tmp_path, own_token="own")
    stamp = {"time": 1.0, "host": "here"}
    line = dump_line(stamp | event_to_plain(Event(kind="start", unit="ünit")))
    with (tmp_path / "a.jsonl").open("ab", buffering=0) as file:
        for byte in range(len(line) - 1):
            file.write(line[byte : byte + 1])
            assert list(tail.read()) == []
        file.write(line[-1:] + b"garbage\n" + line)
    assert [event.unit for event in tail.read()] == ["ünit", "ünit"]
