"""The local executor: worker processes that pull units over pipes, a few at a time.

The driver is one loop over the workers' event pipes. It hands out units in order, notices a worker
that dies, gives its unit to a fresh one while retries are left, and never holds more than the list
of units.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.stage import Stage, Unit, unit_to_plain
from shardmill.run.events import Event, OnEvent, event_from_plain
from shardmill.run.job import Job, failure_record, work_off
from shardmill.run.process import WorkerProcess, start_worker

TICK_S = 0.25
QUIT_WAIT_S = 6.0


class Fleet:
    """The workers of one run and the units that are still to be done."""

    def __init__(
        self,
        job: Job,
        units: Sequence[Unit],
        *,
        num_workers: int,
        on_event: OnEvent,
        should_stop: Callable[[], bool],
    ) -> None:
        self._job, self._on_event, self._should_stop = job, on_event, should_stop
        self._queue = deque(units)
        self._num_workers = num_workers
        self._workers: set[WorkerProcess] = set()
        self._selector = selectors.DefaultSelector()
        self._num_started = 0
        self._num_stillborn = 0
        self._deaths: Counter[str] = Counter()
        self._stopped = self._dismissed = False
        self._next_tick_s = 0.0

    def run(self) -> None:
        """Hand out all units; return when each is done or has failed, or when told to stop."""
        try:
            while (self._queue or self._busy()) and not self._stopped:
                self._hire()
                self._hand_out()
                self._attend(TICK_S)
                self._tick()
                self._stopped = self._stopped or self._should_stop()
            self._dismiss({"quit": True} if self._stopped else {"end": True})
        finally:
            self._kill()

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            self._on_event(Event(kind="tick"))

    def _busy(self) -> bool:
        return any(worker.units for worker in self._workers)

    def _hire(self) -> None:
        num_wanted = min(self._num_workers, len(self._queue) + self._num_busy())
        while len(self._workers) < num_wanted:
            worker = start_worker(self._job, self._num_started)
            self._num_started += 1
            self._workers.add(worker)
            self._selector.register(worker.events_fd, selectors.EVENT_READ, worker)

    def _num_busy(self) -> int:
        return sum(1 for worker in self._workers if worker.units)

    def _hand_out(self) -> None:
        for worker in self._workers:
            # Near the end nobody takes several while others have none.
            fair = 1 + len(self._queue) // (2 * self._num_workers)
            count = min(worker.num_asked, fair, len(self._queue))
            if count:
                units = [self._queue.popleft() for _ in range(count)]
                worker.num_asked = 0
                worker.units.update((unit.name, unit) for unit in units)
                worker.send(*({"unit": unit_to_plain(unit)} for unit in units))

    def _attend(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            messages = worker.read()
            if messages is None:
                self._bury(worker)
            for message in messages or ():
                self._heed(worker, message)

    def _heed(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        if message["kind"] == "ask":
            worker.num_asked, worker.ever_asked = message["count"], True
        elif message["kind"] == "broken":
            raise ConfigError(message["message"])
        else:
            event = event_from_plain(message)
            if event.kind == "start":
                worker.working = event.unit
            else:
                worker.units.pop(event.unit, None)
            self._stopped = self._stopped or event.fatal
            self._on_event(event)

    def _bury(self, worker: WorkerProcess) -> None:
        """Take a worker that ended out of the books, and see to the units that it held."""
        self._workers.remove(worker)
        self._selector.unregister(worker.events_fd)
        cause = worker.close()
        if not worker.ever_asked and not self._dismissed:
            self._num_stillborn += 1
            if self._num_stillborn > self._job.retries:
                raise ShardmillError(
                    f"a worker {cause} before its first unit:\n{worker.log_tail()}"
                )
        # The unit at work is to blame; those that waited for their turn or commit are innocent.
        # Somebody must be, or a unit that kills its worker in a quiet way would do so for ever.
        if worker.units:
            guilty = worker.units.pop(worker.working, None)
            guilty = guilty or worker.units.pop(next(iter(worker.units)))
            self._queue.extendleft(reversed(worker.units.values()))
            self._blame(guilty, f"its worker {cause}", worker.log_tail())

    def _blame(self, unit: Unit, message: str, log_tail: str) -> None:
        self._deaths[unit.name] += 1
        if self._stopped or self._deaths[unit.name] <= self._job.retries:
            self._queue.append(unit)
            return
        with suppress(OSError):
            record = failure_record(unit.name, message, log_tail)
            self._job.ledger.write_failure(unit.name, record)
        self._on_event(Event(kind="failed", unit=unit.name, message=message))

    def _dismiss(self, message: dict[str, Any]) -> None:
        """Tell all workers to go, and listen until they have, for a while."""
        self._dismissed = True
        for worker in self._workers:
            worker.send(message)
        deadline = time.monotonic() + QUIT_WAIT_S
        while self._workers and time.monotonic() < deadline:
            self._attend(TICK_S)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.close()
        self._selector.close()


def run_inline(
    job: Job,
    stage: Stage,
    units: Sequence[Unit],
    *,
    on_event: OnEvent,
    should_stop: Callable[[], bool],
) -> None:
    """Work off the units in this process: no workers, for debugging and for small things."""
    lock = threading.Lock()
    stopped = threading.Event()

    def report(event: Event) -> None:
        with lock:
            if event.fatal:
                stopped.set()
            on_event(event)

    def wanted() -> Iterator[Unit]:
        for unit in units:
            if stopped.is_set() or should_stop():
                return
            yield unit

    work_off(
        stage,
        wanted(),
        job.ledger,
        retries=job.retries,
        max_skip_rate=job.max_skip_rate,
        on_event=report,
    )
