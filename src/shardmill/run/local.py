"""The local engine: worker processes of this machine, or this process itself.

A worker process as its driver sees it: what it was given, what it says, how it ended.

Workers are started with `python -m`, so nothing is forked and nothing is pickled. What they print
goes to a log file in the drafts of the run; its end is kept when a worker dies.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError
from shardmill.machine import count_cpus
from shardmill.model.codec import to_plain
from shardmill.model.stage import Unit
from shardmill.run.engine import Errand
from shardmill.run.events import Event
from shardmill.run.job import Job, work_job
from shardmill.run.lock import part_lock_name
from shardmill.run.pool import Duty, Ending, Fleet, Worker
from shardmill.storage.text import dump_line, parse_json

CHUNK_BYTES = 1 << 16
LOG_TAIL_BYTES = 4000
# A worker is as wide as one processor; numpy would start a thread for each of them.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A worker process, what it holds, and the beginning of what it has not said in full."""

    process: subprocess.Popen[bytes]
    events_fd: int
    log_path: Path
    duty: Duty = field(default_factory=Duty)
    rest: bytes = b""

    def send(self, *messages: Mapping[str, Any]) -> None:
        """Send lines; if the worker is gone, its closed event pipe will say so."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"".join(map(dump_line, messages)))
            self.process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages that arrived, or None when the worker has closed its pipe."""
        chunk = os.read(self.events_fd, CHUNK_BYTES)
        if not chunk:
            return None
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [parse_json(line) for line in lines]

    def bury(self) -> Ending:
        """Wait for the end of the process and return how it ended, and its last words."""
        return Ending(self.close(), self.log_tail())

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()
        self.close()

    def close(self) -> str:
        """Wait for the end of the process and return how it ended."""
        os.close(self.events_fd)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        return describe_end(self.process.wait())

    def log_tail(self) -> str:
        """Return the last lines that the worker printed, such as a traceback."""
        # Somebody who took this run for dead may have removed its drafts.
        with suppress(FileNotFoundError), self.log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()
        return ""


def start_worker(job: Job, number: int) -> WorkerProcess:
    """Start a worker and send it the job, with the path on which this process finds modules."""
    read_fd, write_fd = os.pipe()
    log_path = job.ledger.draft_dir / f"worker-{number}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardmill.run.worker", str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write_fd,),
            env={**ONE_THREAD, **os.environ},
        )
    os.close(write_fd)
    worker = WorkerProcess(process, read_fd, log_path)
    worker.send({"job": to_plain(job), "path": sys.path})
    return worker


def describe_end(status: int) -> str:
    """Return 'ended with status 1' or 'was killed by SIGSEGV'."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


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
