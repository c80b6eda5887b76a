"""A run's drafts and log: there while it runs, tidied up however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.run.events import Event, read_log
from shardmill.run.setup import opened
from shardmill.shards.ledger import Ledger


def test_our_own_events_are_logged_and_those_of_others_only_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    heard: list[Event] = []
    with pytest.raises(ValueError, match="a bug"), opened(ledger, [heard.append]) as tell:
        assert ledger.draft_dir.is_dir()
        tell(Event(kind="done", unit="mine"))
        tell.relay(Event(kind="done", unit="theirs"))
        raise ValueError("a bug")
    assert [event.unit for event in heard if event.kind == "done"] == ["mine", "theirs"]
    logged = [entry.event for entry in read_log(ledger.out_dir / "events" / "run.jsonl")]
    assert [(event.kind, event.unit) for event in logged] == [("done", "mine"), ("end", "")]
    assert not ledger.draft_dir.exists()
