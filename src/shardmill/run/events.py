"""What happens during a run, as values: for the progress line, for the log, between processes.

The log of a run is `events/TOKEN.jsonl`: one event a line, with the time, the host and the process.
Nothing in shards, receipts or manifest depends on it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

Kind = Literal["plan", "wait", "start", "done", "failed", "tick", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what does not apply to its kind stays at its default.

    plan: `num_units` are to be done, of which `num_done` are done already
    wait: another run seems to hold the folder; `message` says who
    start, done, failed: of one unit, in the process `pid`; `fatal` stops the whole run
    tick: nothing, but time went by
    end: the run is over
    """

    kind: Kind
    unit: str = ""
    pid: int = 0
    seconds: float = 0.0
    num_units: int = 0
    num_done: int = 0
    num_in: int = 0
    num_kept: int = 0
    num_bytes: int = 0
    message: str = ""
    fatal: bool = False


OnEvent: TypeAlias = Callable[[Event], None]

_DEFAULTS = {field.name: field.default for field in fields(Event)}


def event_to_plain(event: Event) -> dict[str, Any]:
    """Return the event without the fields that are at their default."""
    values = ((name, getattr(event, name)) for name in _DEFAULTS)
    return {name: value for name, value in values if value != _DEFAULTS[name]}


def event_from_plain(plain: dict[str, Any]) -> Event:
    """Return the event that `event_to_plain` stored; fields of other versions are left out."""
    return Event(**{name: value for name, value in plain.items() if name in _DEFAULTS})


class EventLog:
    """Appends events to a file, each whole line in one write, so that a kill loses at most one."""

    def __init__(self, path: Path) -> None:
        self._file: FileIO = path.open("ab", buffering=0)
        self._host = socket.gethostname()

    def __call__(self, event: Event) -> None:
        """Append the event, unless it only says that time went by."""
        if event.kind == "tick":
            return
        # The log only informs; a full disk must not keep the run from ending in good order.
        stamp = {"time": round(time.time(), 3), "host": self._host, "pid": os.getpid()}
        with suppress(OSError):
            self._file.write(orjson.dumps(stamp | event_to_plain(event)) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
