"""What happens during a run, as values: for the progress line, for the log, between processes.

The log of a run is `events/TOKEN.jsonl`: one event a line, with the time, the host and the process.
An object cannot grow, so in a store a log is `events/TOKEN.N.jsonl`, N = 0, 1, ...: what happened
since the last one, every few seconds. Nothing in shards, receipts or manifest depends on it.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from shardmill.errors import StoreError, mask
from shardmill.storage.files import backend_of, list_names, read_all
from shardmill.storage.path import UrlPath
from shardmill.storage.text import dump_line, parse_json

MAX_LOG_BYTES = 64 << 20  # some 200,000 units; whoever asks for the status wants the last ones
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0

Kind = Literal["plan", "wait", "start", "working", "done", "failed", "tick", "end"]
ABOUT_UNITS = ("start", "working", "done", "failed")
FATAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what does not apply to its kind stays at its default.

    plan: `num_units` are to be done, of which `num_done` are done already
    wait: the run waits for something or has something to say; `message` is it
    start, done, failed: of one unit, in the process `pid`; `fatal` stops the whole run; of the
        seconds that it took, the process computed for `cpu_seconds`, in all its threads
    working: a unit that takes long has read `num_in` samples so far, of `num_samples` if known
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
    num_samples: int = 0
    num_kept: int = 0
    num_bytes: int = 0
    message: str = ""
    fatal: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", mask(self.message))


OnEvent: TypeAlias = Callable[[Event], None]

_DEFAULTS = {field.name: field.default for field in fields(Event)}


def event_to_plain(event: Event) -> dict[str, Any]:
    """Return the event without the fields that are at their default."""
    values = ((name, getattr(event, name)) for name in _DEFAULTS)
    return {name: value for name, value in values if value != _DEFAULTS[name]}


def event_from_plain(plain: dict[str, Any]) -> Event:
    """Return the event that `event_to_plain` stored; fields of other versions are left out.

    Raises TypeError for a value that no event has.
    """
    values = {name: value for name, value in plain.items() if name in _DEFAULTS}
    for name, value in values.items():
        default = _DEFAULTS[name]
        wanted = (
            str if name == "kind" else (int, float) if type(default) is float else type(default)
        )
        if not isinstance(value, wanted):
            raise TypeError(f"{name} of an event is {value!r:.100}")
    return Event(**values)


def is_fatal(error: BaseException) -> bool:
    """Say whether an error would meet every other unit too: a full disk, a store that refuses."""
    if isinstance(error, StoreError):
        return not error.passing
    return isinstance(error, OSError) and error.errno in FATAL_ERRNOS


class EventHub:
    """Passes events to the log and to all listeners, one at a time, from whichever thread."""

    def __init__(self, log: EventLog, listeners: Sequence[OnEvent]) -> None:
        self._log, self._listeners = log, listeners
        # Reentrant: a stop signal may interrupt a listener, and the end is an event too.
        self._lock = threading.RLock()
        self.saw_fatal = False

    def __call__(self, event: Event) -> None:
        """Log an event of this process and pass it on."""
        with self._lock:
            self.saw_fatal = self.saw_fatal or event.fatal
            self._log(event)
            self.relay(event)

    def relay(self, event: Event) -> None:
        """Pass on the event of another process, which has it in a log of its own."""
        with self._lock:
            for listener in self._listeners:
                listener(event)


class EventLog:
    """Appends events to a log, each whole line in one write, so that a kill loses at most one."""

    def __init__(self, path: Path) -> None:
        self._path, self._host = path, socket.gethostname()
        self._file = None if isinstance(path, UrlPath) else path.open("ab", buffering=0)
        # For a store: lines that no object holds yet, and when the next object is due. The pauses
        # grow, so that a long run does not leave thousands of small objects.
        self._lines: list[bytes] = []
        self._num_objects, self._pause_s = 0, FIRST_PAUSE_S
        self._due_s = time.monotonic() + self._pause_s

    def __call__(self, event: Event) -> None:
        """Append the event, unless it only says that time went by."""
        # The log only informs; a full disk must not keep the run from ending in good order.
        with suppress(OSError):
            if event.kind != "tick":
                stamp = {"time": round(time.time(), 3), "host": self._host}
                line = dump_line(stamp | event_to_plain(event))
                if self._file is not None:
                    self._file.write(line)
                else:
                    self._lines.append(line)
            if self._lines and time.monotonic() >= self._due_s:
                self._put_object()

    def close(self) -> None:
        """Write what is left and close the log."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
            elif self._lines:
                self._put_object()

    def _put_object(self) -> None:
        path = self._path.with_suffix(f".{self._num_objects:06d}.jsonl")
        self._due_s = time.monotonic() + self._pause_s
        backend_of(path.parent).put(path, b"".join(self._lines))
        self._lines.clear()
        self._num_objects += 1
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
        with suppress(ValueError, KeyError, TypeError):
            plain = parse_json(line)
            yield LoggedEvent(float(plain["time"]), str(plain["host"]), event_from_plain(plain))


class LogTail:
    """Reads what was appended to the logs of a folder's other runs since it was last asked."""

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
            for entry in _parse(whole):
                if entry.event.kind in ABOUT_UNITS:
                    yield entry.event

    def _logs(self) -> list[Path]:
        paths = sorted(self._events_dir.glob("*.jsonl"))
        return [path for path in paths if path.name != self._own_name]
