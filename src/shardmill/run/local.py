"""The local executor: worker processes that pull one unit at a time over pipes.

The driver is one loop over the workers' event pipes. It hands out units in order, notices a worker
that dies, gives its unit to a fresh one while retries are left, and never holds more than the list
of units. Workers are started with `python -m`, so nothing is forked and nothing is pickled.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from shardmill.errors import ConfigError, ShardmillError
from shardmill.io.jsontext import dump_line, parse_json
from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage, Unit, unit_to_plain
from shardmill.run.events import Event, OnEvent, event_from_plain
from shardmill.run.job import Job, failure_record, work_off

TICK_S = 0.25
QUIT_WAIT_S = 6.0
LOG_TAIL_BYTES = 4000


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process, the units it holds, and what it has not finished saying."""

    process: subprocess.Popen[bytes]
    events_fd: int
    log_path: Path
    units: dict[str, Unit] = field(default_factory=dict)
    working: str = ""
    asked: bool = False
    ever_asked: bool = False
    rest: bytes = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send a line; if the worker is gone, its closed event pipe will say so."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(dump_line(message))
            self.process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages that arrived, or None when the worker has closed its pipe."""
        chunk = os.read(self.events_fd, 1 << 16)
        if not chunk:
            return None
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [parse_json(line) for line in lines]

    def log_tail(self) -> str:
        """Return the last lines that the worker printed, such as a traceback."""
        with self.log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()


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
        self._workers: set[Worker] = set()
        self._selector = selectors.DefaultSelector()
        self._num_started = 0
        self._num_stillborn = 0
        self._deaths: Counter[str] = Counter()
        self._stopped = False

    def run(self) -> None:
        """Hand out all units; return when each is done or has failed, or when told to stop."""
        try:
            while (self._queue or self._busy()) and not self._stopped:
                self._hire()
                self._hand_out()
                self._attend(TICK_S)
                self._on_event(Event(kind="tick"))
                self._stopped = self._stopped or self._should_stop()
            self._dismiss({"quit": True} if self._stopped else {"end": True})
        finally:
            self._kill()

    def _busy(self) -> bool:
        return any(worker.units for worker in self._workers)

    def _hire(self) -> None:
        num_wanted = min(self._num_workers, len(self._queue) + self._num_busy())
        while len(self._workers) < num_wanted:
            worker = _start_worker(self._job, self._num_started)
            self._num_started += 1
            self._workers.add(worker)
            self._selector.register(worker.events_fd, selectors.EVENT_READ, worker)

    def _num_busy(self) -> int:
        return sum(1 for worker in self._workers if worker.units)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not self._queue:
                return
            if worker.asked:
                unit = self._queue.popleft()
                worker.asked, worker.units[unit.name] = False, unit
                worker.send({"unit": unit_to_plain(unit)})

    def _attend(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            worker: Worker = key.data
            messages = worker.read()
            if messages is None:
                self._bury(worker)
            for message in messages or ():
                self._heed(worker, message)

    def _heed(self, worker: Worker, message: dict[str, Any]) -> None:
        if message["kind"] == "ask":
            worker.asked = worker.ever_asked = True
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

    def _bury(self, worker: Worker) -> None:
        """Take a worker that ended out of the books, and see to the units that it held."""
        self._workers.remove(worker)
        self._selector.unregister(worker.events_fd)
        os.close(worker.events_fd)
        cause = _cause_of_death(worker.process.wait())
        if not worker.ever_asked and not self._stopped:
            self._num_stillborn += 1
            if self._num_stillborn > self._job.retries:
                raise ShardmillError(
                    f"a worker {cause} before its first unit:\n{worker.log_tail()}"
                )
        # The unit at work is to blame; those that only waited for their commit are innocent.
        blamed = [worker.working] if worker.working in worker.units else list(worker.units)
        innocent = [unit for name, unit in worker.units.items() if name not in blamed]
        self._queue.extendleft(reversed(innocent))
        for name in blamed:
            self._blame(worker.units[name], f"its worker {cause}", worker.log_tail())

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
        for worker in self._workers:
            worker.send(message)
        deadline = time.monotonic() + QUIT_WAIT_S
        while self._workers and time.monotonic() < deadline:
            self._attend(TICK_S)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
            os.close(worker.events_fd)
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


def _start_worker(job: Job, number: int) -> Worker:
    read_fd, write_fd = os.pipe()
    log_path = job.ledger.draft_dir / f"worker-{number}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardmill.run.worker", str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write_fd,),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    os.close(write_fd)
    worker = Worker(process, read_fd, log_path)
    worker.send(cast("dict[str, Any]", to_plain(job)))
    return worker


def _cause_of_death(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
