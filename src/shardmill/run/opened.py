"""The drafts and the log of a run, made when it begins and tidied up when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardmill.io.receipts import Ledger
from shardmill.run.events import Event, EventLog, OnEvent


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells events to all listeners, and to the log if they are our own."""

    log: EventLog
    listeners: Sequence[OnEvent]

    def __call__(self, event: Event) -> None:
        """Log an event and tell it."""
        self.log(event)
        self.relay(event)

    def relay(self, event: Event) -> None:
        """Tell what somebody else did, who has it in a log already."""
        for listener in self.listeners:
            listener(event)


@contextmanager
def opened(ledger: Ledger, listeners: Sequence[OnEvent]) -> Iterator[Teller]:
    """Make the drafts and the log of a run, yield what tells all listeners, and tidy up."""
    ledger.make_drafts()
    log = EventLog(ledger.out_dir / "events" / f"{ledger.token}.jsonl")
    tell = Teller(log, listeners)
    try:
        yield tell
    finally:
        tell(Event(kind="end"))
        log.close()
        shutil.rmtree(ledger.draft_dir, ignore_errors=True)
