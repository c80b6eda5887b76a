"""What happens during a run, as values: for the progress line, for the log, between processes.

The log of a run is `events/TOKEN.jsonl`: one event a line, with the time, the host and the process.
Nothing in shards, receipts or manifest depends on it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

from shardmill.io.jsontext import dump_line, parse_json

Kind = Literal["plan", "wait", "start", "done", "failed", "tick", "end"]

MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what does not apply to its kind stays at its default.

    plan: `num_units` are to be done, of which `num_done` are done already
    wait: another run seems to hold the folder; `message` says who
    start, done, failed: of one unit, in the process `pid`; `fatal` stops the whole run; of the
        seconds that it took, the process computed for `cpu_seconds`, in all its threads
    tick: nothing, but time went by
    end: the run is over
    """

    kind: Kind
    unit: str = ""
    pid: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
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
        plain = {"time": round(time.time(), 3), "host": self._host} | event_to_plain(event)
        with suppress(OSError):
            self._file.write(dump_line(plain))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with the time and the host of its driver."""

    time_s: float
    host: str
    event: Event


def read_log(path: Path) -> Iterator[LoggedEvent]:
    """Yield the events of a log, the last of a long one; a line that a kill cut off is left out."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        for line in file:
            try:
                plain = parse_json(line)
                yield LoggedEvent(plain["time"], plain["host"], event_from_plain(plain))
            except (ValueError, KeyError, TypeError):
                continue
