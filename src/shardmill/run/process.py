"""A worker process as its driver sees it: what it was given, what it says, how it ended.

Workers are started with `python -m`, so nothing is forked and nothing is pickled. What they print
goes to a log file in the drafts of the run; its end is kept when a worker dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.io.jsontext import dump_line, parse_json
from shardmill.model.codec import to_plain
from shardmill.run.fleet import Duty, Ending
from shardmill.run.job import Job

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
