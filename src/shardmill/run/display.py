"""A run as a person watches it: a moving line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from shardmill import wording
from shardmill.run.events import Event, OnEvent
from shardmill.run.progress import Progress

MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 60.0


@contextmanager
def show_progress(stream: TextIO) -> Iterator[OnEvent]:
    """Yield what run_stage wants as `on_event`; it draws on the stream."""
    if stream.isatty():
        with _moving_line(stream) as on_event:
            yield on_event
    else:
        yield PlainLines(stream)


class PlainLines:
    """Writes a line when something happened and some time went by: often at first, then less."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._progress = Progress(clock())
        self._next_s = clock() + MIN_PAUSE_S

    def __call__(self, event: Event) -> None:
        """Enter an event and write what is due."""
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
    num_over = progress.num_done_before + progress.num_done
    words = [f"{progress.share:.0%} {num_over:,}/{progress.num_units:,} units"]
    if progress.num_done:
        words.append(f"{progress.samples_per_s(now_s):,.0f} samples/s")
        words.append(f"{wording.size(progress.bytes_per_s(now_s))}/s")
    if progress.num_failed:
        words.append(f"{progress.num_failed:,} failed")
    seconds_left = progress.seconds_left(now_s)
    if seconds_left is not None:
        words.append(f"{wording.duration(seconds_left)} left")
    return ", ".join(words)


def describe_notice(event: Event) -> str:
    """Return the line that an event is worth by itself, or ''."""
    if event.kind == "failed":
        return f"unit {event.unit} failed: {event.message}"
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
