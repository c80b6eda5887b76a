"""Logs that grow while they are read."""

from __future__ import annotations

from pathlib import Path

from shardmill.run.events import Event, EventLog, LogTail, event_to_plain
from shardmill.storage.text import dump_line


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
    line = dump_line(event_to_plain(Event(kind="start", unit="ünit")))
    with (tmp_path / "a.jsonl").open("ab", buffering=0) as file:
        for byte in range(len(line) - 1):
            file.write(line[byte : byte + 1])
            assert list(tail.read()) == []
        file.write(line[-1:] + b"garbage\n" + line)
    assert [event.unit for event in tail.read()] == ["ünit", "ünit"]
