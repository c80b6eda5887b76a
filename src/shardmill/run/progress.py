"""How far a run is, from its events: counts, rates over the last minute, and the time left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shardmill.run.events import Event

WINDOW_S = 60.0
# With fewer units than this in the last minute, older ones count as well: units of ten minutes
# would otherwise give a rate of zero and, now and then, of several a minute.
MIN_UNITS_IN_WINDOW = 20


@dataclass(slots=True)
class _Second:
    """What was finished in one second."""

    at_s: float
    num_units: int = 0
    num_samples: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class Progress:
    """The state of a run; `now_s` is any clock that does not jump."""

    began_s: float
    num_units: int = 0
    num_done_before: int = 0
    num_done: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    num_failed: int = 0
    running: dict[str, float] = field(default_factory=dict)
    _window: deque[_Second] = field(default_factory=deque)
    _window_began_s: float = 0.0

    def __post_init__(self) -> None:
        self._window_began_s = self.began_s

    def update(self, event: Event, now_s: float) -> None:
        """Enter an event."""
        if event.kind == "plan":
            self.num_units, self.num_done_before = event.num_units, event.num_done
            self.began_s = self._window_began_s = now_s
        elif event.kind == "start":
            self.running[event.unit] = now_s
        elif event.kind == "failed":
            self.running.pop(event.unit, None)
            self.num_failed += 1
        elif event.kind == "done":
            self.running.pop(event.unit, None)
            self._enter(event, now_s)

    def _enter(self, event: Event, now_s: float) -> None:
        self.num_done += 1
        self.num_samples += event.num_in
        self.num_bytes += event.num_bytes
        if not self._window or now_s - self._window[-1].at_s >= 1:
            self._window.append(_Second(now_s))
        last = self._window[-1]
        last.num_units += 1
        last.num_samples += event.num_in
        last.num_bytes += event.num_bytes
        self._forget_before(now_s - WINDOW_S)

    def _forget_before(self, limit_s: float) -> None:
        num_units = sum(second.num_units for second in self._window)
        while self._window[0].at_s < limit_s:
            num_units -= self._window[0].num_units
            if num_units < MIN_UNITS_IN_WINDOW:
                return
            self._window_began_s = self._window.popleft().at_s

    @property
    def share(self) -> float:
        """The share of the units that needs no more work, from 0 to 1."""
        num_over = self.num_done_before + self.num_done + self.num_failed
        return num_over / self.num_units if self.num_units else 1.0

    def units_per_s(self, now_s: float) -> float:
        """Units that were done, over the window."""
        return sum(second.num_units for second in self._window) / self._window_s(now_s)

    def samples_per_s(self, now_s: float) -> float:
        """Samples that finished units have read, over the window."""
        return sum(second.num_samples for second in self._window) / self._window_s(now_s)

    def bytes_per_s(self, now_s: float) -> float:
        """Bytes that were written, over the window."""
        return sum(second.num_bytes for second in self._window) / self._window_s(now_s)

    def seconds_left(self, now_s: float) -> float | None:
        """The time that the rest takes at the rate of the window; None before the first unit."""
        num_left = self.num_units - self.num_done_before - self.num_done - self.num_failed
        if num_left == 0:
            return 0.0
        units_per_s = self.units_per_s(now_s)
        return num_left / units_per_s if units_per_s else None

    def _window_s(self, now_s: float) -> float:
        return max(now_s - self._window_began_s, 1e-3)
