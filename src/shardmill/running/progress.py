"""How far a run is, from its events: counts, rates, the time left; and how a person watches it."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import TextIO

from shardmill import humanize as wording
from shardmill.model.manifest import Manifest
from shardmill.running.events import Event, OnEvent

WINDOW_S = 60.0
# With fewer units than this in the last minute, older ones count as well: units of ten minutes
# would otherwise give a rate of zero and, now and then, of several a minute.
MIN_UNITS_IN_WINDOW = 20
# Pauses between lines where there is no terminal: short at first, then longer.
MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 60.0
SLOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run did and how the folder stands; `manifest` is there when it is complete.

    `num_units` and `num_done_before` count the part that this run was to do; `num_in`, `num_kept`
    and `num_bytes` count what it did itself.
    """

    out_dir: Path
    num_units: int
    num_done_before: int
    num_done: int
    failures: tuple[tuple[str, str], ...]
    num_in: int
    num_kept: int
    num_bytes: int
    seconds: float
    manifest: Manifest | None

    @property
    def complete(self) -> bool:
        """Whether every unit of the folder, of all parts, is done."""
        return self.manifest is not None

    def causes(self) -> list[Cause]:
        """Return why units failed, each cause once, the most frequent first."""
        units: dict[str, list[tuple[str, str]]] = {}
        for unit, message in self.failures:
            units.setdefault(cause_of(message), []).append((unit, message))
        found = [Cause(len(same), *same[0]) for same in units.values()]
        return sorted(found, key=lambda cause: -cause.num_units)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why units failed: how many of them, the first one, and what it said."""

    num_units: int
    unit: str
    message: str

    def describe(self, out_dir: Path) -> str:
        """Return the message, and where its traceback is."""
        log = f"{wording.place(out_dir)}/failures/{self.unit}.json"
        others = f", {self.num_units:,} units alike" if self.num_units > 1 else ""
        return f"{self.unit}: {self.message} ({log}{others})"


def cause_of(message: str) -> str:
    """Return a message without what differs from unit to unit: numbers and names."""
    return re.sub(r"'[^']*'|\S*\d\S*", "", message)


@dataclass(slots=True)
class _Second:
    """What was finished in one second."""

    at_s: float
    num_units: float = 0.0
    num_samples: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class Progress:
    """The events of a run, added up; usable as `on_event`.

    Rates are those of the last minute, by any clock that does not jump.
    """

    began_s: float = field(default_factory=time.monotonic)
    num_units: int = 0
    num_done_before: int = 0
    num_done: int = 0
    num_in: int = 0
    num_kept: int = 0
    num_bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    # Of long units at work: samples so far, and the share of the unit, 0 where that is not known.
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)
    _window: deque[_Second] = field(default_factory=deque)
    _window_began_s: float = 0.0

    def __post_init__(self) -> None:
        self._window_began_s = self.began_s

    def __call__(self, event: Event) -> None:
        """Count an event that happens now."""
        self.update(event, time.monotonic())

    def update(self, event: Event, now_s: float) -> None:
        """Count an event."""
        if event.kind == "plan":
            self.num_units, self.num_done_before = event.num_units, event.num_done
            self._window_began_s = now_s
        elif event.kind == "start":
            self.running[event.unit] = now_s
        elif event.kind == "working" and event.unit in self.running:
            share = min(1.0, event.num_in / event.num_samples) if event.num_samples else 0.0
            self._count(now_s, event.unit, event.num_in, share)
            self.parts[event.unit] = event.num_in, share
        elif event.kind == "failed":
            self.running.pop(event.unit, None)
            self.parts.pop(event.unit, None)
            self.failures[event.unit] = event.message
        elif event.kind == "done":
            self.running.pop(event.unit, None)
            self._count_done(event, now_s)

    def report(self, out_dir: Path, manifest: Manifest | None) -> RunReport:
        """Return the report of the run, now that it is over."""
        return RunReport(
            out_dir=out_dir,
            num_units=self.num_units,
            num_done_before=self.num_done_before,
            num_done=self.num_done,
            # In a complete folder every unit is done, by others or although an error came after.
            failures=() if manifest is not None else tuple(sorted(self.failures.items())),
            num_in=self.num_in,
            num_kept=self.num_kept,
            num_bytes=self.num_bytes,
            seconds=time.monotonic() - self.began_s,
            manifest=manifest,
        )

    @property
    def num_over(self) -> int:
        """Units that need no more work in this run: done before, done now, or failed."""
        return self.num_done_before + self.num_done + len(self.failures)

    @property
    def share(self) -> float:
        """The share of the units that needs no more work, from 0 to 1."""
        return (self.num_over + self._num_begun) / self.num_units if self.num_units else 1.0

    @property
    def num_read(self) -> int:
        """Samples read by this run, those of units at work among them as far as they tell."""
        return self.num_in + sum(num_in for num_in, _ in self.parts.values())

    @property
    def _num_begun(self) -> float:
        """What is done of units at work, in units."""
        return sum(share for _, share in self.parts.values())

    def units_per_s(self, now_s: float) -> float:
        """Units that were done, over the window."""
        return sum(second.num_units for second in self._window) / self._window_s(now_s)

    def samples_per_s(self, now_s: float) -> float:
        """Samples that were read, over the window."""
        return sum(second.num_samples for second in self._window) / self._window_s(now_s)

    def bytes_per_s(self, now_s: float) -> float:
        """Bytes that were written, over the window."""
        return sum(second.num_bytes for second in self._window) / self._window_s(now_s)

    def seconds_left(self, now_s: float) -> float | None:
        """The time that the rest takes at the rate of the window; None before the first unit."""
        num_left = self.num_units - self.num_over - self._num_begun
        if num_left <= 0:
            return 0.0
        units_per_s = self.units_per_s(now_s)
        return num_left / units_per_s if units_per_s else None

    def _count_done(self, event: Event, now_s: float) -> None:
        self.num_done += 1
        self.num_in += event.num_in
        self.num_kept += event.num_kept
        self.num_bytes += event.num_bytes
        self._count(now_s, event.unit, event.num_in, 1.0)
        self.parts.pop(event.unit, None)
        self._window[-1].num_bytes += event.num_bytes

    def _count(self, now_s: float, unit: str, num_in: int, share: float) -> None:
        """Count what a unit has done since it last told."""
        # A unit that is tried again begins at 0.
        before, share_before = self.parts.get(unit, (0, 0.0))
        if not self._window or now_s - self._window[-1].at_s >= 1:
            self._window.append(_Second(now_s))
        last = self._window[-1]
        last.num_units += max(0.0, share - share_before)
        last.num_samples += max(0, num_in - before)
        self._forget_before(now_s - WINDOW_S)

    def _forget_before(self, limit_s: float) -> None:
        num_units = sum(second.num_units for second in self._window)
        while self._window[0].at_s < limit_s:
            num_units -= self._window[0].num_units
            if num_units < MIN_UNITS_IN_WINDOW:
                return
            self._window_began_s = self._window.popleft().at_s

    def _window_s(self, now_s: float) -> float:
        return max(now_s - self._window_began_s, 1e-3)


@contextmanager
def show_progress(stream: TextIO) -> Iterator[OnEvent]:
    """Yield what run_stage wants as `on_event`; it draws on the stream."""
    if stream.isatty():
        with _moving_line(stream) as on_event:
            yield on_event
    else:
        yield PlainLines(stream)


@contextmanager
def say_if_slow(stream: TextIO, text: str) -> Iterator[None]:
    """Write a line if what happens inside takes longer than a second."""
    timer = Timer(SLOW_S, lambda: print(text, file=stream, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class PlainLines:
    """Writes a line when something happened and some time went by: often at first, then less."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._progress = Progress(clock())
        self._next_s = clock() + MIN_PAUSE_S

    def __call__(self, event: Event) -> None:
        """Count an event and write what is due."""
        now_s = self._clock()
        self._progress.update(event, now_s)
        notice = describe_notice(event)
        if notice:
            self._write(notice)
        elif now_s >= self._next_s and self._progress.num_units:
            self._write(describe(self._progress, now_s))
            pause_s = (now_s - self._progress.began_s) / 20
            self._next_s = now_s + min(max(pause_s, MIN_PAUSE_S), MAX_PAUSE_S)

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def describe(progress: Progress, now_s: float) -> str:
    """Return '41% 412/1,000 units, 3,214 samples/s, 18.2 MB/s, 2 failed, 3 min left'."""
    num_done = progress.num_done_before + progress.num_done
    words = [f"{progress.share:.0%} {num_done:,}/{progress.num_units:,} units"]
    if progress.parts:  # units that take long, whose samples say more than their number
        words.append(f"{progress.num_read:,} samples")
    if progress.num_read:
        words.append(f"{progress.samples_per_s(now_s):,.0f} samples/s")
    if progress.num_done:
        words.append(f"{wording.size(progress.bytes_per_s(now_s))}/s")
    if progress.failures:
        words.append(f"{len(progress.failures):,} failed")
    seconds_left = progress.seconds_left(now_s)
    if seconds_left is not None:
        words.append(f"{wording.duration(seconds_left)} left")
    return ", ".join(words)


def describe_notice(event: Event) -> str:
    """Return the line that an event is worth by itself, or ''."""
    # Why units failed is told at the end, once for all that failed alike.
    if event.kind == "failed":
        return f"unit {event.unit} failed"
    return event.message if event.kind == "wait" else ""


@contextmanager
def _moving_line(stream: TextIO) -> Iterator[OnEvent]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    progress = Progress(time.monotonic())
    columns = (SpinnerColumn(), BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("looking at the input", total=None)

        def on_event(event: Event) -> None:
            now_s = time.monotonic()
            progress.update(event, now_s)
            notice = describe_notice(event)
            if notice:
                bar.console.print(notice, markup=False, highlight=False)
            if progress.num_units:
                text = describe(progress, now_s)
                bar.update(task, total=1.0, completed=progress.share, description=text)

        yield on_event
