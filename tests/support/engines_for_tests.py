"""Engines from outside of shardmill, as a user would write them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit
from shardmill.running.engine import Assignment, Engine, Job, QueueState
from shardmill.running.worker import work_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads(Engine):
    """Works in threads of this process."""

    threads: int = 4

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1, got {self.threads}")

    def work(self, assignment: Assignment) -> None:
        units, lock = iter(assignment.units), threading.Lock()

        def take() -> Iterator[Unit]:
            while not assignment.should_stop():
                with lock:
                    unit = next(units, None)
                if unit is None:
                    return
                yield unit

        def run() -> None:
            work_job(assignment.job, assignment.stage, take(), assignment.on_event)

        num_threads = assignment.num_workers or self.threads
        with ThreadPoolExecutor(num_threads) as pool:
            for future in [pool.submit(run) for _ in range(num_threads)]:
                future.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(Engine):
    """Submits to a queue that is only a file, and does nothing else."""

    file: Path
    wait: bool = True

    def work(self, assignment: Assignment) -> None:
        self.file.write_text(f"{len(assignment.units)} {self.wait}")

    def preview(self, job: Job, *, num_workers: int | None) -> str:
        return f"would queue {Path(job.out_dir).name} for {num_workers} workers\n"

    def without_waiting(self) -> Self:
        return replace(self, wait=False)

    def queue_state(self, out_dir: Path) -> QueueState | None:
        return QueueState(scheduler="the file", num_waiting=3, num_tasks=3, why="it is Sunday")

    def requeue(self) -> bool:
        self.file.write_text("requeued")
        return True
