"""Handing out units to workers, wherever they run: one loop, which every engine with a driver uses.

Workers ask for units, a few at a time, and report what happens to each. The loop notices a worker
that dies, gives its units to others while retries are left, and never holds more than the list of
units. What a worker is, and how words reach it, is the business of the crew.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.stage import Unit, unit_to_plain
from shardmill.run.events import Event, OnEvent, event_from_plain
from shardmill.run.job import Job, failure_record

TICK_S = 0.25
QUIT_WAIT_S = 6.0

Message = Mapping[str, Any]


@dataclass(slots=True)
class Duty:
    """What a worker was given and has not reported back, and how many more it asked for."""

    units: dict[str, Unit] = field(default_factory=dict)
    working: str = ""
    num_asked: int = 0
    ever_asked: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended: 'was killed by SIGSEGV'; whether its unit may be to blame."""

    cause: str
    log_tail: str = ""
    blameless: bool = False


class Worker(Protocol):
    """Somebody who works off units."""

    @property
    def duty(self) -> Duty:
        """What it holds; kept by the fleet."""

    def send(self, *messages: Message) -> None:
        """Send words; if the worker is gone, the crew will hear of it."""

    def bury(self) -> Ending:
        """Wait for its end and return how it ended."""

    def kill(self) -> None:
        """End it now."""


class Crew(Protocol):
    """Where workers come from."""

    def room(self) -> int:
        """Return how many workers there is room for right now."""

    def hire(self) -> Worker:
        """Start a worker."""

    def hear(self, timeout_s: float) -> Iterable[tuple[Worker, list[dict[str, Any]] | None]]:
        """Yield what workers say, within a time; None is the end of one."""

    def close(self) -> None:
        """Release what the crew holds; its workers are gone."""


class Source(Protocol):
    """Where further units come from, if not all are known from the start."""

    def take(self, count: int) -> Sequence[Unit]:
        """Return up to `count` units."""

    def is_waiting(self) -> bool:
        """Say whether units may come later, though there are none now."""


class NoMore:
    """The source of nothing."""

    def take(self, count: int) -> Sequence[Unit]:
        """Return nothing."""
        return ()

    def is_waiting(self) -> bool:
        """Say no."""
        return False


class Fleet:
    """The workers of one run and the units that are still to be done."""

    def __init__(
        self,
        job: Job,
        units: Sequence[Unit],
        crew: Crew,
        *,
        on_event: OnEvent,
        should_stop: Callable[[], bool],
        more: Source | None = None,
    ) -> None:
        self._job, self._crew = job, crew
        self._on_event, self._should_stop, self._more = on_event, should_stop, more or NoMore()
        self._queue = deque(units)
        self._workers: set[Worker] = set()
        self._num_stillborn = 0
        self._deaths: Counter[str] = Counter()
        self._stopped = self._dismissed = False
        self._next_tick_s = 0.0

    def run(self) -> None:
        """Hand out all units; return when each is done or has failed, or when told to stop."""
        try:
            while self._has_work() and not self._stopped:
                self._hire()
                self._hand_out()
                self._attend(TICK_S)
                self._tick()
                self._stopped = self._stopped or self._should_stop()
            self._dismiss({"quit": True} if self._stopped else {"end": True})
        finally:
            self._kill()

    def _has_work(self) -> bool:
        num_asked = sum(worker.duty.num_asked for worker in self._workers)
        # Only what can be begun at once: what waits here, nobody else can take.
        num_missing = max(num_asked, self._crew.room() - len(self._workers)) - len(self._queue)
        if num_missing > 0:
            self._queue.extend(self._more.take(num_missing))
        return bool(self._queue) or self._num_busy() > 0 or self._more.is_waiting()

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            self._on_event(Event(kind="tick"))

    def _num_busy(self) -> int:
        return sum(1 for worker in self._workers if worker.duty.units)

    def _hire(self) -> None:
        num_wanted = min(self._crew.room(), len(self._queue) + self._num_busy())
        while len(self._workers) < num_wanted:
            self._workers.add(self._crew.hire())

    def _hand_out(self) -> None:
        for worker in self._workers:
            # Near the end nobody takes several while others have none.
            fair = 1 + len(self._queue) // (2 * max(1, len(self._workers)))
            count = min(worker.duty.num_asked, fair, len(self._queue))
            if count:
                units = [self._queue.popleft() for _ in range(count)]
                worker.duty.num_asked = 0
                worker.duty.units.update((unit.name, unit) for unit in units)
                worker.send(*({"unit": unit_to_plain(unit)} for unit in units))

    def _attend(self, timeout_s: float) -> None:
        for worker, messages in self._crew.hear(timeout_s):
            if messages is None:
                self._bury(worker)
            for message in messages or ():
                self._heed(worker.duty, message)

    def _heed(self, duty: Duty, message: dict[str, Any]) -> None:
        if message["kind"] == "ask":
            duty.num_asked, duty.ever_asked = message["count"], True
        elif message["kind"] == "broken":
            raise ConfigError(message["message"])
        else:
            event = event_from_plain(message)
            if event.kind == "start":
                duty.working = event.unit
            else:
                duty.units.pop(event.unit, None)
            self._stopped = self._stopped or event.fatal
            self._on_event(event)

    def _bury(self, worker: Worker) -> None:
        """Take a worker that ended out of the books, and see to the units that it held."""
        self._workers.remove(worker)
        ending, duty = worker.bury(), worker.duty
        if not (duty.ever_asked or self._dismissed or ending.blameless):
            self._num_stillborn += 1
            if self._num_stillborn > self._job.retries:
                raise ShardmillError(
                    f"a worker {ending.cause} before its first unit:\n{ending.log_tail}"
                )
        # The unit at work is to blame; those that waited for their turn or commit are innocent.
        # Somebody must be, or a unit that kills its worker in a quiet way would do so for ever.
        if duty.units and not ending.blameless:
            guilty = duty.units.pop(duty.working, None)
            guilty = guilty or duty.units.pop(next(iter(duty.units)))
            self._blame(guilty, ending)
        self._queue.extendleft(reversed(duty.units.values()))

    def _blame(self, unit: Unit, ending: Ending) -> None:
        self._deaths[unit.name] += 1
        if self._stopped or self._deaths[unit.name] <= self._job.retries:
            self._queue.append(unit)
            return
        message = f"its worker {ending.cause}"
        with suppress(OSError):
            record = failure_record(unit.name, message, ending.log_tail)
            self._job.ledger.write_failure(unit.name, record)
        self._on_event(Event(kind="failed", unit=unit.name, message=message))

    def _dismiss(self, message: Message) -> None:
        """Tell all workers to go, and listen until they have, for a while."""
        self._dismissed = True
        for worker in self._workers:
            worker.send(message)
        deadline = time.monotonic() + QUIT_WAIT_S
        while self._workers and time.monotonic() < deadline:
            self._attend(TICK_S)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._crew.close()
