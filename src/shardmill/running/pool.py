"""The worker pool: hands out units to workers, wherever they run. Engines with a driver use it.

Workers ask for units, a few at a time, and report what happens to each. The pool notices a worker
that dies, gives its units to others while retries are left, and never holds more than the list of
units. What a worker is, and how messages reach it, is up to the spawner: a process (`local`), an
actor of a cluster (`ray`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.stage import Stage, Unit, unit_to_plain
from shardmill.running.engine import Job, keep_failure
from shardmill.running.events import Event, OnEvent, event_from_plain

TICK_S = 0.25
QUIT_WAIT_S = 6.0  # a worker that is told to quit takes up to 5 s for the unit at work

Message = Mapping[str, Any]


@dataclass(slots=True)
class WorkerUnits:
    """The units that a worker was given and has not reported, and how many more it asked for."""

    units: dict[str, Unit] = field(default_factory=dict)
    working: str = ""
    num_asked: int = 0
    ever_asked: bool = False


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended ('was killed by SIGSEGV'), and whether its unit may be to blame."""

    cause: str
    log_tail: str = ""
    blameless: bool = False


class PoolWorker(Protocol):
    """A worker as the pool sees it."""

    @property
    def given(self) -> WorkerUnits:
        """What it works on; kept by the pool."""

    def send(self, *messages: Message) -> None:
        """Send messages; if the worker is gone, the spawner's `poll` will tell."""

    def reap(self) -> WorkerExit:
        """Wait for its end and return how it ended."""

    def kill(self) -> None:
        """End it now."""


class Spawner(Protocol):
    """Starts workers and receives their messages."""

    def capacity(self) -> int:
        """Return how many workers there may be right now."""

    def spawn(self) -> PoolWorker:
        """Start a worker."""

    def poll(self, timeout_s: float) -> Iterable[tuple[PoolWorker, list[dict[str, Any]] | None]]:
        """Yield the messages of workers that arrive within a time; None is the end of one."""

    def close(self) -> None:
        """Release what is held; the workers are gone."""


class UnitSource(Protocol):
    """Where further units come from, if not all are known from the start."""

    def take(self, count: int) -> Sequence[Unit]:
        """Return up to `count` units."""

    def is_waiting(self) -> bool:
        """Say whether units may come later, though there are none now."""


def check_importable(stage: Stage) -> None:
    """Raise `ConfigError` if another process could not import the stage."""
    if type(stage).__module__ == "__main__":
        raise ConfigError(
            f"worker processes cannot import {type(stage).__name__} from a script: put it "
            "into a module of its own, or run with workers=0"
        )


class WorkerPool:
    """The workers of one run and the units that are still to be done."""

    def __init__(
        self,
        job: Job,
        units: Sequence[Unit],
        spawner: Spawner,
        *,
        on_event: OnEvent,
        should_stop: Callable[[], bool],
        more: UnitSource | None = None,
    ) -> None:
        self._job, self._spawner = job, spawner
        self._on_event, self._should_stop, self._more = on_event, should_stop, more
        self._queue = deque(units)
        self._workers: set[PoolWorker] = set()
        self._num_failed_starts = 0
        self._deaths: Counter[str] = Counter()
        self._stopped = self._dismissed = False
        self._next_tick_s = 0.0

    def run(self) -> None:
        """Hand out all units; return when each is done or has failed, or when told to stop."""
        try:
            while self._has_work() and not self._stopped:
                self._spawn()
                self._hand_out()
                self._poll(TICK_S)
                self._tick()
                self._stopped = self._stopped or self._should_stop()
            self._dismiss({"quit": True} if self._stopped else {"end": True})
        finally:
            for worker in self._workers:
                worker.kill()
            self._spawner.close()

    def _has_work(self) -> bool:
        is_waiting = False
        if self._more is not None:
            num_asked = sum(worker.given.num_asked for worker in self._workers)
            num_free = self._spawner.capacity() - len(self._workers)
            # Only what can be begun at once: what waits here, no other task can take.
            num_missing = max(num_asked, num_free) - len(self._queue)
            if num_missing > 0:
                self._queue.extend(self._more.take(num_missing))
            is_waiting = self._more.is_waiting()
        return bool(self._queue) or self._num_busy() > 0 or is_waiting

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            self._on_event(Event(kind="tick"))

    def _num_busy(self) -> int:
        return sum(1 for worker in self._workers if worker.given.units)

    def _spawn(self) -> None:
        num_wanted = min(self._spawner.capacity(), len(self._queue) + self._num_busy())
        while len(self._workers) < num_wanted:
            self._workers.add(self._spawner.spawn())

    def _hand_out(self) -> None:
        for worker in self._workers:
            # Near the end nobody takes several while others have none.
            fair = 1 + len(self._queue) // (2 * max(1, len(self._workers)))
            count = min(worker.given.num_asked, fair, len(self._queue))
            if count:
                units = [self._queue.popleft() for _ in range(count)]
                worker.given.num_asked = 0
                worker.given.units.update((unit.name, unit) for unit in units)
                worker.send(*({"unit": unit_to_plain(unit)} for unit in units))

    def _poll(self, timeout_s: float) -> None:
        for worker, messages in self._spawner.poll(timeout_s):
            if messages is None:
                self._reap(worker)
            for message in messages or ():
                self._receive(worker.given, message)

    def _receive(self, given: WorkerUnits, message: dict[str, Any]) -> None:
        if message["kind"] == "ask":
            given.num_asked, given.ever_asked = message["count"], True
        elif message["kind"] == "broken":
            raise ConfigError(message["message"])
        else:
            event = event_from_plain(message)
            if event.kind == "start":
                given.working = event.unit
            elif event.kind != "working":
                given.units.pop(event.unit, None)
            self._stopped = self._stopped or event.fatal
            self._on_event(event)

    def _reap(self, worker: PoolWorker) -> None:
        """Remove a worker that ended, and queue the units again that it did not finish."""
        self._workers.remove(worker)
        ending, given = worker.reap(), worker.given
        if not (given.ever_asked or self._dismissed or ending.blameless):
            self._num_failed_starts += 1
            if self._num_failed_starts > self._job.retries:
                raise ShardmillError(
                    f"a worker {ending.cause} before its first unit:\n{ending.log_tail}"
                )
        # The unit at work is to blame; those that waited for their turn or commit are not.
        # Some unit must be, or one that ends its worker without an error would do so for ever.
        if given.units and not ending.blameless:
            suspect = given.units.pop(given.working, None)
            self._blame(suspect or given.units.pop(next(iter(given.units))), ending)
        self._queue.extendleft(reversed(given.units.values()))

    def _blame(self, unit: Unit, ending: WorkerExit) -> None:
        self._deaths[unit.name] += 1
        if self._stopped or self._deaths[unit.name] <= self._job.retries:
            self._queue.append(unit)  # last: it may take the next worker with it, too
            return
        message = f"its worker {ending.cause}"
        keep_failure(self._job.ledger, unit.name, message, ending.log_tail)
        self._on_event(Event(kind="failed", unit=unit.name, message=message))

    def _dismiss(self, message: Message) -> None:
        """Tell all workers to end, and wait for it, but not for ever."""
        self._dismissed = True
        for worker in self._workers:
            worker.send(message)
        deadline = time.monotonic() + QUIT_WAIT_S
        while self._workers and time.monotonic() < deadline:
            self._poll(TICK_S)
