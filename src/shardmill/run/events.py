"""What happens during a run, as values: for the progress line, for the log, between processes.

The log of a run is `events/TOKEN.jsonl`: one event a line, with the time, the host and the process.
An object cannot grow, so in a store a log is `events/TOKEN.N.jsonl`, N = 0, 1, ...: what happened
since the last one, every few seconds. Nothing in shards, receipts or manifest depends on it.

What the tasks of a folder do, as their logs tell it while they grow.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from io import FileIO
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from shardmill.storage.folder import backend_of, list_names, read_all
from shardmill.storage.path import UrlPath
from shardmill.storage.text import dump_line, parse_json

Kind = Literal["plan", "wait", "start", "done", "failed", "tick", "end"]

MAX_LOG_BYTES = 64 << 20
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what does not apply to its kind stays at its default.

    plan: `num_units` are to be done, of which `num_done` are done already
    wait: another run seems to hold the folder; `message` says who
    start, done, failed: of one unit, in the process `pid`; `fatal` stops the whole run; of the
        seconds that it took, the process computed for `cpu_seconds`, in all its threads
    host: where it happened, if not on the driver's machine
    tick: nothing, but time went by
    end: the run is over
    """

    kind: Kind
    unit: str = ""
    host: str = ""
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
    """Appends events to a log, each whole line in one write, so that a kill loses at most one."""

    def __init__(self, path: Path) -> None:
        self._sink = _StoreSink(path) if isinstance(path, UrlPath) else _FileSink(path)
        self._host = socket.gethostname()

    def __call__(self, event: Event) -> None:
        """Append the event, unless it only says that time went by."""
        # The log only informs; a full disk must not keep the run from ending in good order.
        with suppress(OSError):
            if event.kind == "tick":
                self._sink.tick()
                return
            plain = {"time": round(time.time(), 3), "host": self._host} | event_to_plain(event)
            self._sink.write(dump_line(plain))

    def close(self) -> None:
        """Close the log."""
        with suppress(OSError):
            self._sink.close()


class _FileSink:
    """One file that grows."""

    def __init__(self, path: Path) -> None:
        self._file: FileIO = path.open("ab", buffering=0)
        self.write, self.close = self._file.write, self._file.close

    def tick(self) -> None:
        """Do nothing: every line is written at once."""


class _StoreSink:
    """Objects of what was written since the last; few at the end of a long run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self._number, self._pause_s = 0, FIRST_PAUSE_S
        self._next_s = time.monotonic() + self._pause_s

    def write(self, line: bytes) -> None:
        """Keep a line, and write what is kept if it is time."""
        self._lines.append(line)
        self.tick()

    def tick(self) -> None:
        """Write what is kept if it is time."""
        if time.monotonic() >= self._next_s:
            self._flush()

    def close(self) -> None:
        """Write what is kept."""
        self._flush()

    def _flush(self) -> None:
        self._next_s = time.monotonic() + self._pause_s
        if self._lines:
            path = self._path.with_suffix(f".{self._number:06d}.jsonl")
            backend_of(path.parent).put(path, b"".join(self._lines))
            self._lines.clear()
            self._number += 1
            self._pause_s = min(self._pause_s * 1.2, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with the time and the host of its driver."""

    time_s: float
    host: str
    event: Event


def read_logs(events_dir: Path) -> Iterator[tuple[str, list[LoggedEvent]]]:
    """Yield the token and the events of each run that has a log."""
    names = [name for name in list_names(events_dir) if name.endswith(".jsonl")]
    for token, group in groupby(names, key=lambda name: name.partition(".")[0]):
        if isinstance(events_dir, UrlPath):
            parts = read_all(events_dir, list(group))
            yield token, [event for part in parts for event in _parse(part or b"")]
        else:
            yield token, list(read_log(events_dir / next(group)))


def read_log(path: Path) -> Iterator[LoggedEvent]:
    """Yield the events of a log, the last of a long one; a line that a kill cut off is left out."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        yield from _parse(file.read())


def _parse(content: bytes) -> Iterator[LoggedEvent]:
    for line in content.splitlines():
        try:
            plain = parse_json(line)
            yield LoggedEvent(plain["time"], plain["host"], event_from_plain(plain))
        except (ValueError, KeyError, TypeError):
            continue


KINDS = ("start", "done", "failed")


class LogTail:
    """Reads what was appended to the logs of a folder since it was last asked."""

    def __init__(self, events_dir: Path, *, own_token: str) -> None:
        self._events_dir, self._own_name = events_dir, f"{own_token}.jsonl"
        self._offsets = {path.name: path.stat().st_size for path in self._logs()}

    def read(self) -> Iterator[Event]:
        """Yield what happened to units, in the order of each log."""
        for path in self._logs():
            with path.open("rb") as file:
                file.seek(self._offsets.get(path.name, 0))
                content = file.read()
            # A line without its end is being written right now.
            whole, newline, _ = content.rpartition(b"\n")
            self._offsets[path.name] = self._offsets.get(path.name, 0) + len(whole + newline)
            yield from _events(whole)

    def _logs(self) -> list[Path]:
        paths = sorted(self._events_dir.glob("*.jsonl"))
        return [path for path in paths if path.name != self._own_name]


def _events(content: bytes) -> Iterator[Event]:
    for line in content.splitlines():
        try:
            event = event_from_plain(parse_json(line))
        except (ValueError, TypeError):
            continue
        if event.kind in KINDS:
            yield event
