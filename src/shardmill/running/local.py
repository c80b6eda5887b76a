"""The local engine: worker processes of this machine, or this process itself.

Workers are started with `python -m shardmill.running.worker`, so nothing is forked and nothing is
pickled. What they print goes to a log file in the drafts of the run; its end is kept when a worker
dies.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import mask
from shardmill.machine import count_cpus, open_note, python_environ, python_module, read_note
from shardmill.model.codec import code_path, to_plain
from shardmill.running.engine import Assignment, Engine, Job
from shardmill.running.pool import (
    PoolWorker,
    WorkerExit,
    WorkerPool,
    WorkerUnits,
    check_importable,
)
from shardmill.running.worker import work_job
from shardmill.storage.text import dump_line, parse_json

CHUNK_BYTES = 1 << 16  # what a pipe holds
LOG_TAIL_BYTES = 4000
# A worker is as wide as one processor; numpy would start a thread for each of them.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Local(Engine):
    """Works on this machine, in one process for each usable processor unless told otherwise."""

    is_local: ClassVar[bool] = True

    def work(self, assignment: Assignment) -> None:
        """Work off the units in `num_workers` processes; 0 is this process, for debugging."""
        num_workers = count_cpus() if assignment.num_workers is None else assignment.num_workers
        if num_workers == 0:
            units = iter(assignment.units)
            wanted = iter(lambda: None if assignment.should_stop() else next(units, None), None)
            work_job(assignment.job, assignment.stage, wanted, assignment.on_event)
            return
        check_importable(assignment.stage)
        WorkerPool(
            assignment.job,
            assignment.units,
            ProcessSpawner(assignment.job, num_workers),
            on_event=assignment.on_event,
            should_stop=assignment.should_stop,
        ).run()


class ProcessSpawner:
    """Starts worker processes and reads their messages from pipes."""

    def __init__(self, job: Job, num_workers: int) -> None:
        self._job, self._num_workers = job, num_workers
        self._num_started = 0
        self._selector = selectors.DefaultSelector()

    def capacity(self) -> int:
        """Return how many processes there may be."""
        return self._num_workers

    def spawn(self) -> WorkerProcess:
        """Start a process."""
        worker = WorkerProcess.start(self._job, self._num_started)
        self._num_started += 1
        self._selector.register(worker.events_fd, selectors.EVENT_READ, worker)
        return worker

    def poll(self, timeout_s: float) -> Iterator[tuple[PoolWorker, list[dict[str, Any]] | None]]:
        """Yield what workers wrote to their pipes; a closed pipe is the end of one."""
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            messages = worker.read()
            if messages is None:
                self._selector.unregister(worker.events_fd)
            yield worker, messages

    def close(self) -> None:
        """Stop reading."""
        self._selector.close()


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A worker process as its driver sees it; `rest` is the part of a line that has arrived."""

    process: subprocess.Popen[bytes]
    events_fd: int
    note_fd: int
    log_path: Path
    given: WorkerUnits = field(default_factory=WorkerUnits)
    rest: bytes = b""

    @classmethod
    def start(cls, job: Job, number: int) -> WorkerProcess:
        """Start a worker and send it the job, with the folders of the modules that it names."""
        read_fd, write_fd = os.pipe()
        note_fd = open_note()
        log_path = job.ledger.draft_dir / f"worker-{number}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*python_module("shardmill.running.worker"), str(write_fd), str(note_fd)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write_fd, note_fd),
                env={**ONE_THREAD, **python_environ()},  # what the user set wins
            )
        # The worker alone holds the writing end, so that its death closes the pipe.
        os.close(write_fd)
        worker = cls(process, read_fd, note_fd, log_path)
        plain = to_plain(job)
        worker.send({"job": plain, "path": code_path(plain)})
        return worker

    def send(self, *messages: Mapping[str, Any]) -> None:
        """Send lines; if the worker is gone, its closed event pipe will tell."""
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

    def reap(self) -> WorkerExit:
        """Wait for the end of the process and return how it ended, and what it printed last."""
        os.close(self.events_fd)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        cause = describe_exit(self.process.wait())
        if reading := read_note(self.note_fd):
            cause = mask(f"{cause}; it was at {reading}")
        os.close(self.note_fd)
        # Somebody who took this run for dead may have removed its drafts.
        with suppress(FileNotFoundError), self.log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return WorkerExit(cause, file.read().decode("utf-8", "replace").strip())
        return WorkerExit(cause)

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()
        self.reap()


def describe_exit(status: int) -> str:
    """Return 'ended with status 1' or 'was killed by SIGSEGV'."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
