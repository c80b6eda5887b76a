"""The drafts and the log of a run, made when it begins and tidied up when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shardmill.io.receipts import Ledger
from shardmill.run.events import Event, EventLog, OnEvent


@contextmanager
def opened(ledger: Ledger, listeners: Sequence[OnEvent]) -> Iterator[OnEvent]:
    """Make the drafts and the log of a run, yield what tells all listeners, and tidy up."""
    ledger.make_drafts()
    log = EventLog(ledger.out_dir / "events" / f"{ledger.token}.jsonl")

    def tell(event: Event) -> None:
        log(event)
        for listener in listeners:
            listener(event)

    try:
        yield tell
    finally:
        tell(Event(kind="end"))
        log.close()
        shutil.rmtree(ledger.draft_dir, ignore_errors=True)
