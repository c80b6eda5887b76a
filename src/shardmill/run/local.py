"""The local engine: worker processes of this machine, or this process itself."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit
from shardmill.run.cpus import count_cpus
from shardmill.run.engine import Errand
from shardmill.run.events import Event
from shardmill.run.fleet import Fleet, Worker
from shardmill.run.job import Job, work_job
from shardmill.run.lock import part_lock_name
from shardmill.run.process import WorkerProcess, start_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Works on this machine, in one process for each usable processor unless told otherwise."""

    def lock_name(self, part: tuple[int, int]) -> str:
        """Return the name of the lock that such a run holds."""
        return part_lock_name(part)

    def check(self) -> None:
        """Return: this machine is always there."""

    def work(self, errand: Errand) -> None:
        """Work off the units."""
        num_workers = count_cpus() if errand.num_workers is None else errand.num_workers
        if num_workers == 0:
            run_inline(errand)
            return
        check_importable(errand)
        Fleet(
            errand.job,
            errand.units,
            ProcessCrew(errand.job, num_workers),
            on_event=errand.on_event,
            should_stop=errand.should_stop,
        ).run()


class ProcessCrew:
    """Worker processes, heard over pipes."""

    def __init__(self, job: Job, num_workers: int) -> None:
        self._job, self._num_workers = job, num_workers
        self._num_started = 0
        self._selector = selectors.DefaultSelector()

    def room(self) -> int:
        """Return how many processes there shall be."""
        return self._num_workers

    def hire(self) -> WorkerProcess:
        """Start a process."""
        worker = start_worker(self._job, self._num_started)
        self._num_started += 1
        self._selector.register(worker.events_fd, selectors.EVENT_READ, worker)
        return worker

    def hear(self, timeout_s: float) -> Iterator[tuple[Worker, list[dict[str, Any]] | None]]:
        """Yield what workers wrote to their pipes; a closed one is the end."""
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            messages = worker.read()
            if messages is None:
                self._selector.unregister(worker.events_fd)
            yield worker, messages

    def close(self) -> None:
        """Stop listening."""
        self._selector.close()


def run_inline(errand: Errand) -> None:
    """Work off the units in this process: no workers, for debugging and for small things."""
    lock = threading.Lock()
    stopped = threading.Event()

    def report(event: Event) -> None:
        with lock:
            if event.fatal:
                stopped.set()
            errand.on_event(event)

    def wanted() -> Iterator[Unit]:
        for unit in errand.units:
            if stopped.is_set() or errand.should_stop():
                return
            yield unit

    work_job(errand.job, errand.stage, wanted(), report)


def check_importable(errand: Errand) -> None:
    """Raise `ConfigError` if another process could not import the stage."""
    if type(errand.stage).__module__ == "__main__":
        raise ConfigError(
            f"worker processes cannot import {type(errand.stage).__name__} from a script: put it "
            "into a module of its own, or run with workers=0"
        )
